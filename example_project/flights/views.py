"""The board: one page that shows how the latest replay is going."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from flights.models import Execution, Reminder, Replay
from flights.replay import now_ms
from flights.summary import summarise

SHOWN = 12  #: flights listed on the page
GRACE_MS = 30_000


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    replay = Replay.objects.order_by("-id").first()
    if replay is None:
        return render(request, "flights/board.html", {"replay": None})
    reminders = Reminder.objects.filter(replay=replay)
    executions = Execution.objects.filter(task_id__in=reminders.values("task_id"))
    due = dict(reminders.values_list("task_id", "due_at_ms"))
    now = now_ms()
    context = {
        "replay": replay,
        "summary": summarise(due, executions.values_list("task_id", "executed_at_ms"), now, GRACE_MS),
        "next_up": [
            (reminder, max(0, reminder.due_at_ms - now) / 1000)
            for reminder in reminders.exclude(task_id__in=executions.values("task_id")).order_by("due_at_ms")[:SHOWN]
        ],
    }
    return render(request, "flights/board.html", context)
