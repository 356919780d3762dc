"""The worker's side: a task reads its schedule's instant, and the steps of ``run_reports`` tell of runs and dispatches.

Producers import no module of this package: ``celery_wheel.app`` names its steps, and a worker imports them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_wheel.values.instants import utc


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
        previous = None if previous_ms is None else utc(previous_ms)
        return CurrentOccurrence(str(header["schedule"]), utc(header["scheduled_for"]), previous, 1 + int(retries or 0))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
