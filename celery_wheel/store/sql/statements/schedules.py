"""The prepared statements of recurring schedules.

::

    wheel_schedule       add, set, step, remove   the holder of its shard
                         due, next, named         by (shard, next_ms) and by name
    wheel_revision       add                      never changed
    wheel_schedule_run   add, end, forget         one for a timer
                         runs, pending_runs,      by (schedule, instant), with the timer and its bytes
                         runs_at
    wheel_schedule_skip  set, forget
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    and_,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)

from celery_wheel.store.schedule_model import Revision, Run, Schedule, Skip
from celery_wheel.store.sql.fields import ObjectInsert, columns_of, names_of
from celery_wheel.store.sql.schema import lane, revision, schedule, schedule_run, schedule_skip, timer
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.statements.clauses import ROW

#: Names of one statement.
NAME_PLACES = 50

SCHEDULE = columns_of(Schedule, schedule)


class ScheduleStatements:
    """``prepare`` compiles for the dialect; ``bulk`` adds many rows; ``insert_or`` is the dialect's own ``insert``."""

    def __init__(
        self, prepare: Callable[[Any], Prepared], bulk: Callable[[Any, Any], Any], insert_or: Callable[[Any], Any]
    ) -> None:
        self._prepare = prepare
        self._insert_or = insert_or
        self._prepare_writes(bulk)
        self._prepare_reads()
        self._prepare_runs()

    def _prepare_writes(self, bulk: Callable[[Any, Any], Any]) -> None:
        columns = ["shard", *names_of(Schedule)]
        self.add = ObjectInsert(bulk(schedule, insert(schedule).inline().values(_places(*columns))), "shard")
        self.set = ObjectInsert(self._set(schedule, ["shard", *names_of(Schedule)], ["id"]), "shard")
        here = and_(schedule.c.id == bindparam("at_id"), schedule.c.shard == bindparam("at_shard"))
        step: Any = {name: bindparam(name) for name in ("next_ms", "made", "last_ms")}
        self.step = ObjectInsert(self._prepare(update(schedule).where(here).values(**step)), "at_shard", at_id="id")
        self.remove = self._prepare(delete(schedule).where(here))
        values = names_of(Revision)
        self.add_revision = ObjectInsert(bulk(revision, insert(revision).inline().values(_places(*values))))
        self.set_revision = ObjectInsert(self._set(revision, [*values], ["schedule", "number"]))
        run = insert(schedule_run).inline().values(_places(*names_of(Run)))
        self.add_run = ObjectInsert(bulk(schedule_run, run))
        goes_on = and_(schedule_run.c.timer_id == bindparam("at_id"), schedule_run.c.ended_ms.is_(None))
        end: Any = {"ended_ms": bindparam("ended_ms")}
        self.end_run = ObjectInsert(self._prepare(update(schedule_run).where(goes_on).values(**end)), at_id="timer_id")
        columns = ["shard", *names_of(Skip)]
        self.set_skip = ObjectInsert(self._set(schedule_skip, columns, ["schedule", "from_ms"]), "shard")
        old = and_(schedule_skip.c.shard == bindparam("shard"), schedule_skip.c.at_ms < bindparam("before_ms"))
        oldest = select(schedule_skip.c.id).where(old).order_by(schedule_skip.c.at_ms)
        self.old_skips = self._prepare(oldest.limit(bindparam("limit")))
        self.forget_skip = self._prepare(delete(schedule_skip).where(schedule_skip.c.id == bindparam("gone")))
        self.forget_run = self._prepare(delete(schedule_run).where(schedule_run.c.timer_id == bindparam("gone")))

    def _prepare_reads(self) -> None:
        of_shard = schedule.c.shard == bindparam("shard")
        due = select(*SCHEDULE).where(of_shard, schedule.c.next_ms <= bindparam("upto_ms"))
        self.due = self._prepare(due.order_by(schedule.c.next_ms, schedule.c.id).limit(bindparam("limit")))
        # The order leaves PostgreSQL no index but that of the instants; min() may read another.
        next_ms = select(schedule.c.next_ms).where(of_shard, schedule.c.next_ms.is_not(None))
        one: ColumnElement[int] = literal_column("1")
        self.next = self._prepare(next_ms.order_by(schedule.c.next_ms).limit(one).offset(bindparam("skip")))
        # By the name alone: with the shard as a condition, SQLite reads every schedule of the shard.
        names: list[BindParameter[str]] = [bindparam(f"name_{n}") for n in range(NAME_PLACES)]
        self.named = self._prepare(select(schedule.c.shard, *SCHEDULE).where(schedule.c.name.in_(names)))

    def _prepare_runs(self) -> None:
        # A join with wheel_lane, or the shard of the timer as a condition, would let PostgreSQL begin with the shard's
        # timers: so it planned while the tables were empty, and it keeps such a plan until it has statistics.
        self.runs = self._latest(select(schedule_run))
        at = select(schedule_run).where(schedule_run.c.instant_ms == bindparam("instant_ms"))
        self.runs_at = self._of_schedule(at)
        place = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)  # no lane is STOPPED
        offset = select(lane.c.offset_due_ms, lane.c.offset_seq).where(place).scalar_subquery()
        after_offset: Any = tuple_(timer.c.due_ms, timer.c.seq) > offset
        row = schedule_run.join(timer, timer.c.id == schedule_run.c.timer_id)
        self.pending_runs = self._latest(select(schedule_run).select_from(row).where(after_offset))

    def _latest(self, runs: Any) -> Prepared:
        """Look for the runs, and then read their rows: of many timers that are not meant, no bytes."""
        return self._of_schedule(runs.order_by(*_latest_first(schedule_run)).limit(bindparam("limit")))

    def _of_schedule(self, runs: Any) -> Prepared:
        run = runs.where(schedule_run.c.schedule == bindparam("schedule")).subquery("run")
        rows = run.join(timer, timer.c.id == run.c.timer_id)
        columns = (*[run.c[name] for name in names_of(Run)], timer.c.shard, timer.c.task_id, *ROW)
        return self._prepare(select(*columns).select_from(rows).order_by(*_latest_first(run)))

    def _set(self, table: Any, columns: list[str], place: list[str]) -> Prepared:
        """Insert a row, or replace the values of the row with the same place."""
        new = self._insert_or(table).inline().values(_places(*columns))
        taken = {name: new.excluded[name] for name in columns if name not in place}
        return self._prepare(new.on_conflict_do_update(index_elements=place, set_=taken))


def _latest_first(runs: Any) -> list[ColumnElement[int]]:
    return [runs.c.instant_ms.desc(), runs.c.timer_id.desc()]


def _places(*names: str) -> dict[str, BindParameter[Any]]:
    return {name: bindparam(name) for name in names}
