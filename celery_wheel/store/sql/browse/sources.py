"""The sorted sources of a page: a lane's pending rows or its history, outcomes of a kind, a lane's settlements.

::

    source(limit) ─► lines in order, and where the source stopped       None: no line comes after these
    merged        ─► one page out of several sources                    without lines beyond the nearest stop

A filter without an index reads ``scan`` rows of a source and then stops, whatever it found: the work for a page is
bounded, and a page may be short or even empty while a next page exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, tuple_

from celery_wheel.store.model import Position
from celery_wheel.store.ports.pages import Criteria, HasPosition, Page, Settlement, StoppedTask, Task
from celery_wheel.store.sql.queries import browse as queries
from celery_wheel.store.sql.schema import timer

Source = Callable[[int], tuple[list[Any], Position | None]]
Names = Sequence[ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Forward:
    """Rows of a lane in consecutive ranges. ``end``: where the ranges stop; None where they are all."""

    connection: Connection
    where: ColumnElement[bool]
    ranges: Sequence[tuple[Position, Position]]
    names: Names
    scan: int
    end: Position | None = None

    def __call__(self, limit: int) -> tuple[list[Task], Position | None]:
        found: list[Task] = []
        left = self.scan
        for low, high in self.ranges:
            where = and_(self.where, queries.within(low, high))
            if self.names:
                count = int(self.connection.scalar(queries.row_count(timer, where, left)) or 0)
                left -= count
                if not left:
                    high = Position(*self.connection.execute(queries.nth_key(queries.TIMER_KEY, where, count)).one())
                where = and_(self.where, queries.within(low, high))
            page = queries.task_page(where, self.names, limit - len(found))
            found += [Task(*row) for row in self.connection.execute(page)]
            if len(found) == limit:
                return found, None
            if not left:
                return found, high
        return found, self.end


@dataclass(frozen=True, slots=True)
class Backward:
    """Rows of a range of a lane, from its end on."""

    connection: Connection
    where: ColumnElement[bool]
    names: Names
    scan: int

    def __call__(self, limit: int) -> tuple[list[Task], Position | None]:
        where, stop = _bounded(self.connection, queries.TIMER_KEY, self.where, self.scan if self.names else None)
        page = queries.task_page(where, self.names, limit, descending=True)
        found = [Task(*row) for row in self.connection.execute(page)]
        return found, stop if len(found) < limit else None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes, the latest first; ``where`` is a range of the index by kind and time."""

    connection: Connection
    where: ColumnElement[bool]
    names: Names
    scan: int

    def __call__(self, limit: int) -> tuple[list[StoppedTask], Position | None]:
        where, stop = _bounded(self.connection, queries.OUTCOME_KEY, self.where, self.scan if self.names else None)
        found = [StoppedTask(*row) for row in self.connection.execute(queries.outcome_page(where, self.names, limit))]
        return found, stop if len(found) < limit else None


@dataclass(frozen=True, slots=True)
class Settlements:
    """Settlements of a lane, the latest first."""

    connection: Connection
    shard: int
    lane: int
    criteria: Criteria
    before: Position

    def __call__(self, limit: int) -> tuple[list[Settlement], Position | None]:
        page = queries.settlement_page(self.shard, self.lane, self.criteria, self.before, limit)
        return [Settlement(*row) for row in self.connection.execute(page)], None


def _bounded(
    connection: Connection, key: Sequence[ColumnElement[Any]], where: ColumnElement[bool], scan: int | None
) -> tuple[ColumnElement[bool], Position | None]:
    """Limit ``where`` to its last ``scan`` rows; returns it and where they begin, None where it has fewer."""
    row = None if scan is None else connection.execute(queries.nth_key(key, where, scan, descending=True)).one_or_none()
    if row is None:
        return where, None
    return and_(where, tuple_(*key) >= tuple_(*row)), Position(*row)


def merged(sources: Iterable[Source], limit: int, newest_first: bool = False) -> Page[Any]:
    """Merge the sources into one page, which ends at the nearest stop of a source."""
    answers = [source(limit + 1) for source in sources]
    stops = [stop for _, stop in answers if stop is not None]
    nearest = (max if newest_first else min)(stops, default=None)

    def place(one: HasPosition) -> Position:
        return one.position

    items = list(heapq.merge(*(found for found, _ in answers), key=place, reverse=newest_first))
    if nearest is not None:
        items = [one for one in items if (one.position >= nearest if newest_first else one.position <= nearest)]
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].position)
    return Page(items, nearest)
