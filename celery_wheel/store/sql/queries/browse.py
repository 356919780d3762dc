"""The queries of ``SqlBrowse``, for every dialect. SQLAlchemy compiles each shape once and keeps it.

::

    lines     TASK, OUTCOME, SETTLEMENT          the columns of the lines of pages
    tasks     by id, by task id, with bytes      detail, heads
    pages     sorted lines of a range            sources, dispatch_times
    bounds    how far a source may read          sources
    counts    of the tally, of settlements       overview
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    select,
    tuple_,
)

from celery_wheel.store.model import HOUR_MS, Position
from celery_wheel.store.ports.pages import ALL_BYTES, END, Criteria, Settlement, StoppedTask, Task
from celery_wheel.store.sql.schema import batch, outcome, route, tally, timer, total
from celery_wheel.store.sql.statement import columns_of

Condition = ColumnElement[bool]

TASK = columns_of(Task, timer, route, without=["dispatched_ms"])
OUTCOME = columns_of(StoppedTask, outcome, timer, route)
SETTLEMENT = columns_of(Settlement, batch)

TIMER_KEY = (timer.c.due_ms, timer.c.seq)
OUTCOME_KEY = (outcome.c.at_ms, outcome.c.id)

_ADDRESS = (route.c.exchange, route.c.exchange_type, route.c.routing_key, route.c.queue, timer.c.envelope_id)
_BYTES = (timer.c.packing, timer.c.message)

#: Tasks with their names.
TASKS = timer.join(route, route.c.id == timer.c.route)

# -- tasks ------------------------------------------------------------------------------------------


def with_id(timer_id: int) -> Condition:
    return timer.c.id == timer_id


def with_task_id(shard: int, task_id: str) -> Condition:
    return (timer.c.shard == shard) & (timer.c.task_id == task_id)


def details(where: Condition, limit: int, most_bytes: int) -> Select[Any]:
    """Select tasks, their addresses and their bytes, the latest due first; NULL for bytes of a larger message."""
    parts: Sequence[Any] = _BYTES
    if most_bytes <= 0:
        parts = [null().label(column.name) for column in _BYTES]
    elif most_bytes < ALL_BYTES:  # a row in which the condition is false costs no read of its bytes
        parts = [case((timer.c.size <= most_bytes, column)).label(column.name) for column in _BYTES]
    found = select(*TASK, *_ADDRESS, *parts).select_from(TASKS).where(where)
    return found.order_by(*_descending(TIMER_KEY)).limit(limit)


def outcomes_of(timer_id: int, limit: int) -> Select[Any]:
    found = select(*OUTCOME).select_from(_outcome_timer()).where(outcome.c.timer_id == timer_id)
    return found.order_by(*OUTCOME_KEY).limit(limit)


def heads(ids: Sequence[int]) -> Select[Any]:
    columns = (timer.c.id, *_BYTES, route.c.exchange, route.c.routing_key)
    return select(*columns).select_from(TASKS).where(timer.c.id.in_(ids))


def tasks(ids: Sequence[int]) -> Select[Any]:
    return select(*TASK).select_from(TASKS).where(timer.c.id.in_(ids))


def tasks_of(shard: int, task_ids: Sequence[str]) -> Select[Any]:
    return select(*TASK).select_from(TASKS).where((timer.c.shard == shard) & timer.c.task_id.in_(task_ids))


# -- pages ------------------------------------------------------------------------------------------


def in_lane(shard: int, lane: int) -> Condition:
    return and_(timer.c.shard == shard, timer.c.lane == lane)


def within(low: Position, high: Position) -> Condition:
    """Match timers in (low, high]."""
    place = tuple_(*TIMER_KEY)
    return and_(place > tuple_(*low), place <= tuple_(*high))


def named(criteria: Criteria) -> list[Condition]:
    wanted = [(route.c.task, criteria.task), (route.c.target, criteria.queue), (timer.c.key, criteria.key)]
    return [column == name for column, name in wanted if name is not None]


def of_kind(shard: int, kind: str, criteria: Criteria, before: Position) -> Condition:
    times = _between(OUTCOME_KEY, criteria, before)
    return and_(outcome.c.shard == shard, outcome.c.kind == kind, *times)


def task_page(where: Condition, names: Sequence[Condition], limit: int, *, descending: bool = False) -> Select[Any]:
    order = _descending(TIMER_KEY) if descending else TIMER_KEY
    return select(*TASK).select_from(TASKS).where(where, *names).order_by(*order).limit(limit)


def outcome_page(where: Condition, names: Sequence[Condition], limit: int) -> Select[Any]:
    found = select(*OUTCOME).select_from(_outcome_timer()).where(where, *names)
    return found.order_by(*_descending(OUTCOME_KEY)).limit(limit)


def settlement_page(shard: int, lane: int, criteria: Criteria, before: Position, limit: int) -> Select[Any]:
    key = (batch.c.dispatched_ms, batch.c.id)
    found = select(*SETTLEMENT).where(batch.c.shard == shard, batch.c.lane == lane, *_between(key, criteria, before))
    return found.order_by(*_descending(key)).limit(limit)


def settlements_from(shard: int, lane: int, place: Position, limit: int) -> Select[Any]:
    """Select the settlements of a lane that end at or after the position, in order of their ends."""
    ends = (batch.c.to_due_ms, batch.c.to_seq)
    found = select(*SETTLEMENT).where(batch.c.shard == shard, batch.c.lane == lane, tuple_(*ends) >= tuple_(*place))
    return found.order_by(*ends).limit(limit)


# -- bounds -----------------------------------------------------------------------------------------


def row_count(table: FromClause, where: Condition, limit: int) -> Select[Any]:
    """Count the rows, but no further than ``limit``."""
    some = select(literal_column("1")).select_from(table).where(where).limit(limit).subquery()
    return select(func.count()).select_from(some)


def nth_key(
    key: Sequence[ColumnElement[Any]], where: Condition, number: int, *, descending: bool = False
) -> Select[Any]:
    """Select the key of row ``number``, counted from 1."""
    order = _descending(key) if descending else key
    return select(*key).where(where).order_by(*order).offset(number - 1).limit(1)


def pending_hours(shard: int, criteria: Criteria, first: int, limit: int) -> Select[Any]:
    """Select (hour, pending) of the tally from hour ``first`` on, where these names have pending tasks."""
    wanted = [tally.c.shard == shard, tally.c.hour >= first, tally.c.pending > 0, *_of_names(criteria)]
    found = select(tally.c.hour, func.sum(tally.c.pending)).where(*wanted)
    return found.group_by(tally.c.hour).order_by(tally.c.hour).limit(limit)


# -- counts -----------------------------------------------------------------------------------------


def due_by_name(criteria: Criteria, shards: Collection[int], by: str | None) -> Select[Any]:
    name = literal("") if by is None else {"queue": route.c.target, "task": route.c.task}[by]
    wanted = [tally.c.pending > 0, tally.c.shard.in_(shards), *_of_names(criteria)]
    wanted += [] if criteria.from_ms is None else [tally.c.hour >= criteria.from_ms // HOUR_MS]
    wanted += [] if criteria.to_ms is None else [tally.c.hour * HOUR_MS < criteria.to_ms]
    groups = (tally.c.hour,) if by is None else (tally.c.hour, name)
    counts = tally if by is None else tally.join(route, route.c.id == tally.c.route)
    found = select(tally.c.hour, name, func.sum(tally.c.pending)).select_from(counts).where(*wanted)
    return found.group_by(*groups).order_by(*groups)


def pending_count(shard: int) -> Select[Any]:
    return select(func.sum(total.c.pending)).where(total.c.shard == shard, total.c.kind == "name")


def pending_by_name() -> Select[Any]:
    key = (route.c.target, route.c.task)
    found = select(*key, func.sum(total.c.pending)).select_from(total.join(route, route.c.id == total.c.number))
    return found.where(total.c.kind == "name", total.c.pending > 0).group_by(*key)


def dispatched_since(since_ms: int) -> Select[Any]:
    return select(func.sum(batch.c.count)).where(batch.c.dispatched_ms >= since_ms)


def first_due(shard: int, lane: int, after: Position) -> Select[Any]:
    after_it = and_(in_lane(shard, lane), tuple_(*TIMER_KEY) > tuple_(*after))
    return select(timer.c.due_ms).where(after_it).order_by(*TIMER_KEY).limit(1)


def _descending(key: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    return [column.desc() for column in key]


def _outcome_timer() -> FromClause:
    return outcome.join(timer, timer.c.id == outcome.c.timer_id).join(route, route.c.id == timer.c.route)


def _between(key: Sequence[ColumnElement[Any]], criteria: Criteria, before: Position) -> list[Condition]:
    """Match keys (an instant and an id) below ``before`` and within the criteria's times."""
    last = min(before, END if criteria.to_ms is None else Position(criteria.to_ms, 0))
    first = [] if criteria.from_ms is None else [key[0] >= criteria.from_ms]
    return [tuple_(*key) < tuple_(*last), *first]


def _of_names(criteria: Criteria) -> list[Condition]:
    """Match the counts of the criteria's task and queue."""
    names = [(route.c.task, criteria.task), (route.c.target, criteria.queue)]
    wanted = [column == name for column, name in names if name is not None]
    return [tally.c.route.in_(select(route.c.id).where(*wanted))] if wanted else []
