"""Recurring schedules for people: pages by name, and one name with its changes, runs and skips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, select, tuple_

from celery_wheel.store import schedule_model
from celery_wheel.store.model import SHARD_BITS, STOPPED
from celery_wheel.store.ports.pages import Task
from celery_wheel.store.sql.browse.messages import TASK, TASKS, Messages, lanes_of, rows_of, state_of
from celery_wheel.store.sql.schedules import SCHEDULE, latest_first, revision_of, schedule_of
from celery_wheel.store.sql.schema import lane, outcome, revision, run, schedule, schedule_skip, timer
from celery_wheel.store.sql.statement import columns_of
from celery_wheel.values import json_object

#: Rows that the filter of one page may skip.
SCAN = 20_000

#: Runs of a schedule among which the pending ones are counted.
PENDING_RUNS = 20

#: Most runs, skips and changes of a schedule that are returned.
RUNS = 60


class ScheduleViews(Messages):
    def schedules(
        self, criteria: schedule_model.ScheduleCriteria, after: str = "", limit: int = 100
    ) -> schedule_model.SchedulePage:
        """Return schedules in the order of their names, after the name ``after``."""
        later = select(schedule.c.name).where(schedule.c.name > after).order_by(schedule.c.name)
        wanted = select(*SCHEDULE).where(schedule.c.name > after, *_named(criteria))
        with self._database.snapshot() as connection:
            upto: str | None = connection.scalar(later.offset(SCAN + limit - 1).limit(1))
            if upto is not None:
                wanted = wanted.where(schedule.c.name <= upto)
            rows = connection.execute(wanted.order_by(schedule.c.name).limit(limit + 1)).all()
        items = [schedule_of(row, self._catalogue.seal.shown_text) for row in rows[:limit]]
        following = items[-1].name if len(rows) > limit else upto
        return schedule_model.SchedulePage([one for one in items if _is_meant(one, criteria)], following)

    def schedule_names(self, source: str, after: str = "") -> list[str]:
        """Return names of a source's schedules in their order, after the name ``after``, 100,000 at the most."""
        own = (schedule.c.source == source, schedule.c.name > after)
        with self._database.reading() as connection:
            return list(
                connection.scalars(select(schedule.c.name).where(*own).order_by(schedule.c.name).limit(100_000))
            )

    def schedule_counts(self) -> schedule_model.ScheduleCounts:
        paused, runs = (and_(flag, ~schedule.c.broken) for flag in (schedule.c.paused, ~schedule.c.paused))
        noted = and_(runs, schedule.c.note != "")
        with_base, failing = and_(noted, schedule.c.next_ms.is_(None)), and_(noted, schedule.c.next_ms.is_not(None))
        flags = (paused, schedule.c.broken, with_base, failing)
        sums: list[Any] = [func.coalesce(func.sum(case((flag, 1), else_=0)), 0) for flag in flags]
        with self._database.reading() as connection:
            query = select(func.count(), *sums, func.min(schedule.c.next_ms)).select_from(schedule)
            total, *states, next_ms = connection.execute(query).one()
        return schedule_model.ScheduleCounts(total, *[int(count) for count in states], next_ms)  # type: ignore[call-arg]

    def silent_schedules(self, now_ms: int) -> schedule_model.SilentSchedules:
        """Count the schedules that have made their instants up to a later one than the look-ahead explains."""
        runs = and_(schedule.c.next_ms.is_not(None), schedule.c.last_ms > now_ms + schedule_model.AHEAD_MS)
        columns: list[Any] = [func.count(), func.max(schedule.c.last_ms)]
        with self._database.reading() as connection:
            return schedule_model.SilentSchedules(
                *connection.execute(select(*columns).select_from(schedule).where(runs)).one()
            )

    def pending_runs(self, schedule_ids: Sequence[int]) -> dict[int, int]:
        """Return the number of pending runs among the latest twenty of each schedule; without 0."""
        if not schedule_ids:
            return {}
        own = select(run.c.timer_id).where(run.c.schedule == schedule.c.id).order_by(*latest_first(run))
        latest = own.limit(PENDING_RUNS).correlate(schedule).subquery("run")
        place = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)  # no lane is STOPPED
        after_offset: Any = tuple_(timer.c.due_ms, timer.c.seq) > tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
        rows = latest.join(timer, timer.c.id == latest.c.timer_id).join(lane, place)
        count = select(func.count()).select_from(rows).where(after_offset).scalar_subquery()
        with self._database.reading() as connection:
            found = connection.execute(select(schedule.c.id, count).where(schedule.c.id.in_(schedule_ids)))
            return {number: count for number, count in found if count}

    def schedule(self, name: str) -> schedule_model.ScheduleDetail | None:
        """Return the schedule of a name with its last changes, runs and skips, at most sixty of each; None where the
        store has no schedule of that name and no change of one."""
        changes = select(*columns_of(schedule_model.Revision, revision)).where(revision.c.name == name)
        skips = (
            select(*columns_of(schedule_model.Skip, schedule_skip)).order_by(schedule_skip.c.from_ms.desc()).limit(RUNS)
        )
        opened = self._catalogue.seal.open_text  # of a part of a definition, a form would make the whole
        with self._database.snapshot() as connection:
            row = connection.execute(select(*SCHEDULE).where(schedule.c.name == name)).one_or_none()
            found = None if row is None else schedule_of(row, opened)
            rows = connection.execute(changes.order_by(revision.c.id.desc()).limit(RUNS))
            revisions = [revision_of(row, opened) for row in rows]
            if found is None and not revisions:
                return None
            number = revisions[0].schedule if found is None else found.id
            rows = connection.execute(skips.where(schedule_skip.c.schedule == number))
            return schedule_model.ScheduleDetail(
                found, revisions, self._runs(connection, number), [schedule_model.Skip(*row) for row in rows]
            )

    def schedule_ids(self, name: str) -> list[int]:
        """Return the ids of the schedules that have had the name, as far as revisions tell."""
        with self._database.reading() as connection:
            ids = select(revision.c.schedule).where(revision.c.name == name).distinct()
            return sorted(connection.execute(ids).scalars())

    def runs_after(self, shard: int, timer_id: int, limit: int) -> list[schedule_model.RunOfSource]:
        """Return a shard's runs of rows after a row, in the order in which they were made."""
        columns = (run.c.timer_id, run.c.instant_ms, run.c.requested)
        rows = run.outerjoin(schedule, schedule.c.id == run.c.schedule)
        query = select(*columns, schedule.c.name, schedule.c.source).select_from(rows)
        later = query.where(run.c.timer_id > timer_id, _is_of_shard(shard)).order_by(run.c.timer_id)
        with self._database.reading() as connection:
            found = connection.execute(later.limit(limit)).all()
        return [schedule_model.RunOfSource(row[0], row[1] or 0, bool(row[2]), *row[3:]) for row in found]

    def runs_since(self, schedule_ids: Sequence[int], after_ms: int) -> list[tuple[int, int, int]]:
        """Return schedule, row and instant of the schedules' own runs after an instant that are not withdrawn."""
        since = (run.c.instant_ms > after_ms, ~run.c.requested, ~_is_withdrawn())
        query = select(run.c.schedule, run.c.timer_id, run.c.instant_ms).where(*since)
        with self._database.reading() as connection:
            return [(*row,) for row in rows_of(connection, query, schedule_ids, run.c.schedule)]

    def withdrawn_among(self, timer_ids: Sequence[int]) -> set[int]:
        """Return those of these rows that were made ahead, and withdrawn before the instants of their runs."""
        withdrawn = select(run.c.timer_id).where(_is_withdrawn())
        with self._database.reading() as connection:
            return {row.timer_id for row in rows_of(connection, withdrawn, timer_ids, run.c.timer_id)}

    def changed_by_others(self, names: Sequence[str], source: str) -> set[str]:
        """Return the names of the schedules whose last change is not known to be by their source."""
        last = and_(revision.c.schedule == schedule.c.id, revision.c.number == schedule.c.revision)
        found = select(schedule.c.name).outerjoin(revision, last).where(func.coalesce(revision.c.actor, "") != source)
        with self._database.reading() as connection:
            return {row.name for row in rows_of(connection, found, names, schedule.c.name)}

    def last_run(self, shard: int) -> int:
        """Return the row of a shard's last run; 0 where it has none."""
        last = run.c.timer_id
        with self._database.reading() as connection:
            return connection.scalar(select(last).where(_is_of_shard(shard)).order_by(last.desc()).limit(1)) or 0

    def _runs(self, connection: Connection, number: int) -> list[schedule_model.ScheduleRun]:
        own = (run.c.instant_ms, run.c.ended_ms, run.c.requested)
        runs = select(*own, *TASK).select_from(run.join(TASKS, timer.c.id == run.c.timer_id))
        runs = runs.where(run.c.schedule == number).order_by(*latest_first(run)).limit(RUNS)
        rows = connection.execute(runs).all()
        tasks = {task.id: task for task in (Task(*row[len(own) :]) for row in rows)}
        lanes = lanes_of(connection, {task.shard for task in tasks.values()})
        ends = select(outcome.c.timer_id, outcome.c.kind, outcome.c.reason).where(outcome.c.timer_id.in_([*tasks]))
        in_order = ends.order_by(outcome.c.at_ms, outcome.c.id)
        last: dict[int, Any] = {row.timer_id: row for row in connection.execute(in_order)}
        states = {id_: state_of(task, lanes, last[id_].kind if id_ in last else None) for id_, task in tasks.items()}
        times = self.dispatches(connection, [one for one in tasks.values() if states[one.id] == "dispatched"])
        return [
            schedule_model.ScheduleRun(
                instant_ms=row.instant_ms,
                timer_id=id_,
                task_id=task.task_id,
                due_ms=task.eta_ms,  # a position may be later: a task that is accepted late follows those before it
                state=states[id_],
                dispatched_ms=next(iter(times.get(id_, ())), None),
                ended_ms=None if (row.ended_ms or row.instant_ms) < row.instant_ms else row.ended_ms,  # withdrawn
                requested=bool(row.requested),
                reason=last[id_].reason if id_ in last and task.lane == STOPPED else "",
            )
            for row, (id_, task) in zip(rows, tasks.items(), strict=True)
        ]


def _is_withdrawn() -> ColumnElement[bool]:
    return and_(run.c.ended_ms.is_not(None), run.c.ended_ms < run.c.instant_ms)


def _is_of_shard(shard: int) -> ColumnElement[bool]:
    """Match the runs of a shard: the low bits of a row's number are those of its shard."""
    return run.c.timer_id.bitwise_and((1 << SHARD_BITS) - 1) == shard


def _named(criteria: schedule_model.ScheduleCriteria) -> list[ColumnElement[bool]]:
    equal = [(schedule.c.shard, criteria.shard), (schedule.c.source, criteria.source)]
    found = [column == value for column, value in equal if value is not None]
    if criteria.task is not None:  # as ``to_text`` writes it; arguments may have the same text: see ``_is_meant``
        found.append(schedule.c.definition.contains(f'"task":{json.dumps(criteria.task)}', autoescape=True))
    if criteria.queue is not None:
        found.append(schedule.c.definition.contains(f'"queue":{json.dumps(criteria.queue)}', autoescape=True))
    if criteria.prefix is not None:  # SQLite ignores case
        found.append(schedule.c.name.startswith(criteria.prefix, autoescape=True))
    flags = [(schedule.c.paused, criteria.paused), (schedule.c.broken, criteria.broken)]
    found += [column if value else ~column for column, value in flags if value is not None]
    return found if criteria.part is None else [*found, schedule.c.name.icontains(criteria.part, autoescape=True)]


def _is_meant(one: schedule_model.Schedule, criteria: schedule_model.ScheduleCriteria) -> bool:
    """Whether a schedule that the query has found has the prefix, the task and the queue of a filter."""
    if not one.name.startswith(criteria.prefix or ""):
        return False
    if criteria.task is None and criteria.queue is None:
        return True
    definition = json_object(one.definition)
    options = definition.get("options")
    queue = options.get("queue") if isinstance(options, dict) else None
    return criteria.task in (None, definition.get("task")) and criteria.queue in (None, queue)
