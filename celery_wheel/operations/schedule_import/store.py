"""Store imported schedules: in one request for many, a paused one paused from its first moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_wheel.broker import shard_of
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule
from celery_wheel.recurring.definition import read_definition

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.results import ScheduleAnswer
    from celery_wheel.store.ports import FullStore

#: Names of one read.
AT_ONCE = 500


def existing(store: FullStore, names: Sequence[str]) -> set[str]:
    """Return the names that the store has already."""
    found: set[str] = set()
    for start in range(0, len(names), AT_ONCE):
        by_shard: dict[int, list[str]] = {}
        for name in names[start : start + AT_ONCE]:
            by_shard.setdefault(shard_of(None, name, store.shards), []).append(name)
        for shard, part in by_shard.items():
            found |= {one.name for one in store.schedules_named(shard, part)}
    return found


def store_schedules(
    wheel: Wheel, schedules: Iterable[ForeignSchedule], now_ms: int, *, update: bool, how: Mapping[str, Any]
) -> dict[str, ScheduleAnswer]:
    """Create schedules, or with ``update`` give existing ones the definition; a pause is for new ones only.

    Raises WheelUnavailable, with the certain results, when no scheduler answers in time.
    """
    found = list(schedules)
    names = existing(wheel.store, [one.name for one in found])
    new = {one.name: _restorable(one, now_ms) for one in found if one.name not in names}
    old = {one.name: one.definition for one in found if one.name in names} if update else {}
    answers: dict[str, ScheduleAnswer] = wheel.schedules.change("restore", new, how=how) if new else {}
    return answers | (wheel.schedules.change("put", old, how=how) if old else {})


def _restorable(one: ForeignSchedule, now_ms: int) -> dict[str, Any]:
    next_ms = read_definition(one.text).recurrence.next_after(now_ms)
    values: dict[str, Any] = {"definition": one.text, "next_ms": next_ms}
    if one.paused:
        values |= {"paused": True, "note": "it was disabled in the other system", "since_ms": now_ms}
    return {"schedule": values, "revisions": []}
