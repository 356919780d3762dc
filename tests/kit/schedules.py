"""Schedules for a store, and a holder that makes their occurrences as the engine does."""

import uuid
from typing import Any

from celery_wheel.store.model import StoredMessage
from celery_wheel.store.schedule_model import Revision, Run, Schedule, ScheduleStep
from tests.kit.holder import NOW, Holder

MINUTE = 60_000


def schedule(holder: Holder, name: str, next_ms: int | None = NOW, **parts: Any) -> Schedule:
    values: dict[str, Any] = {"definition": '{"every": 60}', "source": "api", "revision": 1, **parts}
    return Schedule(holder.seq(), name, next_ms=next_ms, **values)


def create(holder: Holder, *names: str, next_ms: int | None = NOW, **parts: Any) -> list[Schedule]:
    made = [schedule(holder, name, next_ms, **parts) for name in names]
    holder.apply(schedules=made, revisions=[revision(one) for one in made])
    return made


def revision(one: Schedule, what: str = "created", **parts: Any) -> Revision:
    values: dict[str, Any] = {"actor": "anna", "reason": "", "at_ms": NOW, "before": "", **parts}
    return Revision(one.id, one.revision, one.name, what, **values)


def occurrence(holder: Holder, one: Schedule, instant_ms: int, **parts: Any) -> tuple[StoredMessage, Run]:
    envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{one.id} {instant_ms}"))
    row = holder.row(instant_ms, envelope_id=envelope_id, **parts)
    return row, Run(row.id, one.id, instant_ms)


def step(one: Schedule) -> ScheduleStep:
    """The step past the schedule's next instant; it recurs each minute."""
    assert one.next_ms is not None
    return ScheduleStep(one.id, one.next_ms + MINUTE, one.made + 1, one.next_ms)


def materialise(holder: Holder, upto_ms: int, limit: int = 1_000) -> int:
    """Make the occurrences that are due up to an instant, one of each schedule; returns how many."""
    due = holder.store.due_schedules(holder.shard, upto_ms, limit)
    made = [occurrence(holder, one, one.next_ms) for one in due if one.next_ms is not None]
    rows, runs = [row for row, _ in made], [run for _, run in made]
    holder.apply(rows=rows, runs=runs, schedule_steps=[step(one) for one in due])
    return len(made)
