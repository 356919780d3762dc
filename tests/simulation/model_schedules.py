"""Schedules of a model store, as ``celery_wheel.store.sql`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_wheel.store.model import STOPPED, Change, Message
from celery_wheel.store.schedule_model import Run, Schedule
from tests.simulation.model_history import ShardData, StoredRow


def apply(data: ShardData, change: Change) -> None:
    for removed in change.removed_schedules:
        del data.schedules[removed]
    data.schedules.update({one.id: replace(one) for one in [*change.added_schedules, *change.schedules]})
    names = [one.name for one in data.schedules.values()]
    assert len(names) == len(set(names)), "a name is unique"
    for step in change.schedule_steps:
        one = data.schedules[step.id]
        one.next_ms, one.made, one.last_ms = step.next_ms, step.made, step.last_ms
    numbers = {(one.schedule, one.number) for one in data.revisions}
    assert not any((one.schedule, one.number) in numbers for one in change.revisions), "a revision never changes"
    data.revisions += change.revisions
    assert all(run.timer_id in data.rows for run in change.runs), "a run has a row"
    assert not any(run.timer_id in data.runs for run in change.runs), "a row has one run"
    data.runs.update({run.timer_id: replace(run) for run in change.runs})
    for end in change.run_ends:
        if end.timer_id in data.runs and data.runs[end.timer_id].ended_ms is None:
            data.runs[end.timer_id].ended_ms = end.ended_ms
    skips = {(one.schedule, one.from_ms): one for one in (*data.skips, *change.skips)}
    data.skips = list(skips.values())


def due(data: ShardData, upto_ms: int) -> list[Schedule]:
    found = [one for one in data.schedules.values() if one.next_ms is not None and one.next_ms <= upto_ms]
    return [replace(one) for one in sorted(found, key=lambda one: (one.next_ms, one.id))]


def runs_of(data: ShardData, schedule_ids: Sequence[int], pending_only: bool) -> list[tuple[Run, StoredRow]]:
    found = []
    for run in data.runs.values():
        stored = data.rows.get(run.timer_id)
        if stored is None or run.schedule not in schedule_ids or not isinstance(stored.message, Message):
            continue
        row = stored.row
        if not pending_only or (row.lane != STOPPED and row.position > data.lanes[row.lane].offset):
            found.append((replace(run), stored))
    return sorted(found, key=lambda one: (one[0].instant_ms, one[0].timer_id), reverse=True)
