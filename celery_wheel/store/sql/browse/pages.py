"""Pages of a store by key: each page begins after the last line of the previous page, at whatever depth.

::

    lanes     their offsets                       1 statement, of all shards
    stops     where a filter ends its search      1, where it might read more than SCAN rows
    places    (key, id) of the page's lines       1 for 400 ranges; each reads its index and LIMIT rows
    lines     by their ids                        1, and 1 for the times of dispatches

A filter reads only hours in which the tally has pending tasks of these names. A page may end short, after SCAN rows;
``next`` says where to continue. A position is unique in the whole store, so one order holds for all shards.

Promises: a page shows one moment. Over a walk of pages, a task that stays pending at its position comes exactly once.
Non-promises: a task that is moved between two pages comes at its new position: twice, or not at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal_column, select, tuple_

from celery_wheel.store.model import HOUR_MS, ORIGIN, Position
from celery_wheel.store.ports.pages import END, Criteria, Page, StoppedTask, StoredSettlement, Task
from celery_wheel.store.sql.browse.messages import OUTCOME, OUTCOMES, TASK, TASKS, Messages, lanes_of, of_each, rows_of
from celery_wheel.store.sql.schema import outcome, route, settlement, tally, timer, total
from celery_wheel.store.sql.statement import columns_of

#: Most rows read for one page, shared by its ranges: each row costs a visit to the table's tree, 2 µs.
SCAN = 10_000

#: Rows that each range may read at least, so that the next page begins further on.
SCAN_LEAST = 100

#: Hours of the tally, from the first with pending tasks, in which a page is looked for at first, and then; at last in
#: all of them.
HOURS = (24, 16 * 24)

#: Most ranges of hours read for one page, unless its first hour needs more.
SPANS = 200

#: The column of hours has no later one.
LAST_HOUR = 2**31 - 1

Range = tuple[int, Any, Position, Position]  #: of a shard, and of a lane or a kind of outcome: (after, upto]


class Lines(NamedTuple):
    """The lines of a kind of page: an index has their place, then their key."""

    kind: type[Any]
    place: tuple[ColumnElement[Any], ...]
    key: tuple[ColumnElement[Any], ...]
    columns: tuple[ColumnElement[Any], ...]
    rows: Any
    newest_first: bool = True


_DISPATCHED = Lines(Task, (timer.c.shard, timer.c.lane), (timer.c.due_ms, timer.c.seq), TASK, TASKS)
_PENDING = _DISPATCHED._replace(newest_first=False)
_OUTCOMES = Lines(StoppedTask, (outcome.c.shard, outcome.c.kind), (outcome.c.at_ms, outcome.c.id), OUTCOME, OUTCOMES)
_SETTLED = (settlement.c.shard, settlement.c.lane), (settlement.c.dispatched_ms, settlement.c.id)
_SETTLEMENTS = Lines(StoredSettlement, *_SETTLED, columns_of(StoredSettlement, settlement), settlement)


class Pages(Messages):
    def pending(self, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
        """Return pending tasks, the next due first."""
        begin, shards = max(after, criteria.first), shards_of(self.shards, criteria)
        spans: dict[int, list[tuple[Position, Position]]] = {shard: [(ORIGIN, END)] for shard in shards}
        end, bounded = None, criteria.key is not None or criteria.group is not None
        with self._database.snapshot() as connection:
            lanes = lanes_of(connection, shards, closed=False)
            if criteria.task is not None or criteria.queue is not None:
                of_shard = Counter(shard for shard, _ in lanes)
                spans, end, bounded = _spans(connection, criteria, of_shard, begin, limit)
            ranges = [
                (shard, number, max(low, begin, one.offset), min(high, criteria.last))
                for (shard, number), one in lanes.items()
                for low, high in spans.get(shard, ())
            ]
            return self._page(connection, _PENDING, ranges, criteria, limit, bounded=bounded, end=end)

    def dispatched(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
        """Return dispatched tasks, the last due first, each with the time of its dispatch while that is known."""
        low, high = _between(criteria, before)
        with self._database.snapshot() as connection:
            lanes = lanes_of(connection, shards_of(self.shards, criteria))
            ranges = [(shard, number, low, min(high, one.offset)) for (shard, number), one in lanes.items()]
            page: Page[Task] = self._page(connection, _DISPATCHED, ranges, criteria, limit)
            times = self.dispatches(connection, page.items)
        items = [replace(one, dispatched_ms=next(iter(times.get(one.id, ())), None)) for one in page.items]
        return replace(page, items=items)

    def outcomes(
        self, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
    ) -> Page[StoppedTask]:
        """Return outcomes of these kinds, the latest first. ``before`` is (at_ms, id)."""
        bounds, shards = _between(criteria, before), shards_of(self.shards, criteria)
        ranges = [(shard, kind, *bounds) for shard in shards for kind in dict.fromkeys(kinds)]
        with self._database.snapshot() as connection:
            return self._page(connection, _OUTCOMES, ranges, criteria, limit)

    def settlements(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[StoredSettlement]:
        """Return settlements, the latest first. ``before`` is (dispatched_ms, id)."""
        bounds, of_all = _between(criteria, before), replace(criteria, task=None, queue=None, key=None, group=None)
        with self._database.snapshot() as connection:
            lanes = lanes_of(connection, shards_of(self.shards, criteria))
            return self._page(connection, _SETTLEMENTS, [(*place, *bounds) for place in lanes], of_all, limit)

    def dispatched_since(self, since_ms: int) -> int:
        """Return how many tasks were dispatched at or after the instant, as far as the history goes."""
        found = select(func.sum(settlement.c.count)).where(settlement.c.dispatched_ms >= since_ms)
        with self._database.reading() as connection:
            return int(connection.scalar(found) or 0)

    def _page(
        self,
        connection: Connection,
        lines: Lines,
        ranges: Sequence[Range],
        criteria: Criteria,
        limit: int,
        *,
        bounded: bool = True,
        end: Position | None = None,
    ) -> Page[Any]:
        """Merge the ranges, which end at ``end``, into one page; ``bounded``: a filter reads at most SCAN rows."""
        names = {name: getattr(criteria, name) for name in ("task", "queue", "key", "group")}
        names = {name: value for name, value in names.items() if value is not None}
        ranges = [one for one in ranges if one[2] < one[3]]
        if names and bounded and (stop := self._stop(connection, lines, ranges)) is not None:
            end = stop
            low, high = (stop.previous(), END) if lines.newest_first else (ORIGIN, stop)
            ranges = [(shard, place, max(low, from_), min(high, to)) for shard, place, from_, to in ranges]
        query = self.prepared((lines, *names), lambda: _places(lines, names))
        order = " ORDER BY 1 DESC, 2 DESC" if lines.newest_first else " ORDER BY 1, 2"
        wanted = [_values(one, **names, limit=limit + 1) for one in ranges]
        found = of_each(connection, query, wanted, f"{order} LIMIT {limit + 1:d}")
        found = sorted(found, reverse=lines.newest_first)
        by_id = select(*lines.columns).select_from(lines.rows)
        ids = [number for *_, number in found[:limit]]
        rows = {one.id: one for one in (lines.kind(*row) for row in rows_of(connection, by_id, ids, _id_of(lines)))}
        items = [rows[number] for number in ids]
        return Page(items, items[-1].position if len(found) > limit else end)

    def _stop(self, connection: Connection, lines: Lines, ranges: Sequence[Range]) -> Position | None:
        """Return the key at which the search of a filter ends; None where all ranges are short enough."""
        skip = max(SCAN_LEAST, SCAN // max(1, len(ranges))) - 1
        query = self.prepared((lines, "stop"), lambda: _places(lines, (), stop=True))
        found = of_each(connection, query, [_values(one, limit=1, skip=skip) for one in ranges])
        stops = [Position(*key) for *key, _ in found]
        return (max if lines.newest_first else min)(stops, default=None)


def shards_of(count: int, criteria: Criteria) -> Sequence[int]:
    """Return the shards of the criteria, of a store that has ``count``."""
    if criteria.shard is None:
        return range(count)
    return [criteria.shard] if 0 <= criteria.shard < count else []


def routes_of(criteria: Criteria, of: ColumnElement[Any] = tally.c.route) -> list[ColumnElement[bool]]:
    """Match the counts of the criteria's task and queue, or other rows that have a route."""
    names = [(route.c.task, criteria.task), (route.c.target, criteria.queue)]
    wanted = [column == name for column, name in names if name is not None]
    return [of.in_(select(route.c.id).where(*wanted))] if wanted else []


def _between(criteria: Criteria, before: Position) -> tuple[Position, Position]:
    """Return the range of the keys below ``before`` and within the criteria's times."""
    return criteria.first, min(criteria.last, before.previous())


def _values(one: Range, **more: Any) -> dict[str, Any]:
    shard, place, low, high = one
    ends = {"low_ms": low[0], "low_seq": low[1], "high_ms": high[0], "high_seq": high[1]}
    return {"shard": shard, "place": place, **ends, **more}


def _id_of(lines: Lines) -> ColumnElement[Any]:
    table: Any = lines.key[0].table
    return table.c.id  # type: ignore[no-any-return]


def _places(lines: Lines, names: Collection[str], *, stop: bool = False) -> Select[Any]:
    """Select (key, id) of a range in order: those of the first lines; or with ``stop`` that of one line after some."""
    key = tuple_(*lines.key)
    columns = {"task": route.c.task, "queue": route.c.target, "key": timer.c.key, "group": timer.c.group}
    low, high = (tuple_(bindparam(f"{one}_ms"), bindparam(f"{one}_seq")) for one in ("low", "high"))
    wanted = [column == bindparam(name) for column, name in zip(lines.place, ("shard", "place"), strict=True)]
    wanted += [key > low, key <= high, *[columns[name] == bindparam(name) for name in names]]
    id_ = _id_of(lines)
    found = select(*[column.label(f"key_{n}") for n, column in enumerate(lines.key)], id_.label("number"))
    found = found.select_from(lines.rows if names else id_.table).where(*wanted)
    found = found.order_by(*[column.desc() if lines.newest_first else column for column in lines.key])
    return found.limit(bindparam("limit")).offset(bindparam("skip") if stop else literal_column("0"))


def _spans(
    connection: Connection, criteria: Criteria, lanes: Counter[int], begin: Position, limit: int
) -> tuple[dict[int, list[tuple[Position, Position]]], Position | None, bool]:
    """Return shard → ranges of hours from ``begin`` on in which the tally has the criteria's names.

    The first hour may be partly over. Enough hours follow for ``limit`` tasks after it, in ranges of neighbouring hours
    that have about SCAN rows. The second value is where the ranges stop; None where no later hour has these names. The
    third says whether they may have more than SCAN rows. Each of the ``lanes`` of a shard reads the ranges.
    """
    first = min(max(0, begin.due_ms // HOUR_MS), LAST_HOUR)
    for hours in (*HOURS, None):
        found = connection.execute(_hours(criteria, lanes, first, hours)).all()
        if sum(row.pending for row in found if row.hour > first) > limit:
            break
    spans: dict[int, list[tuple[Position, Position]]] = defaultdict(list)
    high, pending, rows, ranges = ORIGIN, 0, 0, 0
    for hour, of_hour in groupby(found, itemgetter(0)):
        shards = list(of_hour)
        more, before_it = sum(row.rows for row in shards), high
        low, high = Position(hour * HOUR_MS, 0).previous(), Position((hour + 1) * HOUR_MS, 0).previous()
        new = [row.shard for row in shards if not spans[row.shard] or spans[row.shard][-1][1] != low]
        more_ranges = sum(lanes[shard] for shard in new)
        if ranges and (pending > limit or rows + more > SCAN or ranges + more_ranges > SPANS):
            return spans, before_it, rows > SCAN
        for row in shards:
            begins = low if row.shard in new else spans[row.shard].pop()[0]
            spans[row.shard].append((begins, high))
        rows, ranges = rows + more, ranges + more_ranges
        pending += 0 if hour == first else sum(int(row.pending) for row in shards)
    return spans, None if hours is None else high, rows > SCAN


def _hours(criteria: Criteria, shards: Collection[int], first: int, hours: int | None) -> Select[Any]:
    """Select (hour, shard, pending of the names, pending of all names), in order of the hours."""
    any_name = select(total.c.number).where(total.c.kind == "hour", total.c.number >= first, total.c.pending > 0)
    start = any_name.order_by(total.c.number).limit(1).scalar_subquery()
    within = [tally.c.shard.in_(list(shards)), tally.c.hour >= start]
    within += [] if hours is None else [tally.c.hour < start + hours]
    within += [] if criteria.to_ms is None else [tally.c.hour <= min(criteria.last.due_ms // HOUR_MS, LAST_HOUR)]
    sums = select(tally.c.hour, tally.c.shard, func.sum(tally.c.pending).label("pending"))
    own = sums.where(*within, tally.c.pending > 0, *routes_of(criteria)).group_by(tally.c.hour, tally.c.shard)
    some = own.subquery("own")
    of_all = and_(total.c.kind == "hour", total.c.number == some.c.hour, total.c.shard == some.c.shard)
    found = select(some.c.hour, some.c.shard, some.c.pending, total.c.pending.label("rows"))
    return found.select_from(some.join(total, of_all)).order_by(some.c.hour)
