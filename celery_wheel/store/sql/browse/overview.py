"""Counts and times of a whole store. Every commit keeps the tally, so no pending row is counted."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import HOUR_MS, Gate, LaneState
from celery_wheel.store.ports.overview import LaneHead, OverviewRows, ShardHead, StoreSize
from celery_wheel.store.ports.pages import Criteria, NamedHourCount, Names, ShardLanes
from celery_wheel.store.sql.browse.pages import shards_of
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import lane_state, read_lanes, shard_record
from celery_wheel.store.sql.queries import browse as queries
from celery_wheel.store.sql.statements.overview import OverviewStatements
from celery_wheel.store.store_model import ServerState

#: Most names of the list of a filter; a longer list is of no use to people.
NAMES = 1_000


class StoreCounts:
    """A part of ``SqlBrowse``."""

    _database: Database
    _shards: int

    def overview(
        self, now_ms: int, before_ms: int, *, with_seconds: bool = False, with_levels: bool = False
    ) -> OverviewRows:
        statements, before_hour = self._database.statements.of(OverviewStatements), before_ms // HOUR_MS
        shards = statements.shards_with_levels if with_levels else statements.shards
        with self._database.snapshot() as connection:
            heads = [ShardHead(shard_record(row), int(row.inbox)) for row in shards(connection)]
            lanes = [
                LaneHead(row.shard, lane_state(row), row.next_due_ms, row.overdue)
                for row in statements.lanes(connection, now_ms=now_ms)
            ]
            gates = [(shard, Gate(*gate)) for shard, *gate in statements.gates(connection)]
            if with_seconds:
                near = {"now_ms": now_ms, "until_ms": now_ms + HOUR_MS}
                found = statements.counts_with_seconds(connection, before_hour=before_hour, **near)
            else:
                found = statements.counts(connection, before_hour=before_hour)
            counts = defaultdict[str, dict[Any, int]](dict)
            for kind, number, queue, task, value in found:
                name = {"name": (queue, task), "seen": queue}.get(kind, number)
                counts[kind][name] = int(value)
        return OverviewRows(
            shards=heads,
            lanes=lanes,
            gates=gates,
            pending=counts["pending"],
            names=counts["name"],
            hours=counts["hour"],
            days=counts["day"],
            seconds=counts["second"] if with_seconds else None,
            schedulers=counts["seen"],
        )

    def size(self) -> StoreSize:
        return self._database.size()

    def server(self) -> ServerState | None:
        return self._database.server()

    def levels(self, shard: int) -> list[dict[str, Any]]:
        with self._database.reading() as connection:
            found = self._database.statements.of(OverviewStatements).levels(connection, shard=shard).scalar()
        return [] if found is None else list(json.loads(found))

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


def next_due(connection: Connection, shard: int, lanes: Iterable[LaneState]) -> dict[int, int]:
    """Return the due time of the first row after each lane's offset; lanes without one are left out."""
    firsts = {lane.lane: connection.scalar(queries.first_due(shard, lane.lane, lane.offset)) for lane in lanes}
    return {lane: due_ms for lane, due_ms in firsts.items() if due_ms is not None}
