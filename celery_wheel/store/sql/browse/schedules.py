"""Recurring schedules for people: pages by name, and one name with its changes, runs and skips.

::

    page      (after, upto] of the unique index of names   ``upto``: SCAN rows further, whatever the filter skips
    detail    a dozen statements of one moment; at most RUNS runs, skips and changes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import STOPPED, LaneState
from celery_wheel.store.ports.pages import Task
from celery_wheel.store.schedule_model import (
    AHEAD_MS,
    RunOfSource,
    Schedule,
    ScheduleCounts,
    ScheduleCriteria,
    ScheduleDetail,
    SchedulePage,
    ScheduleRun,
    SilentSchedules,
    Skip,
)
from celery_wheel.store.sql.browse.dispatch_times import with_times
from celery_wheel.store.sql.browse.states import state_of
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.queries import schedules as queries
from celery_wheel.store.sql.queries.browse import TASK
from celery_wheel.store.sql.schedules import revision_of, schedule_of
from celery_wheel.values import json_object

#: Rows that the filter of one page may skip.
SCAN = 20_000

#: Runs of a schedule among which the pending ones are counted.
PENDING_RUNS = 20

#: Most runs, skips and changes of a schedule that are returned.
RUNS = 60


def _is_meant(schedule: Schedule, criteria: ScheduleCriteria) -> bool:
    """Whether a schedule that the query has found has the prefix, the task and the queue of a filter."""
    if not schedule.name.startswith(criteria.prefix or ""):
        return False
    if criteria.task is None and criteria.queue is None:
        return True
    definition = json_object(schedule.definition)
    options = definition.get("options")
    queue = options.get("queue") if isinstance(options, dict) else None
    return criteria.task in (None, definition.get("task")) and criteria.queue in (None, queue)


class ScheduleViews:
    """A part of ``SqlBrowse``."""

    _database: Database

    def schedules(self, criteria: ScheduleCriteria, after: str = "", limit: int = 100) -> SchedulePage:
        with self._database.snapshot() as connection:
            upto: str | None = connection.scalar(queries.nth_name(after, SCAN + limit))
            rows = connection.execute(queries.page(criteria, after, upto, limit + 1)).all()
        items = [schedule_of(row) for row in rows[:limit]]
        following = items[-1].name if len(rows) > limit else upto
        return SchedulePage([one for one in items if _is_meant(one, criteria)], following)

    def schedule_counts(self) -> ScheduleCounts:
        with self._database.reading() as connection:
            total, *states, next_ms = connection.execute(queries.counts()).one()
        paused, broken, with_base, failing = (int(count or 0) for count in states)
        return ScheduleCounts(total, paused, broken, with_base, failing, next_ms)

    def silent_schedules(self, now_ms: int) -> SilentSchedules:
        with self._database.reading() as connection:
            return SilentSchedules(*connection.execute(queries.made_after(now_ms + AHEAD_MS)).one())

    def pending_runs(self, schedule_ids: Sequence[int]) -> dict[int, int]:
        if not schedule_ids:
            return {}
        with self._database.snapshot() as connection:
            rows = connection.execute(queries.pending_runs(schedule_ids, PENDING_RUNS))
            return {schedule: count for schedule, count in rows if count}

    def schedule(self, name: str) -> ScheduleDetail | None:
        with self._database.snapshot() as connection:
            row = connection.execute(queries.named(name)).one_or_none()
            found = None if row is None else schedule_of(row)
            revisions = [revision_of(row) for row in connection.execute(queries.revisions(name, RUNS))]
            if found is None and not revisions:
                return None
            number = revisions[0].schedule if found is None else found.id
            skips = [Skip(*row) for row in connection.execute(queries.skips(number, RUNS))]
            return ScheduleDetail(found, revisions, self._runs(connection, number), skips)

    def runs_after(self, shard: int, timer_id: int, limit: int) -> list[RunOfSource]:
        with self._database.snapshot() as connection:
            rows = connection.execute(queries.runs_after(shard, timer_id, limit)).all()
        return [RunOfSource(id_, at_ms, bool(requested), *of) for id_, at_ms, requested, *of in rows]

    def last_run(self, shard: int) -> int:
        with self._database.snapshot() as connection:
            return connection.scalar(queries.last_run(shard)) or 0

    def _runs(self, connection: Connection, number: int) -> list[ScheduleRun]:
        rows = connection.execute(queries.runs(number, RUNS)).all()
        tasks = {task.id: task for task in (Task(*row[-len(TASK) :]) for row in rows)}
        shards = {task.shard for task in tasks.values()}
        lanes: dict[tuple[int, int], LaneState] = {
            (shard, one.lane): one
            for shard in shards
            for one in read_lanes(connection, self._database.statements, shard, closed=True)
        }
        last: dict[int, Any] = {row.timer_id: row for row in connection.execute(queries.last_outcomes([*tasks]))}
        states = {
            id_: state_of(task, lanes.get((task.shard, task.lane)), last[id_].kind if id_ in last else None)
            for id_, task in tasks.items()
        }
        gone = [task for task in tasks.values() if states[task.id] == "dispatched"]
        times = {task.id: task.dispatched_ms for task in with_times(connection, gone)}
        return [
            ScheduleRun(
                instant_ms=row.instant_ms,
                timer_id=id_,
                task_id=task.task_id,
                due_ms=task.eta_ms,  # a position may be later: a task that is accepted late follows those before it
                state=states[id_],
                dispatched_ms=times.get(id_),
                ended_ms=row.ended_ms,
                requested=bool(row.requested),
                reason=last[id_].reason if id_ in last and task.lane == STOPPED else "",
            )
            for row, (id_, task) in zip(rows, tasks.items(), strict=True)
        ]
