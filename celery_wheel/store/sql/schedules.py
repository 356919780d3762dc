"""Recurring schedules and runs in a SQL store: the holder's reads, and their part of ``apply``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    not_,
    select,
    tuple_,
    update,
)

from celery_wheel.errors import StoreError
from celery_wheel.store.model import Row
from celery_wheel.store.schedule_model import Revision, Run, RunEnd, Schedule, ScheduleChange, Skip, readable, whole
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import lane, revision, run, schedule, schedule_skip, timer
from celery_wheel.store.sql.sealing import Seal
from celery_wheel.store.sql.statement import (
    ROW,
    ObjectInsert,
    Prepared,
    Statements,
    columns_of,
    constant,
    names_of,
    numbered,
    places,
)

SCHEDULE = columns_of(Schedule, schedule)


class ScheduleStatements:
    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._prepare_writes(statements)
        self._prepare_writes_of_runs(statements)
        self._prepare_reads(statements)
        self._prepare_runs(statements)

    def _prepare_writes(self, statements: Statements) -> None:
        columns = ["shard", *names_of(Schedule)]
        self.add = ObjectInsert(statements.bulk(schedule, *columns), "shard")
        self.set = ObjectInsert(statements.put(schedule, ["id"], [one for one in columns if one != "id"]), "shard")
        here = and_(schedule.c.id == bindparam("at_id"), schedule.c.shard == bindparam("at_shard"))
        step: Any = {name: bindparam(name) for name in ("next_ms", "made", "last_ms")}
        self.step = ObjectInsert(statements(update(schedule).where(here).values(**step)), "at_shard", at_id="id")
        self.remove = statements(delete(schedule).where(here))
        self.move = statements(update(schedule).where(here).values(shard=bindparam("to")))
        values = names_of(Revision)
        self.add_revision = ObjectInsert(statements.bulk(revision, *values))
        place = ("schedule", "number")
        self.set_revision = ObjectInsert(statements.put(revision, place, [one for one in values if one not in place]))
        place = ("schedule", "from_ms")
        columns = ["shard", *[one for one in names_of(Skip) if one not in place]]
        self.set_skip = ObjectInsert(statements.put(schedule_skip, place, columns), "shard")
        old = and_(schedule_skip.c.shard == bindparam("shard"), schedule_skip.c.at_ms < bindparam("before_ms"))
        oldest = select(schedule_skip.c.id).where(old).order_by(schedule_skip.c.at_ms)
        self.old_skips = statements(oldest.limit(bindparam("limit")))
        self.forget_skip = statements(delete(schedule_skip).where(schedule_skip.c.id == bindparam("gone")))
        of_row = delete(run).where(run.c.timer_id == bindparam("gone"))
        # One that has a slot of its group stays: the next holder counts it.
        self.forget_run = statements(of_row.where(not_(and_(*has_slot(bindparam("now_ms"))))))
        self.erase_run = statements(of_row)
        self.forget_slot = statements(of_row.where(~exists().where(timer.c.id == run.c.timer_id)))
        of_shard, key = run.c.shard == bindparam("shard"), tuple_(run.c.until_ms, run.c.timer_id)
        is_next = and_(key > tuple_(bindparam("after_ms"), bindparam("after")), run.c.until_ms <= bindparam("now_ms"))
        has_row = exists().where(timer.c.id == run.c.timer_id).correlate(run).label("has_row")
        over = select(run.c.until_ms, run.c.timer_id, has_row).where(of_shard, is_next, *may_have_slot())
        self.over_slots = statements(over.order_by(run.c.until_ms, run.c.timer_id).limit(bindparam("limit")))

    def _prepare_writes_of_runs(self, statements: Statements) -> None:
        columns = ["shard", *names_of(Run)]
        self.add_run = ObjectInsert(statements.bulk(run, *columns), "shard")
        new = statements.insert_or(run).inline().values(places(*columns))
        of_group: Any = {name: new.excluded[name] for name in ("group", "until_ms")}
        new = new.on_conflict_do_update(index_elements=["timer_id"], set_=of_group, where=run.c.group.is_(None))
        self.add_run_of_group = ObjectInsert(statements(new), "shard")
        goes_on = and_(run.c.timer_id == bindparam("at_id"), run.c.ended_ms.is_(None))
        end: Any = {"ended_ms": bindparam("ended_ms")}
        self.end_run = ObjectInsert(statements(update(run).where(goes_on).values(**end)), at_id="timer_id")
        # A forgotten timer gets no run, which nothing would remove.
        names = ("shard", *names_of(RunEnd))
        known = exists().where(timer.c.id == bindparam("timer_id", type_=run.c.timer_id.type))
        ended = select(*[bindparam(name, type_=run.c[name].type) for name in names], false()).where(known)
        new = statements.insert_or(run).from_select([*names, "requested"], ended, include_defaults=False)
        is_message, over_ms = run.c.schedule.is_(None), new.excluded.ended_ms
        earlier_ms = case((run.c.until_ms < over_ms, run.c.until_ms), else_=over_ms)
        changes: Any = {
            "group": func.coalesce(run.c.group, new.excluded.group),
            "until_ms": case((is_message, run.c.until_ms), else_=earlier_ms),
            "ended_ms": case((is_message, func.coalesce(run.c.ended_ms, over_ms)), else_=run.c.ended_ms),
        }
        new = new.on_conflict_do_update(index_elements=["timer_id"], set_=changes)
        self.end_slot = ObjectInsert(statements(new), "shard")

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
        self.runs = self._latest(select(run))
        columns = columns_of(Run, run)
        self.runs_at = statements(select(run.c.shard, *columns).where(run.c.timer_id.in_(numbered("timer"))))
        of_shard = select(*columns).where(run.c.shard == bindparam("shard"), *has_slot(bindparam("now_ms")))
        self.open_runs = statements(of_shard.order_by(run.c.timer_id))
        place = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)  # no lane is STOPPED
        offset = select(lane.c.offset_due_ms, lane.c.offset_seq).where(place).scalar_subquery()
        after_offset: Any = tuple_(timer.c.due_ms, timer.c.seq) > offset
        row = run.join(timer, timer.c.id == run.c.timer_id)
        self.pending_runs = self._latest(select(run).select_from(row).where(after_offset))

    def _latest(self, runs: Any) -> Prepared:
        """Look for the runs, and then read their rows: of many timers that are not meant, no bytes."""
        runs = runs.where(run.c.schedule == bindparam("schedule")).order_by(*latest_first(run))
        found = runs.limit(bindparam("limit")).subquery("run")
        rows = found.join(timer, timer.c.id == found.c.timer_id)
        columns = (*[found.c[name] for name in names_of(Run)], timer.c.shard, timer.c.task_id, *ROW)
        return self._statements(select(*columns).select_from(rows).order_by(*latest_first(found)))


def may_have_slot() -> tuple[ColumnElement[bool], ...]:
    """Match the runs that have a slot of their group, or had one until its time was over."""
    return run.c.ended_ms.is_(None), run.c.group.is_not(None)


def has_slot(now_ms: Any) -> tuple[ColumnElement[bool], ...]:
    """Match the runs that have a slot of their group."""
    return *may_have_slot(), run.c.until_ms > now_ms


def latest_first(runs: Any) -> list[ColumnElement[int]]:
    return [runs.c.instant_ms.desc(), runs.c.timer_id.desc()]


#: Returns the text that was encrypted (``Seal.open_text``), or what is readable of it (``Seal.shown_text``).
Opened = Callable[[str], str]

#: Columns of a run, and of its row.
RUN_COLUMNS, ROW_COLUMNS = len(names_of(Run)), len(ROW)


class SqlSchedules(StorePart):
    @property
    def _of_schedules(self) -> ScheduleStatements:
        return self._statements.of(ScheduleStatements)

    def due_schedules(self, shard: int, upto_ms: int, limit: int) -> list[Schedule]:
        due = self._of_schedules.due
        next_ms = self.next_schedule_ms(shard)
        if next_ms is None or next_ms > upto_ms:  # as mostly, once a second for each shard
            return []
        with self._database.reading() as connection:
            rows = due(connection, shard=shard, upto_ms=upto_ms, limit=limit)
            return [schedule_of(row, self._catalogue.seal.open_text) for row in rows]

    def next_schedule_ms(self, shard: int, skip: int = 0) -> int | None:
        return self._database.number(self._of_schedules.next, shard=shard, skip=skip)

    def schedules_named(self, names: Sequence[str]) -> list[tuple[int, Schedule]]:
        with self._database.reading() as connection:
            rows = self._of_schedules.named.each(connection, "name", names)
        opened = self._catalogue.seal.open_text
        return list({row.id: (int(row.shard), schedule_of(row[1:], opened)) for row in rows}.values())

    def runs_of(self, schedule_ids: Sequence[int], pending_only: bool, limit: int) -> list[tuple[Run, Row, int]]:
        query = self._of_schedules.pending_runs if pending_only else self._of_schedules.runs
        with self._database.reading() as connection:
            rows = [row for one in schedule_ids for row in query(connection, schedule=one, limit=limit)]
            found = self._runs(connection, rows)
        found.sort(key=lambda one: (one[0].at_ms, one[0].timer_id), reverse=True)
        return found[:limit]

    def runs_at(self, timer_ids: Sequence[int]) -> list[tuple[int, Run]]:
        with self._database.reading() as connection:
            rows = self._of_schedules.runs_at.each(connection, "timer", timer_ids)
        return list({row.timer_id: (int(row.shard), run_of(row[1:])) for row in rows}.values())

    def open_runs(self, shard: int, now_ms: int) -> list[Run]:
        with self._database.reading() as connection:
            return [run_of(row) for row in self._of_schedules.open_runs(connection, shard=shard, now_ms=now_ms)]

    def _runs(self, connection: Connection, rows: Iterable[Any]) -> list[tuple[Run, Row, int]]:
        row_of = self._catalogue.row
        return [
            (run_of(one[:RUN_COLUMNS]), row_of(connection, one[-ROW_COLUMNS:], one.task_id), int(one.shard))
            for one in rows
        ]


def schedule_of(row: Sequence[Any], opened: Opened) -> Schedule:
    """Return the schedule of a row, whose columns are in the order of its fields; ``opened`` decrypts a text."""
    found = Schedule(*row)
    if isinstance(found.definition, str):  # SQLite keeps a value of any type
        found.definition = opened(found.definition)
    return readable(found)


def revision_of(row: Sequence[Any], opened: Opened) -> Revision:
    """Return the revision of a row, as ``schedule_of`` does."""
    found = Revision(*row)
    found.number, found.at_ms = whole(found.number) or 0, whole(found.at_ms) or 0
    found.what, found.actor, found.reason = str(found.what), str(found.actor), str(found.reason)
    found.before = opened(str(found.before))
    return found


def run_of(row: Sequence[Any]) -> Run:
    """Return the run of a row, as ``schedule_of`` does."""
    found = Run(*row)
    found.requested = bool(found.requested)
    return found


def write_schedules(
    connection: Connection, statements: Statements, seal: Seal, shard: int, change: ScheduleChange
) -> None:
    """Write the part of a change that concerns schedules, behind the fence."""
    to = statements.of(ScheduleStatements)
    added, changed = (
        [replace(one, definition=seal.seal_definition(one.definition)) for one in some]
        for some in (change.added_schedules, change.schedules)
    )
    revisions = [replace(one, before=seal.seal_text(one.before)) if one.before else one for one in change.revisions]
    removed = [{"at_id": number, "at_shard": shard} for number in change.removed_schedules]
    to.remove.many_named(connection, removed)
    to.add.many(connection, added, shard)
    to.set.many(connection, changed, shard)
    if to.step.many(connection, change.schedule_steps, shard) != len(change.schedule_steps):
        raise StoreError(
            f"a step of shard {shard} is of a schedule that the store does not have; nothing was written; the shard is "
            "adopted anew, which reads the stored schedules; if this repeats, please report it"
        )
    moved = [{"at_id": number, "at_shard": shard, "to": home} for number, home in change.moved_schedules.items()]
    to.move.many_named(connection, moved)
    # Creations come first, in the order of a history. A row that was restored from a copy has an earlier revision, so
    # the number of its next one may be taken.
    to.add_revision.many(connection, [one for one in revisions if not one.before])
    to.set_revision.many(connection, [one for one in revisions if one.before])
    to.add_run.many(connection, [one for one in change.runs if one.group is None], shard)
    to.add_run_of_group.many(connection, [one for one in change.runs if one.group is not None], shard)
    ended = [one for one in change.run_ends if one.group is None]
    to.end_run.many(connection, ended)
    to.forget_slot.many(connection, [(one.timer_id,) for one in ended])  # a run that has outlived its row
    slots = [one for one in change.run_ends if one.group is not None]
    if to.end_slot.many(connection, slots, shard) != len(slots):
        to.forget_slot.many(connection, [(one.timer_id,) for one in slots])
    to.set_skip.many(connection, change.skips, shard)
