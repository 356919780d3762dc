"""Counts and times of a whole store. Every commit keeps the tally, so no pending row is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sqlalchemy import Connection

from celery_wheel.store.model import HOUR_MS, LaneState
from celery_wheel.store.ports.pages import Criteria, HourCount, NamedHourCount, Names, ShardLanes
from celery_wheel.store.sql.browse.pages import shards_of
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.lanes import read_lanes
from celery_wheel.store.sql.queries import browse as queries

#: Most names of the list of a filter; a longer list is of no use to people.
NAMES = 1_000


class Overview:
    """A part of ``SqlBrowse``."""

    _database: Database
    _shards: int

    def due_by_hour(self) -> list[HourCount]:
        with self._database.reading() as connection:
            found = connection.execute(queries.due_by_hour()).all()
        return [HourCount(shard, hour * HOUR_MS, int(pending)) for shard, hour, pending in found]

    def due_by_name(self, criteria: Criteria, by: str | None = None) -> list[NamedHourCount]:
        query = queries.due_by_name(criteria, shards_of(self._shards, criteria), by)
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return [NamedHourCount(hour * HOUR_MS, str(one), int(pending)) for hour, one, pending in found]

    def count_pending(self, shard: int) -> int:
        with self._database.reading() as connection:
            return int(connection.scalar(queries.pending_count(shard)) or 0)

    def names(self) -> Names:
        queues, tasks = Counter[str](), Counter[str]()
        with self._database.reading() as connection:
            # One query for both: the tally is long, the list of its names is not.
            for queue, task, count in connection.execute(queries.pending_by_name()):
                queues[queue] += int(count)
                tasks[task] += int(count)
        return Names(*(dict(sorted(found.most_common(NAMES))) for found in (queues, tasks)))

    def dispatched_since(self, since_ms: int) -> int:
        with self._database.reading() as connection:
            return int(connection.scalar(queries.dispatched_since(since_ms)) or 0)

    def lanes(self, shard: int) -> ShardLanes:
        with self._database.snapshot() as connection:
            lanes = read_lanes(connection, self._database.statements, shard)
            return ShardLanes(lanes, next_due(connection, shard, lanes))

    def schedulers(self) -> dict[str, int]:
        with self._database.reading() as connection:
            return {row.name: row.seen_ms for row in connection.execute(queries.schedulers())}


def next_due(connection: Connection, shard: int, lanes: Iterable[LaneState]) -> dict[int, int]:
    """Return the due time of the first row after each lane's offset; lanes without one are left out."""
    firsts = {lane.lane: connection.scalar(queries.first_due(shard, lane.lane, lane.offset)) for lane in lanes}
    return {lane: due_ms for lane, due_ms in firsts.items() if due_ms is not None}
