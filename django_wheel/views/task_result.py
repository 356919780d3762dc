"""The execution of a task, as the app's result backend knows it: state, time and worker, never the result's value.

A backend may be slow or unreachable, so a thread of its own asks it, and a page waits a second at most.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery.backends.base import DisabledBackend
from celery.states import PENDING, READY_STATES
from django.db import connections
from django.utils.translation import gettext as _

from django_wheel.formats import printable

WAIT_S = 1.0

#: One thread, so that a backend that does not answer takes no second one.
_ASKER = ThreadPoolExecutor(1, "wheel-task-result")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """``state`` is Celery's. ``problem``: a sentence where the backend did not answer; then all else is empty."""

    state: str = ""
    ended_ms: int | None = None
    worker: str = ""
    problem: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in READY_STATES


def task_result(app: Any, task_id: str) -> TaskResult | None:
    """Return the execution of a task; None where the app has no result backend, or the backend does not know it."""
    if not task_id or isinstance(app.backend, DisabledBackend):
        return None
    asked = _ASKER.submit(_ask, app, task_id)
    try:
        meta = asked.result(WAIT_S)
    except Late:
        asked.cancel()
        return TaskResult(problem=_("The result backend did not answer within a second."))
    except Exception as error:  # each backend raises errors of its own
        text = _("The result backend could not be read: %(error)s.")
        return TaskResult(problem=text % {"error": printable(f"{type(error).__name__}: {error}", 300)})
    state = str(meta.get("status") or PENDING)
    if state == PENDING:  # Celery's word for an id that the backend does not know
        return None
    return TaskResult(state, _ms(meta.get("date_done")), str(meta.get("worker") or ""))


def _ask(app: Any, task_id: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = app.backend.get_task_meta(task_id, cache=False)
    finally:
        connections.close_all()  # those of this thread: a backend in Django's database opens one
    return found


def _ms(done: Any) -> int | None:
    """Return the instant of Celery's ``date_done``: a time or its ISO text, in UTC where it has no zone."""
    if isinstance(done, str):
        done = datetime.fromisoformat(done)
    if not isinstance(done, datetime):
        return None
    moment = done if done.tzinfo else done.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)
