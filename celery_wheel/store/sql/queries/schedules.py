"""The queries of schedules for people: pages by name, and the runs, skips and changes of one name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, select, tuple_

from celery_wheel.store.model import SHARD_BITS
from celery_wheel.store.schedule_model import Revision, ScheduleCriteria, Skip
from celery_wheel.store.sql.browse.messages import TASK, TASKS
from celery_wheel.store.sql.schedules import SCHEDULE
from celery_wheel.store.sql.schema import lane, outcome, revision, schedule, schedule_run, schedule_skip, timer
from celery_wheel.store.sql.statement import columns_of


def nth_name(after: str, number: int) -> Select[Any]:
    """Select the name of row ``number`` after a name, counted from 1."""
    return select(schedule.c.name).where(schedule.c.name > after).order_by(schedule.c.name).offset(number - 1).limit(1)


def page(criteria: ScheduleCriteria, after: str, upto: str | None, limit: int) -> Select[Any]:
    wanted = [schedule.c.name > after, *_named(criteria)]
    wanted += [] if upto is None else [schedule.c.name <= upto]
    return select(*SCHEDULE).where(*wanted).order_by(schedule.c.name).limit(limit)


def counts() -> Select[Any]:
    """Select (total, paused, broken, run by the base scheduler, failing, the earliest next instant)."""
    noted = and_(~schedule.c.paused, ~schedule.c.broken, schedule.c.note != "")
    with_base, failing = and_(noted, schedule.c.next_ms.is_(None)), and_(noted, schedule.c.next_ms.is_not(None))
    flags = (schedule.c.paused, schedule.c.broken, with_base, failing)
    found = (func.sum(case((flag, 1), else_=0)) for flag in flags)
    columns: list[Any] = [func.count(), *found, func.min(schedule.c.next_ms)]
    return select(*columns).select_from(schedule)


def made_after(at_ms: int) -> Select[Any]:
    """Select (schedules that are to run and have made a later instant, the latest of these instants)."""
    runs = and_(schedule.c.next_ms.is_not(None), schedule.c.last_ms > at_ms)
    columns: list[Any] = [func.count(), func.max(schedule.c.last_ms)]
    return select(*columns).select_from(schedule).where(runs)


def named(name: str) -> Select[Any]:
    return select(*SCHEDULE).where(schedule.c.name == name)


def revisions(name: str, limit: int) -> Select[Any]:
    found = select(*columns_of(Revision, revision)).where(revision.c.name == name)
    return found.order_by(revision.c.id.desc()).limit(limit)


def runs(schedule_id: int, limit: int) -> Select[Any]:
    """Select the columns of runs, with the tasks that they became."""
    rows = schedule_run.join(TASKS, timer.c.id == schedule_run.c.timer_id)
    own = (schedule_run.c.instant_ms, schedule_run.c.ended_ms, schedule_run.c.requested)
    found = select(*own, *TASK).select_from(rows).where(schedule_run.c.schedule == schedule_id)
    return found.order_by(*_latest_first()).limit(limit)


def pending_runs(schedule_ids: Sequence[int], limit: int) -> Select[Any]:
    """Select (schedule, how many of its latest ``limit`` runs are pending)."""
    own = schedule_run.c.schedule == schedule.c.id
    latest = select(schedule_run.c.timer_id).where(own).order_by(*_latest_first()).limit(limit).correlate(schedule)
    run = latest.subquery("run")
    place = and_(lane.c.shard == timer.c.shard, lane.c.lane == timer.c.lane)  # no lane is STOPPED
    after_offset: Any = tuple_(timer.c.due_ms, timer.c.seq) > tuple_(lane.c.offset_due_ms, lane.c.offset_seq)
    rows = run.join(timer, timer.c.id == run.c.timer_id).join(lane, place)
    count = select(func.count()).select_from(rows).where(after_offset).scalar_subquery()
    return select(schedule.c.id, count).where(schedule.c.id.in_(schedule_ids))


def runs_after(shard: int, timer_id: int, limit: int) -> Select[Any]:
    """Select a shard's runs in the order of their rows; the low bits of a row's number are those of its shard."""
    of_schedule = schedule.c.id == schedule_run.c.schedule
    columns = (schedule_run.c.timer_id, schedule_run.c.instant_ms, schedule_run.c.requested)
    found = select(*columns, schedule.c.name, schedule.c.source)
    found = found.select_from(schedule_run.outerjoin(schedule, of_schedule))
    place = and_(schedule_run.c.timer_id > timer_id, _is_of_shard(shard))
    return found.where(place).order_by(schedule_run.c.timer_id).limit(limit)


def last_run(shard: int) -> Select[Any]:
    last = schedule_run.c.timer_id
    return select(last).where(_is_of_shard(shard)).order_by(last.desc()).limit(1)


def _is_of_shard(shard: int) -> ColumnElement[bool]:
    return schedule_run.c.timer_id.bitwise_and((1 << SHARD_BITS) - 1) == shard


def skips(schedule_id: int, limit: int) -> Select[Any]:
    found = select(*columns_of(Skip, schedule_skip)).where(schedule_skip.c.schedule == schedule_id)
    return found.order_by(schedule_skip.c.from_ms.desc()).limit(limit)


def last_outcomes(timer_ids: list[int]) -> Select[Any]:
    """Select (timer, kind, reason), a timer's last outcome last."""
    found = select(outcome.c.timer_id, outcome.c.kind, outcome.c.reason).where(outcome.c.timer_id.in_(timer_ids))
    return found.order_by(outcome.c.at_ms, outcome.c.id)


def _latest_first() -> list[ColumnElement[int]]:
    return [schedule_run.c.instant_ms.desc(), schedule_run.c.timer_id.desc()]


def _named(criteria: ScheduleCriteria) -> list[ColumnElement[bool]]:
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
