"""Recurring schedules in a SQL store: the holder's reads, and their part of ``apply``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, insert, select, tuple_, update

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Row
from celery_wheel.store.schedule_model import Revision, Run, Schedule, ScheduleChange, Skip, readable, whole
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import lane, revision, schedule, schedule_run, schedule_skip, timer
from celery_wheel.store.sql.statement import (
    ROW,
    ObjectInsert,
    Prepared,
    Statements,
    columns_of,
    constant,
    in_order,
    names_of,
    numbered,
    places,
)

SCHEDULE = columns_of(Schedule, schedule)


class ScheduleStatements:
    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._prepare_writes(statements)
        self._prepare_reads(statements)
        self._prepare_runs(statements)

    def _prepare_writes(self, statements: Statements) -> None:
        columns = ["shard", *names_of(Schedule)]
        self.add = ObjectInsert(statements.bulk(schedule, insert(schedule).inline().values(places(*columns))), "shard")
        self.set = ObjectInsert(statements.put(schedule, ["id"], [one for one in columns if one != "id"]), "shard")
        here = and_(schedule.c.id == bindparam("at_id"), schedule.c.shard == bindparam("at_shard"))
        step: Any = {name: bindparam(name) for name in ("next_ms", "made", "last_ms")}
        self.step = ObjectInsert(statements(update(schedule).where(here).values(**step)), "at_shard", at_id="id")
        self.remove = statements(delete(schedule).where(here))
        values = names_of(Revision)
        self.add_revision = ObjectInsert(statements.bulk(revision, insert(revision).inline().values(places(*values))))
        place = ("schedule", "number")
        self.set_revision = ObjectInsert(statements.put(revision, place, [one for one in values if one not in place]))
        run = insert(schedule_run).inline().values(places(*names_of(Run)))
        self.add_run = ObjectInsert(statements.bulk(schedule_run, run))
        goes_on = and_(schedule_run.c.timer_id == bindparam("at_id"), schedule_run.c.ended_ms.is_(None))
        end: Any = {"ended_ms": bindparam("ended_ms")}
        self.end_run = ObjectInsert(statements(update(schedule_run).where(goes_on).values(**end)), at_id="timer_id")
        place = ("schedule", "from_ms")
        columns = ["shard", *[one for one in names_of(Skip) if one not in place]]
        self.set_skip = ObjectInsert(statements.put(schedule_skip, place, columns), "shard")
        old = and_(schedule_skip.c.shard == bindparam("shard"), schedule_skip.c.at_ms < bindparam("before_ms"))
        oldest = select(schedule_skip.c.id).where(old).order_by(schedule_skip.c.at_ms)
        self.old_skips = statements(oldest.limit(bindparam("limit")))
        self.forget_skip = statements(delete(schedule_skip).where(schedule_skip.c.id == bindparam("gone")))
        self.forget_run = statements(delete(schedule_run).where(schedule_run.c.timer_id == bindparam("gone")))

    def _prepare_reads(self, statements: Statements) -> None:
        of_shard = schedule.c.shard == bindparam("shard")
        due = select(*SCHEDULE).where(of_shard, schedule.c.next_ms <= bindparam("upto_ms"))
        self.due = statements(due.order_by(schedule.c.next_ms, schedule.c.id).limit(bindparam("limit")))
        # The order leaves PostgreSQL no index but that of the instants; min() may read another.
        next_ms = select(schedule.c.next_ms).where(of_shard, schedule.c.next_ms.is_not(None))
        self.next = statements(next_ms.order_by(schedule.c.next_ms).limit(constant(1)).offset(bindparam("skip")))
        # By the name alone: with the shard as a condition, SQLite reads every schedule of the shard.
        names = numbered("name")
        self.named = statements(select(schedule.c.shard, *SCHEDULE).where(schedule.c.name.in_(names)))

    def _prepare_runs(self, statements: Statements) -> None:
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
        return self._statements(select(*columns).select_from(rows).order_by(*_latest_first(run)))


def _latest_first(runs: Any) -> list[ColumnElement[int]]:
    return [runs.c.instant_ms.desc(), runs.c.timer_id.desc()]


#: Columns of a run, and of its row.
RUN_COLUMNS, ROW_COLUMNS = len(names_of(Run)), len(ROW)


class SqlSchedules(StorePart):
    @property
    def _of_schedules(self) -> ScheduleStatements:
        return self._statements.of(ScheduleStatements)

    def due_schedules(self, shard: int, upto_ms: int, limit: int) -> list[Schedule]:
        due = self._of_schedules.due
        with self._database.reading() as connection:
            return [schedule_of(row) for row in due(connection, shard=shard, upto_ms=upto_ms, limit=limit)]

    def next_schedule_ms(self, shard: int, skip: int = 0) -> int | None:
        with self._database.reading() as connection:
            next_ms: int | None = self._of_schedules.next(connection, shard=shard, skip=skip).scalar()
        return next_ms

    def schedules_named(self, shard: int, names: Sequence[str]) -> list[Schedule]:
        with self._database.reading() as connection:
            rows = self._of_schedules.named.each(connection, "name", names)
        return list({row.id: schedule_of(row[1:]) for row in rows if row.shard == shard}.values())

    def runs_of(self, shard: int, schedule_ids: Sequence[int], pending_only: bool, limit: int) -> list[tuple[Run, Row]]:
        query = self._of_schedules.pending_runs if pending_only else self._of_schedules.runs
        with self._database.reading() as connection:
            rows = [row for one in schedule_ids for row in query(connection, schedule=one, limit=limit)]
            found = self._runs(connection, shard, rows)
        found.sort(key=lambda one: (one[0].instant_ms, one[0].timer_id), reverse=True)
        return found[:limit]

    def runs_at(self, shard: int, instants: Sequence[tuple[int, int]]) -> list[tuple[Run, Row]]:
        query = self._of_schedules.runs_at
        with self._database.reading() as connection:
            rows = [row for one, at_ms in instants for row in query(connection, schedule=one, instant_ms=at_ms)]
            return self._runs(connection, shard, rows)

    def _runs(self, connection: Connection, shard: int, rows: Iterable[Any]) -> list[tuple[Run, Row]]:
        """Return the runs of a shard; a resharding leaves dispatched rows in their shard."""
        row_of = self._catalogue.row
        return [
            (run_of(one[:RUN_COLUMNS]), row_of(connection, one[-ROW_COLUMNS:], one.task_id))
            for one in rows
            if one.shard == shard
        ]


def schedule_of(row: Sequence[Any]) -> Schedule:
    """Return the schedule of a row, whose columns are in the order of its fields."""
    return readable(Schedule(*row))


def revision_of(row: Sequence[Any]) -> Revision:
    """Return the revision of a row, as ``schedule_of`` does."""
    found = Revision(*row)
    found.number, found.at_ms = whole(found.number) or 0, whole(found.at_ms) or 0
    found.what, found.actor, found.reason = str(found.what), str(found.actor), str(found.reason)
    found.before = str(found.before)
    return found


def run_of(row: Sequence[Any]) -> Run:
    """Return the run of a row, as ``schedule_of`` does."""
    found = Run(*row)
    found.requested = bool(found.requested)
    return found


def write_schedules(connection: Connection, statements: Statements, shard: int, change: ScheduleChange) -> None:
    """Write the part of a change that concerns schedules, behind the fence."""
    to = statements.of(ScheduleStatements)
    removed = [{"at_id": number, "at_shard": shard} for number in change.removed_schedules]
    to.remove.many(connection, in_order(to.remove, removed))
    to.add.many(connection, change.added_schedules, shard)
    to.set.many(connection, change.schedules, shard)
    if to.step.many(connection, change.schedule_steps, shard) != len(change.schedule_steps):
        raise StoreError(
            f"a step of shard {shard} is of a schedule that the store does not have; nothing was written; the shard is "
            "adopted anew, which reads the stored schedules; if this repeats, please report it"
        )
    # Creations come first, in the order of a history. A row that was restored from a copy has an earlier revision, so
    # the number of its next one may be taken.
    to.add_revision.many(connection, [one for one in change.revisions if not one.before])
    to.set_revision.many(connection, [one for one in change.revisions if one.before])
    to.add_run.many(connection, change.runs)
    to.end_run.many(connection, change.run_ends)
    to.set_skip.many(connection, change.skips, shard)
