"""The worker's side: a task reads its schedule's instant, the scheduler hears that a run has ended, and monitoring sees
when a delayed task was dispatched (``dispatch_time``).

::

    message with the header wheel_occurrence ─► worker ─► self.request.wheel         ``occurrence``
                                                  │
                                                  └ the run is over: success, failure, revoked, rejected, time limit
                                                      └ run_reports ─► reporter ─► wheel queue of the schedule's shard

Only an occurrence whose schedule needs the end of its runs (any overlap but "allow") is reported. A retry is a part of
the run. Producers import no module of this package: ``celery_wheel.app`` names its steps, and a worker imports them.

Promises: a run that goes on is never reported; a report that the broker has confirmed is not lost, and may come twice.
Non-promises: a report is lost with its worker. Then the run counts as over ``max_runtime_ms`` after it was due.

``self.request.wheel``: the occurrence for which a task runs.

::

    @app.task(bind=True)
    def report(self):
        wheel = self.request.wheel           None, where the task was not sent by a schedule
        wheel.schedule                       "nightly report"
        wheel.scheduled_for                  its instant, which is not when it runs: a retry has the same
        wheel.previous                       the instant before it; None for the first
        wheel.attempt                        1, and one more for each retry
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CurrentOccurrence:
    """Instants are aware datetimes in UTC."""

    schedule: str
    scheduled_for: datetime
    previous: datetime | None
    attempt: int


def read_occurrence(header: Any, retries: Any) -> CurrentOccurrence | None:
    """Return the occurrence of a message's header; None for a header that no scheduler has written."""
    try:
        previous_ms = header["previous"]
        previous = None if previous_ms is None else _at(previous_ms)
        return CurrentOccurrence(str(header["schedule"]), _at(header["scheduled_for"]), previous, 1 + int(retries or 0))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def _at(instant_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=instant_ms)
