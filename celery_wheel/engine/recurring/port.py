"""The protocols that the scheduler implements for recurring schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import Schedule


class OccurrenceRenderer(Protocol):
    def render(self, schedule: Schedule, instant_ms: int) -> Message:
        """Return the message of an occurrence, with a task id of its own.

        The engine sets ``envelope_id`` and ``eta_ms``. The call is made without a lock, and may be made again for the
        same instant, when a commit failed. It does no I/O. Any error that it raises makes the schedule broken, with
        the error's text as the reason.
        """


#: Cancels the runs of these task ids, which a later run replaces: each is pending, published or running. A call may be
#: repeated.
OnOverlap = Callable[[Sequence[str]], None]
