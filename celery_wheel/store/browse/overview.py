"""Counts and times for the whole store. Counts come from the tally, which every commit keeps; no row is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import Connection, and_, func, literal, select, tuple_

from celery_wheel.store.browse.pages import shards_of
from celery_wheel.store.database import Database
from celery_wheel.store.model import HOUR_MS, LaneState
from celery_wheel.store.ports.pages import Criteria, Due, DueBy, Names
from celery_wheel.store.schema import batch, scheduler, tally, timer

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore

#: Names in a filter's list; beyond that nobody scrolls.
NAMES = 1_000


class Overview:
    """A part of ``SqlBrowse``."""

    _store: SqlStore
    _database: Database

    def due_by_hour(self) -> list[Due]:
        total = func.sum(tally.c.pending)
        grouped = (
            select(tally.c.shard, tally.c.hour, total).where(tally.c.pending > 0).group_by(tally.c.shard, tally.c.hour)
        )
        with self._database.reading() as connection:
            found = connection.execute(grouped.order_by(tally.c.shard, tally.c.hour)).all()
        return [Due(shard, hour * HOUR_MS, int(pending)) for shard, hour, pending in found]

    def due_by_name(self, criteria: Criteria, by: str | None = None) -> list[DueBy]:
        name = literal("") if by is None else {"queue": tally.c.queue, "task": tally.c.task}[by]
        wanted = [tally.c.pending > 0, tally.c.shard.in_(list(shards_of(self._store, criteria)))]
        wanted += [] if criteria.task is None else [tally.c.task == criteria.task]
        wanted += [] if criteria.queue is None else [tally.c.queue == criteria.queue]
        wanted += [] if criteria.from_ms is None else [tally.c.hour >= criteria.from_ms // HOUR_MS]
        wanted += [] if criteria.to_ms is None else [tally.c.hour * HOUR_MS < criteria.to_ms]
        grouped = select(tally.c.hour, name, func.sum(tally.c.pending)).where(*wanted)
        groups = (tally.c.hour,) if by is None else (tally.c.hour, name)
        with self._database.reading() as connection:
            found = connection.execute(grouped.group_by(*groups).order_by(*groups)).all()
        return [DueBy(hour * HOUR_MS, str(one), int(pending)) for hour, one, pending in found]

    def waiting(self, shard: int) -> int:
        total = select(func.sum(tally.c.pending)).where(tally.c.shard == shard, tally.c.pending > 0)
        with self._database.reading() as connection:
            return int(connection.scalar(total) or 0)

    def names(self) -> Names:
        total = func.sum(tally.c.pending)
        grouped = select(tally.c.queue, tally.c.task, total).where(tally.c.pending > 0)
        queues, tasks = Counter[str](), Counter[str]()
        with self._database.reading() as connection:
            # Both out of one pass: it is the tally that is long, not the list of its names.
            for queue, task, count in connection.execute(grouped.group_by(tally.c.queue, tally.c.task)):
                queues[queue] += int(count)
                tasks[task] += int(count)
        return Names(*(dict(sorted(found.most_common(NAMES))) for found in (queues, tasks)))

    def dispatched_since(self, since_ms: int) -> int:
        total = select(func.sum(batch.c.count)).where(batch.c.dispatched_ms >= since_ms)
        with self._database.reading() as connection:
            return int(connection.scalar(total) or 0)

    def standing(self, shard: int) -> tuple[list[LaneState], dict[int, int]]:
        with self._database.snapshot() as connection:
            lanes = self._store.lanes_seen_by(connection, shard)
            return lanes, next_due(connection, shard, lanes)

    def schedulers(self) -> dict[str, int]:
        with self._database.reading() as connection:
            rows = connection.execute(select(scheduler.c.name, scheduler.c.seen_ms).order_by(scheduler.c.name)).all()
        return {row.name: row.seen_ms for row in rows}


def next_due(connection: Connection, shard: int, lanes: Iterable[LaneState]) -> dict[int, int]:
    """When the first row behind each lane's offset is due, as the connection sees it; idle lanes are left out."""
    place, firsts = tuple_(timer.c.due_ms, timer.c.seq), dict[int, int | None]()
    for lane in lanes:
        behind = and_(timer.c.shard == shard, timer.c.lane == lane.lane, place > tuple_(*lane.offset))
        first = select(timer.c.due_ms).where(behind).order_by(timer.c.due_ms, timer.c.seq).limit(1)
        firsts[lane.lane] = connection.scalar(first)
    return {lane: due_ms for lane, due_ms in firsts.items() if due_ms is not None}
