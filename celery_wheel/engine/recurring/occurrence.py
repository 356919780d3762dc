"""Occurrences as the engine and the scheduler's renderer exchange them, and the header ``wheel_occurrence``.

::

    schedule       its name                      id, shard   its number, and where it was made
    scheduled_for  the instant                   previous    the instant that was made before it, or None
    queued         of an instant of a backfill that waits (see ``overlap``): {"max_runtime_ms": int}

Where the worker reports the end of the run, the row gets the header ``wheel_run`` with its id. An instant that waits
for the run before it in its backfill has the header ``wheel_after`` with the id of that run: other backfills may have
runs of the same instants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import Message, Row
from celery_wheel.store.schedule_model import AFTER, OCCURRENCE, RUN, Schedule
from celery_wheel.values import json_object


class Occurrence(NamedTuple):
    """One instant of a schedule that becomes a message."""

    shard: int
    instant_ms: int
    due_ms: int  #: the instant and its jitter; now, where it was requested
    previous_ms: int | None  #: the instant that was made before it
    envelope_id: str  #: the same for each try to make it
    is_queued: bool = False  #: an instant of a backfill that runs when the run before it is over


class OccurrenceRenderer(Protocol):
    def render(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        """Return the message of an occurrence, with a task id of its own.

        The engine sets ``envelope_id`` and ``eta_ms``. The call is made without a lock, and may be made again for the
        same occurrence, when a commit failed. After BrokerError the engine tries again for as long as it takes; after
        RecurrenceError the schedule is broken, with the error's text as the reason. After any other error it is tried
        again for an hour, and then it is broken.
        """

    def queue_lost(self, name: str) -> None:
        """Declare the queue before the next occurrence for it: no broker has it. Called in any thread."""

    def is_watched(self, schedule: Schedule) -> bool:
        """Whether code of the application acts when an occurrence is rendered: then no herd has it."""


#: Cancels the runs of these task ids, which a later run replaces: each is pending, published or running. A call may be
#: repeated.
OnOverlap = Callable[[Sequence[str]], None]


def header_of(schedule: Schedule, definition: Definition, occurrence: Occurrence) -> dict[str, Any]:
    found: dict[str, Any] = {
        "schedule": schedule.name,
        "id": schedule.id,
        "shard": occurrence.shard,
        "scheduled_for": occurrence.instant_ms,
        "previous": occurrence.previous_ms,
    }
    if occurrence.is_queued:
        found["queued"] = {"max_runtime_ms": definition.max_runtime_ms}
    return found


def is_reported(row: Row) -> bool:
    """Whether the worker of a stored occurrence reports the end of its run."""
    return RUN in _headers(row)


def run_before(row: Row) -> int | None:
    """Return the id of the run for which a stored instant of a backfill waits; None of the first one."""
    found = _headers(row).get(AFTER)
    return found if isinstance(found, int) else None


def read_header(row: Row) -> dict[str, Any]:
    """Return the value of a stored occurrence's header; {} where it has none."""
    found = _headers(row).get(OCCURRENCE)
    return found if isinstance(found, dict) else {}


def _headers(row: Row) -> dict[str, Any]:
    """Return the headers of a row; {} where its bytes are damaged, or need a key that is missing: dispatch says so."""
    with suppress(ValueError, TypeError):
        return json_object(row.parts().headers)
    return {}
