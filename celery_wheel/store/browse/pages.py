"""Pages of what is in a store, by key: the next page begins after the last line of this one, however far that is.

::

    shard 0, lane 0  ──┐  offset ├──── pending ────►  range of the position index, from the page's beginning
    shard 0, lane 1  ──┼─► merged in order of position ─► page ─► next = the last line's position
    shard 1, lane 0  ──┘                                               None: there is nothing behind it

    a filter   the tally says in which hours there is anything: the others are not looked at
    SCAN       rows that a filter may reject before the page ends short; ``next`` says where to go on

A position is unique in the whole store, so one order holds for all shards.

Promises: a page is of one moment. Over a walk of pages, a task that waits all the time where it is comes exactly once.
Non-promises: one that is moved between two pages is shown where it is then: twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, tuple_

from celery_wheel.store.browse.rows import SETTLED_COLUMNS, TARGET
from celery_wheel.store.browse.sources import Backward, Forward, Outcomes, Source, merged, within
from celery_wheel.store.browse.when import with_times
from celery_wheel.store.database import Database
from celery_wheel.store.model import HOUR_MS, ORIGIN, LaneState, Position
from celery_wheel.store.ports.pages import END, Criteria, Page, Settled, Stopped, Task
from celery_wheel.store.schema import batch, outcome, tally, timer

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore

#: Rows that are read for one page at most, shared by its sources: each has its own row of a tree to visit.
SCAN = 20_000

#: Of one source at least, so that the next page is further on.
SCAN_LEAST = 100

#: Hours of the tally that are looked at for one page of a shard.
HOURS = 1_000

#: Ranges of hours that are read for one page, shared by its lanes: each takes two statements.
SPANS = 48

Lanes = list[tuple[int, LaneState]]


class Pages:
    """A part of ``SqlBrowse``."""

    _store: SqlStore
    _database: Database

    def pending(self, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            lanes = _lanes(self._store, connection, criteria)
            begin = max(after, criteria.first)
            most = max(4, SPANS // max(1, len(lanes)))
            spans = {
                shard: _hours(connection, shard, criteria, begin, limit, most)
                for shard in {shard for shard, _ in lanes}
            }
            for shard, lane in lanes:
                hours, looked_to = spans[shard]
                low, high = max(lane.offset, begin), criteria.last
                ranges = [(max(low, one), min(high, other)) for one, other in hours]
                ranges = [(one, other) for one, other in ranges if one < other]
                looked_to = looked_to if looked_to is not None and looked_to < high else None
                where = _in_lane(shard, lane)
                sources.append(Forward(connection, where, ranges, _names(criteria), _share(len(lanes)), looked_to))
            return merged(sources, limit)

    def dispatched(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            lanes = [
                one for one in _lanes(self._store, connection, criteria, closed=True) if one[1].offset > criteria.first
            ]
            last = min(criteria.last, before.previous())
            for shard, lane in lanes:
                where = and_(_in_lane(shard, lane), within(criteria.first, min(last, lane.offset)))
                sources.append(Backward(connection, where, _names(criteria), _share(len(lanes))))
            page: Page[Task] = merged(sources, limit, newest_first=True)
            return replace(page, items=with_times(connection, page.items))

    def outcomes(
        self, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
    ) -> Page[Stopped]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            places = [(shard, kind) for shard in shards_of(self._store, criteria) for kind in dict.fromkeys(kinds)]
            for shard, kind in places:
                times = _between(outcome.c.at_ms, outcome.c.id, criteria, before)
                where = and_(outcome.c.shard == shard, outcome.c.kind == kind, *times)
                sources.append(Outcomes(connection, where, _names(criteria), _share(len(places))))
            return merged(sources, limit, newest_first=True)

    def batches(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Settled]:
        sources: list[Source] = []
        with self._database.snapshot() as connection:
            for shard, lane in _lanes(self._store, connection, criteria, closed=True):
                times = _between(batch.c.dispatched_ms, batch.c.id, criteria, before)
                wanted = select(*SETTLED_COLUMNS).where(batch.c.shard == shard, batch.c.lane == lane.lane, *times)
                in_order = wanted.order_by(batch.c.dispatched_ms.desc(), batch.c.id.desc())

                def source(most: int, connection: Connection = connection, rows: Any = in_order) -> Any:
                    return [Settled(*row) for row in connection.execute(rows.limit(most))], None

                sources.append(source)
            return merged(sources, limit, newest_first=True)


def shards_of(store: SqlStore, criteria: Criteria) -> Sequence[int]:
    if criteria.shard is None:
        return range(store.shards)
    return [criteria.shard] if 0 <= criteria.shard < store.shards else []


def _lanes(store: SqlStore, connection: Connection, criteria: Criteria, *, closed: bool = False) -> Lanes:
    return [
        (shard, lane)
        for shard in shards_of(store, criteria)
        for lane in store.lanes_seen_by(connection, shard, closed=closed)
    ]


def _names(criteria: Criteria) -> list[ColumnElement[bool]]:
    wanted = [(timer.c.task, criteria.task), (TARGET, criteria.queue), (timer.c.key, criteria.key)]
    return [column == name for column, name in wanted if name is not None]


def _share(sources: int) -> int:
    return max(SCAN_LEAST, SCAN // max(1, sources))


def _in_lane(shard: int, lane: LaneState) -> ColumnElement[bool]:
    return and_(timer.c.shard == shard, timer.c.lane == lane.lane)


def _between(at_ms: Any, number: Any, criteria: Criteria, before: Position) -> list[ColumnElement[bool]]:
    """Before a place that is given by a time and a number, and within the criteria's times."""
    last = min(before, END if criteria.to_ms is None else Position(criteria.to_ms, 0))
    first = [] if criteria.from_ms is None else [at_ms >= criteria.from_ms]
    return [tuple_(at_ms, number) < tuple_(*last), *first]


def _hours(
    connection: Connection, shard: int, criteria: Criteria, begin: Position, limit: int, most: int
) -> tuple[list[tuple[Position, Position]], Position | None]:
    """The hours from ``begin`` on in which the tally has something of these names, neighbours joined.

    No more of them than have ``limit`` tasks behind the first hour, part of which is over, and ``most`` ranges; then
    also where they end.
    """
    if not _names(criteria):
        return [(ORIGIN, END)], None
    names = [(tally.c.task, criteria.task), (tally.c.queue, criteria.queue)]
    wanted = [column == name for column, name in names if name is not None]
    first = max(0, begin.due_ms // HOUR_MS)
    here = and_(tally.c.shard == shard, tally.c.hour >= first, tally.c.pending > 0, *wanted)
    counts = select(tally.c.hour, func.sum(tally.c.pending)).where(here).group_by(tally.c.hour).order_by(tally.c.hour)
    spans: list[tuple[Position, Position]] = []
    found, rows = 0, connection.execute(counts.limit(HOURS)).all()
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
