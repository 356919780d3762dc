"""Pages of a store by key: each page begins after the last line of the previous page, at whatever depth.

::

    shard 0, lane 0  ──┐  offset ├──── pending ────►  range of the position index, from the page's beginning
    shard 0, lane 1  ──┼─► merged in order of position ─► page ─► next: the last line's position
    shard 1, lane 0  ──┘                                               None: no row comes after it

    a filter   only hours in which the tally has pending tasks of these names are read
    SCAN       rows that a filter may skip before the page ends short; ``next`` says where to continue

A position is unique in the whole store, so one order holds for all shards.

Promises: a page shows one moment. Over a walk of pages, a task that stays pending at its position comes exactly once.
Non-promises: a task that is moved between two pages comes at its new position: twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, and_

from celery_wheel.store.model import HOUR_MS, ORIGIN, LaneState, Position
from celery_wheel.store.ports.pages import END, Criteria, Page, Settlement, StoppedTask, Task
from celery_wheel.store.sql.browse.dispatch_times import with_times
from celery_wheel.store.sql.browse.sources import Backward, Forward, Outcomes, Settlements, Source, merged
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.queries import browse as queries

#: Most rows read for one page, shared by its sources: each row costs a visit to the table's tree.
SCAN = 20_000

#: Rows that each source may read at least, so that the next page begins further on.
SCAN_LEAST = 100

#: Most hours of the tally read for one page of a shard.
HOURS = 1_000

#: Most ranges of hours read for one page, shared by its lanes: each range takes two statements.
SPANS = 48


class Pages:
    """A part of ``SqlBrowse``."""

    _database: Database
    _shards: int

    def pending(self, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            lanes = self._lanes(connection, criteria)
            begin = max(after, criteria.first)
            most = max(4, SPANS // max(1, len(lanes)))
            spans = {
                shard: _hours(connection, shard, criteria, begin, limit, most)
                for shard in {shard for shard, _ in lanes}
            }
            for shard, lane in lanes:
                hours, end = spans[shard]
                low, high = max(lane.offset, begin), criteria.last
                ranges = [(max(low, one), min(high, other)) for one, other in hours]
                ranges = [(one, other) for one, other in ranges if one < other]
                end = end if end is not None and end < high else None
                where = queries.in_lane(shard, lane.lane)
                sources.append(Forward(connection, where, ranges, queries.named(criteria), _share(len(lanes)), end))
            return merged(sources, limit)

    def dispatched(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            lanes = [one for one in self._lanes(connection, criteria, closed=True) if one[1].offset > criteria.first]
            last = min(criteria.last, before.previous())
            for shard, lane in lanes:
                range_ = queries.within(criteria.first, min(last, lane.offset))
                where = and_(queries.in_lane(shard, lane.lane), range_)
                sources.append(Backward(connection, where, queries.named(criteria), _share(len(lanes))))
            page: Page[Task] = merged(sources, limit, newest_first=True)
            return replace(page, items=with_times(connection, page.items))

    def outcomes(
        self, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
    ) -> Page[StoppedTask]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            places = [(shard, kind) for shard in shards_of(self._shards, criteria) for kind in dict.fromkeys(kinds)]
            for shard, kind in places:
                where = queries.of_kind(shard, kind, criteria, before)
                sources.append(Outcomes(connection, where, queries.named(criteria), _share(len(places))))
            return merged(sources, limit, newest_first=True)

    def batches(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Settlement]:
        with self._database.snapshot() as connection:
            lanes = self._lanes(connection, criteria, closed=True)
            sources = [Settlements(connection, shard, lane.lane, criteria, before) for shard, lane in lanes]
            return merged(sources, limit, newest_first=True)

    def _lanes(
        self, connection: Connection, criteria: Criteria, *, closed: bool = False
    ) -> list[tuple[int, LaneState]]:
        return [
            (shard, lane)
            for shard in shards_of(self._shards, criteria)
            for lane in read_lanes(connection, self._database.statements, shard, closed=closed)
        ]


def shards_of(count: int, criteria: Criteria) -> Sequence[int]:
    """Return the shards of the criteria, of a store that has ``count``."""
    if criteria.shard is None:
        return range(count)
    return [criteria.shard] if 0 <= criteria.shard < count else []


def _share(sources: int) -> int:
    return max(SCAN_LEAST, SCAN // max(1, sources))


def _hours(
    connection: Connection, shard: int, criteria: Criteria, begin: Position, limit: int, most: int
) -> tuple[list[tuple[Position, Position]], Position | None]:
    """Return ranges of the hours from ``begin`` on in which the tally has these names, and where the ranges stop.

    The first hour may be partly over. Enough hours follow for ``limit`` tasks after it, in at most ``most`` ranges of
    neighbouring hours. The second value is None where no later hour has these names.
    """
    if not queries.named(criteria):
        return [(ORIGIN, END)], None
    first = max(0, begin.due_ms // HOUR_MS)
    spans: list[tuple[Position, Position]] = []
    found, rows = 0, connection.execute(queries.pending_hours(shard, criteria, first, HOURS)).all()
    for hour, count in rows:
        low, high = Position(hour * HOUR_MS, 0).previous(), Position((hour + 1) * HOUR_MS, 0).previous()
        joined = bool(spans) and spans[-1][1] == low
        if len(spans) == most and not joined:
            return spans, spans[-1][1]
        spans[-1:] = [(spans[-1][0], high)] if joined else [*spans[-1:], (low, high)]
        found += 0 if hour == first else int(count)
        if found > limit:
            return spans, high
    return spans, spans[-1][1] if len(rows) == HOURS else None
