"""The board: what the wheel holds for the day's departures, what has left, and how late; and tickets to pay."""

from collections.abc import Iterable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from celery_wheel import WheelUnavailable
from celery_wheel.store.ports.pages import Task
from flights import orders, wheel
from flights.models import Execution, Order, Reminder, Replay
from flights.replay import now_ms
from flights.summary import summarise

SHOWN = 12  #: flights in each of the two lists
GRACE_MS = 30_000


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    replay = Replay.objects.order_by("-id").first()
    if replay is None:
        return render(request, "flights/board.html", {"replay": None, "orders": _orders()})
    reminders = Reminder.objects.filter(replay=replay)
    executions = Execution.objects.filter(task_id__in=reminders.values("task_id"))
    due = dict(reminders.values_list("task_id", "due_at_ms"))
    now = now_ms()
    context = {
        "replay": replay,
        "orders": _orders(),
        "summary": summarise(due, executions.values_list("task_id", "executed_at_ms"), now, GRACE_MS),
        "waiting": [
            {"flight": flight, "in_s": max(0, task.due_ms - now) / 1000}
            for flight, task in _named(wheel.waiting(SHOWN))
        ],
        "left": [{"flight": flight, "late_ms": task.late_ms} for flight, task in _named(wheel.left(SHOWN))],
    }
    return render(request, "flights/board.html", context)


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    orders.order(request.POST.get("flight", "")[:24] or "a ticket")
    return redirect("board")


@require_POST
def pay_order(request: HttpRequest, pk: int) -> HttpResponse:
    """Too late is no error: the board says that it was cancelled."""
    try:
        orders.pay(get_object_or_404(Order, pk=pk))
    except WheelUnavailable as error:
        return HttpResponse(f"not paid: {error}", status=503, content_type="text/plain")
    return redirect("board")


def _orders() -> list[Order]:
    return list(Order.objects.order_by("-id")[:SHOWN])


def _named(tasks: Iterable[Task]) -> list[tuple[str, Task]]:
    """Each with its flight: the wheel knows task ids, and opens no message."""
    listed = list(tasks)
    wanted = Reminder.objects.filter(task_id__in=[task.task_id for task in listed])
    flights = dict(wanted.values_list("task_id", "flight"))
    return [(flights.get(task.task_id, task.task_id), task) for task in listed]
