"""Pages of what is in a store, by key: the next page begins after the last line of this one, however far that is.

::

    shard 0, lane 0  ──┐  hand ├──── pending ────►  range of the position index, from the page's beginning
    shard 0, lane 1  ──┼─► merged in order of position ─► page ─► next = the last line's position
    shard 1, lane 0  ──┘                                               None: there is nothing behind it

    a filter   the tally says in which hours there is anything: the others are not looked at
    SCAN       rows of a lane that a filter may reject before the page ends short; ``next`` says where to go on

A position is unique in the whole store, so one order holds for all shards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, select, tuple_

from celery_wheel.store.browse.rows import (
    SETTLED_COLUMNS,
    STOPPED_COLUMNS,
    TARGET,
    TASK_COLUMNS,
    Settled,
    Stopped,
    Task,
)
from celery_wheel.store.browse.when import with_times
from celery_wheel.store.model import HOUR_MS, MAX_SEQ, ORIGIN, LaneState, Position
from celery_wheel.store.schema import batch, outcome, tally, timer
from celery_wheel.store.sql import SqlStore

#: Rows of one lane that are read for one page at most.
SCAN = 20_000

END = Position(2**62, MAX_SEQ)


class Placed(Protocol):
    @property
    def position(self) -> Position: ...


T = TypeVar("T", bound=Placed)
Read = Callable[[int], tuple[list[Any], Position | None]]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """``next``: give it as ``after`` for what follows. None on the last page."""

    items: list[T]
    next: Position | None


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a page is of; what is None does not matter. Due times are from ``from_ms`` on and before ``to_ms``."""

    shard: int | None = None
    task: str | None = None
    queue: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def shards(self, store: SqlStore) -> Sequence[int]:
        return range(store.shards) if self.shard is None else [self.shard] if self.shard < store.shards else []

    @property
    def names(self) -> list[ColumnElement[bool]]:
        wanted = [(timer.c.task, self.task), (TARGET, self.queue)]
        return [column == name for column, name in wanted if name is not None]


def pending(store: SqlStore, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
    """What waits, the next due first."""
    first = Position(criteria.from_ms or 0, 0).previous()
    last = END if criteria.to_ms is None else Position(criteria.to_ms, 0).previous()
    reads: list[Read] = []
    lanes = {shard: store.lanes(shard) for shard in criteria.shards(store)}
    with store.database.reading() as connection:
        for shard in lanes:
            spans = _hours(connection, shard, criteria) if criteria.names else [(ORIGIN, END)]
            for lane in lanes[shard]:
                begin = max(lane.hand, after, first)
                ranges = [(max(begin, low), min(last, high)) for low, high in spans]
                reads.append(_Forward(connection, shard, lane.lane, [r for r in ranges if r[0] < r[1]], criteria))
        return _merged(reads, limit)


def dispatched(store: SqlStore, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
    """What left, the last due first, with the time at which it left."""
    lanes = [(shard, lane) for shard in criteria.shards(store) for lane in store.lanes(shard)]
    with store.database.reading() as connection:
        reads: list[Read] = [_Backward(connection, shard, lane, criteria, before) for shard, lane in lanes]
        page: Page[Task] = _merged(reads, limit, newest_first=True)
        return replace(page, items=with_times(connection, page.items))


def outcomes(
    store: SqlStore, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
) -> Page[Stopped]:
    """What was set aside, the latest first. ``before`` is (at_ms, id); the criteria's span is of when it was, too."""
    joined = outcome.join(timer, timer.c.id == outcome.c.timer_id)
    place = tuple_(outcome.c.at_ms, outcome.c.id)
    when = [] if criteria.from_ms is None else [outcome.c.at_ms >= criteria.from_ms]
    when += [] if criteria.to_ms is None else [outcome.c.at_ms < criteria.to_ms]
    reads: list[Read] = []
    with store.database.reading() as connection:
        for shard in criteria.shards(store):
            for kind in kinds:
                mine = and_(outcome.c.shard == shard, outcome.c.kind == kind, place < tuple_(*before))
                wanted = select(*STOPPED_COLUMNS).select_from(joined).where(mine, *when, *criteria.names)
                reads.append(_Latest(connection, wanted.order_by(outcome.c.at_ms.desc(), outcome.c.id.desc()), Stopped))
        return _merged(reads, limit, newest_first=True)


def batches(store: SqlStore, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Settled]:
    """The settlements, the latest first. ``before`` is (0, id)."""
    reads: list[Read] = []
    upto = MAX_SEQ if before == END else before.seq
    with store.database.reading() as connection:
        for shard in criteria.shards(store):
            wanted = select(*SETTLED_COLUMNS).where(batch.c.shard == shard, batch.c.id < upto)
            reads.append(_Latest(connection, wanted.order_by(batch.c.id.desc()), Settled))
        return _merged(reads, limit, newest_first=True)


# -- one source of lines: called with how many are wanted, gives them and how far it looked -------------------


@dataclass(frozen=True, slots=True)
class _Latest:
    connection: Connection
    wanted: Select[Any]
    made: Callable[..., Any]

    def __call__(self, limit: int) -> tuple[list[Any], Position | None]:
        return [self.made(*row) for row in self.connection.execute(self.wanted.limit(limit))], None


@dataclass(frozen=True, slots=True)
class _Forward:
    connection: Connection
    shard: int
    lane: int
    ranges: list[tuple[Position, Position]]
    criteria: Criteria

    def __call__(self, limit: int) -> tuple[list[Any], Position | None]:
        found: list[Task] = []
        for low, high in self.ranges:
            where = and_(_in_lane(self.shard, self.lane), _place() > tuple_(*low), _place() <= tuple_(*high))
            more, stopped = _scan(self.connection, where, self.criteria, limit - len(found), descending=False)
            found += more
            if stopped is not None or len(found) == limit:
                return found, stopped
        return found, None


@dataclass(frozen=True, slots=True)
class _Backward:
    connection: Connection
    shard: int
    lane: LaneState
    criteria: Criteria
    before: Position

    def __call__(self, limit: int) -> tuple[list[Any], Position | None]:
        low = Position(self.criteria.from_ms or 0, 0)
        high = END if self.criteria.to_ms is None else Position(self.criteria.to_ms, 0)
        where = and_(
            _in_lane(self.shard, self.lane.lane),
            _place() <= tuple_(*self.lane.hand),
            _place() >= tuple_(*low),
            _place() < tuple_(*min(high, self.before)),
        )
        return _scan(self.connection, where, self.criteria, limit, descending=True)


def _in_lane(shard: int, lane: int) -> ColumnElement[bool]:
    return and_(timer.c.shard == shard, timer.c.lane == lane)


def _place(table: Table = timer) -> Any:
    return tuple_(table.c.due_ms, table.c.seq)


def _scan(
    connection: Connection, where: ColumnElement[bool], criteria: Criteria, limit: int, descending: bool
) -> tuple[list[Task], Position | None]:
    """Up to ``limit`` rows of a range; with a filter, of its first SCAN rows, and then also where those end."""
    order = [column.desc() if descending else column for column in (timer.c.due_ms, timer.c.seq)]
    stopped: Position | None = None
    if criteria.names:
        ends = select(timer.c.due_ms, timer.c.seq).where(where).order_by(*order).offset(SCAN - 1).limit(1)
        end = connection.execute(ends).one_or_none()
        if end is not None:
            stopped = Position(*end)
            where = and_(where, _place() >= tuple_(*stopped) if descending else _place() <= tuple_(*stopped))
    wanted = select(*TASK_COLUMNS).where(where, *criteria.names).order_by(*order).limit(limit)
    found = [Task(*row) for row in connection.execute(wanted)]
    return found, stopped if len(found) < limit else None


def _hours(connection: Connection, shard: int, criteria: Criteria) -> list[tuple[Position, Position]]:
    """The hours in which the tally has something of these names, neighbours joined."""
    names = [] if criteria.task is None else [tally.c.task == criteria.task]
    names += [] if criteria.queue is None else [tally.c.queue == criteria.queue]
    hours = select(tally.c.hour).where(tally.c.shard == shard, tally.c.pending > 0, *names)
    spans: list[tuple[Position, Position]] = []
    for hour in connection.scalars(hours.group_by(tally.c.hour).order_by(tally.c.hour)):
        low, high = Position(hour * HOUR_MS, 0).previous(), Position((hour + 1) * HOUR_MS, 0).previous()
        if spans and spans[-1][1] == low:
            spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    return spans


def _merged(reads: Iterable[Read], limit: int, newest_first: bool = False) -> Page[Any]:
    """One order out of several. Nothing beyond the nearest place where a source stopped looking may be shown."""
    sources = [read(limit + 1) for read in reads]
    stops = [stopped for _, stopped in sources if stopped is not None]
    nearest = (max if newest_first else min)(stops, default=None)

    def place(one: Placed) -> Position:
        return one.position

    items = list(heapq.merge(*(found for found, _ in sources), key=place, reverse=newest_first))
    if nearest is not None:
        items = [one for one in items if (one.position >= nearest if newest_first else one.position <= nearest)]
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].position)
    return Page(items, nearest)
