"""The header ``wheel_occurrence`` of an occurrence's message.

::

    schedule       its name                      id, shard   its number, and where it was made
    scheduled_for  the instant                   previous    the instant that was made before it, or None
    report         the worker reports the end of the run
    queued         only of an instant of a backfill that waits for the run before it (see ``backfill_queue``)::

                       {"after": the instant before it in the backfill, or None, "max_runtime_ms": int}
"""

from __future__ import annotations

import json
from typing import Any

from celery_wheel.engine.recurring.port import Occurrence
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import Row
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule


def header_of(schedule: Schedule, definition: Definition, occurrence: Occurrence) -> dict[str, Any]:
    """Return the value of the header."""
    found: dict[str, Any] = {
        "schedule": schedule.name,
        "id": schedule.id,
        "shard": occurrence.shard,
        "scheduled_for": occurrence.instant_ms,
        "previous": occurrence.previous_ms,
        "report": definition.is_guarded or occurrence.is_queued,
    }
    if occurrence.is_queued:
        found["queued"] = {"after": occurrence.after_ms, "max_runtime_ms": definition.max_runtime_ms}
    return found


def read_header(row: Row) -> dict[str, Any]:
    """Return the value of a stored occurrence's header; {} where it has none."""
    found = json.loads(row.parts().headers).get(OCCURRENCE)
    return found if isinstance(found, dict) else {}
