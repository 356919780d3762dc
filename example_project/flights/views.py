"""The board: the pending and the dispatched reminders of the day, with their lateness; tickets to pay; and a storm."""

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from celery_wheel import WheelUnavailable
from celery_wheel.store.ports.pages import Task
from flights import notices, orders, wheel
from flights.models import Execution, Order, Reminder, Replay
from flights.replay import now_ms
from flights.summary import summarise

MAX_LINES = 12  #: of each list
GRACE_MS = 30_000


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    replay = Replay.objects.order_by("-id").first()
    if replay is None:
        return render(request, "flights/board.html", {"replay": None, **_below()})
    reminders = Reminder.objects.filter(replay=replay)
    executions = Execution.objects.filter(task_id__in=reminders.values("task_id"))
    due = dict(reminders.values_list("task_id", "due_at_ms"))
    now = now_ms()
    context = {
        "replay": replay,
        **_below(),
        "summary": summarise(due, executions.values_list("task_id", "executed_at_ms"), now, GRACE_MS),
        "pending": [
            {"flight": flight, "in_s": max(0, task.due_ms - now) / 1000}
            for flight, task in _with_flights(wheel.next_reminders(MAX_LINES))
        ],
        "dispatched": [
            {"flight": flight, "late_ms": task.late_ms}
            for flight, task in _with_flights(wheel.last_reminders(MAX_LINES))
        ],
    }
    return render(request, "flights/board.html", context)


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    orders.order(request.POST.get("flight", "")[:24] or "a ticket")
    return redirect("board")


@require_POST
def pay_order(request: HttpRequest, pk: int) -> HttpResponse:
    """Pay an order. A late payment is no error: the board shows that the order was cancelled."""
    try:
        orders.pay(get_object_or_404(Order, pk=pk))
    except WheelUnavailable as error:
        return HttpResponse(f"not paid: {error}", status=503, content_type="text/plain")
    return redirect("board")


@require_POST
def send_notices(request: HttpRequest) -> HttpResponse:
    """Send the notices of a storm that one airline is in."""
    airline = request.POST.get("airline", "")
    if airline not in notices.AIRLINES:
        return HttpResponse(
            f"airline must be one of {', '.join(notices.AIRLINES)}", status=400, content_type="text/plain"
        )
    notices.storm(airline)
    return redirect("board")


def _below() -> dict[str, object]:
    """Return what the lower part of the board shows."""
    placed = list(Order.objects.order_by("-id")[:MAX_LINES])
    return {"orders": placed, "airlines": notices.AIRLINES, "notices": notices.by_airline()}


def _with_flights(tasks: Sequence[Task]) -> list[tuple[str, Task]]:
    """Return each task with its flight: the wheel knows task ids, and opens no message."""
    reminders = Reminder.objects.filter(task_id__in=[task.task_id for task in tasks])
    flights = dict(reminders.values_list("task_id", "flight"))
    return [(flights.get(task.task_id, task.task_id), task) for task in tasks]
