"""Counts and times for the whole store. Counts come from the tally, which every commit keeps; no row is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, literal, select, tuple_

from celery_wheel.store.browse.pages import Criteria
from celery_wheel.store.model import HOUR_MS, LaneState
from celery_wheel.store.schema import scheduler, tally, timer
from celery_wheel.store.sql import SqlStore

#: Names in a filter's list; beyond that nobody scrolls.
NAMES = 1_000


@dataclass(frozen=True, slots=True)
class Due:
    """How many messages of a shard are due in the hour that begins at ``from_ms``."""

    shard: int
    from_ms: int
    pending: int

    @property
    def to_ms(self) -> int:
        return self.from_ms + HOUR_MS


@dataclass(frozen=True, slots=True)
class Names:
    """The queues and tasks that have anything pending, with how much."""

    queues: dict[str, int]
    tasks: dict[str, int]


def due_by_hour(store: SqlStore) -> list[Due]:
    """What is pending, by shard and hour of due time, both in order."""
    total = func.sum(tally.c.pending)
    grouped = (
        select(tally.c.shard, tally.c.hour, total).where(tally.c.pending > 0).group_by(tally.c.shard, tally.c.hour)
    )
    with store.database.reading() as connection:
        found = connection.execute(grouped.order_by(tally.c.shard, tally.c.hour)).all()
    return [Due(shard, hour * HOUR_MS, int(pending)) for shard, hour, pending in found]


@dataclass(frozen=True, slots=True)
class DueBy:
    """How many messages are due in the hour that begins at ``from_ms``; of the queue or the task ``name``."""

    from_ms: int
    name: str
    pending: int


def due_by_name(store: SqlStore, criteria: Criteria, by: str | None = None) -> list[DueBy]:
    """What is pending by hour, and by ``"queue"`` or ``"task"``; without ``by`` the name is empty.

    Of the criteria the hours count that begin from ``from_ms`` on, or are under way then, and before ``to_ms``.
    """
    name = literal("") if by is None else {"queue": tally.c.queue, "task": tally.c.task}[by]
    wanted = [tally.c.pending > 0, tally.c.shard.in_(list(criteria.shards(store)))]
    wanted += [] if criteria.task is None else [tally.c.task == criteria.task]
    wanted += [] if criteria.queue is None else [tally.c.queue == criteria.queue]
    wanted += [] if criteria.from_ms is None else [tally.c.hour >= criteria.from_ms // HOUR_MS]
    wanted += [] if criteria.to_ms is None else [tally.c.hour * HOUR_MS < criteria.to_ms]
    grouped = select(tally.c.hour, name, func.sum(tally.c.pending)).where(*wanted)
    groups = (tally.c.hour,) if by is None else (tally.c.hour, name)
    with store.database.reading() as connection:
        found = connection.execute(grouped.group_by(*groups).order_by(*groups)).all()
    return [DueBy(hour * HOUR_MS, str(one), int(pending)) for hour, one, pending in found]


def waiting(store: SqlStore, shard: int) -> int:
    """How many messages of a shard are pending."""
    total = select(func.sum(tally.c.pending)).where(tally.c.shard == shard, tally.c.pending > 0)
    with store.database.reading() as connection:
        return int(connection.scalar(total) or 0)


def names(store: SqlStore) -> Names:
    """What a filter can be set to: the names with the most pending, NAMES of each at most."""
    total = func.sum(tally.c.pending)
    grouped = select(tally.c.queue, tally.c.task, total).where(tally.c.pending > 0)
    queues, tasks = Counter[str](), Counter[str]()
    with store.database.reading() as connection:
        # Both out of one pass: it is the tally that is long, not the list of its names.
        for queue, task, count in connection.execute(grouped.group_by(tally.c.queue, tally.c.task)):
            queues[queue] += int(count)
            tasks[task] += int(count)
    return Names(*(dict(sorted(found.most_common(NAMES))) for found in (queues, tasks)))


def next_due(connection: Connection, shard: int, lanes: Iterable[LaneState]) -> dict[int, int]:
    """When the first row behind each lane's offset is due, as the connection sees it; idle lanes are left out."""
    place, firsts = tuple_(timer.c.due_ms, timer.c.seq), dict[int, int | None]()
    for lane in lanes:
        behind = and_(timer.c.shard == shard, timer.c.lane == lane.lane, place > tuple_(*lane.offset))
        first = select(timer.c.due_ms).where(behind).order_by(timer.c.due_ms, timer.c.seq).limit(1)
        firsts[lane.lane] = connection.scalar(first)
    return {lane: due_ms for lane, due_ms in firsts.items() if due_ms is not None}


def standing(store: SqlStore, shard: int) -> tuple[list[LaneState], dict[int, int]]:
    """A shard's lanes, and ``next_due`` of them at the same moment."""
    with store.database.snapshot() as connection:
        lanes = store.lanes_seen_by(connection, shard)
        return lanes, next_due(connection, shard, lanes)


def schedulers(store: SqlStore) -> dict[str, int]:
    """The schedulers of the last day, with when each was last heard of."""
    with store.database.reading() as connection:
        rows = connection.execute(select(scheduler.c.name, scheduler.c.seen_ms).order_by(scheduler.c.name)).all()
    return {row.name: row.seen_ms for row in rows}
