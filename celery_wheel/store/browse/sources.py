"""One source of lines each: a lane's pending rows, its history, outcomes of a kind, settlements of a lane.

::

    source(limit) ─► lines in order, and where it stopped looking        None: there is nothing behind these
    merged        ─► one page out of several sources                     nothing beyond the nearest stop is shown

A filter that no index serves looks at ``scan`` rows of a source and then stops, whatever it found: so the page is
bounded, and may be short or even empty while it has a next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, and_, func, literal_column, select, tuple_

from celery_wheel.store.browse.rows import STOPPED_COLUMNS, TASK_COLUMNS
from celery_wheel.store.model import Position
from celery_wheel.store.ports.pages import Page, Placed, Stopped, Task
from celery_wheel.store.schema import outcome, timer

Source = Callable[[int], tuple[list[Any], Position | None]]
Names = Sequence[ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Forward:
    """Rows of a lane in ranges that follow each other. ``looked_to``: the ranges are no more than up to there."""

    connection: Connection
    where: ColumnElement[bool]
    ranges: Sequence[tuple[Position, Position]]
    names: Names
    scan: int
    looked_to: Position | None = None

    def __call__(self, limit: int) -> tuple[list[Task], Position | None]:
        found: list[Task] = []
        left = self.scan
        for low, high in self.ranges:
            where = and_(self.where, within(low, high))
            if self.names:
                seen = rows_in(self.connection, timer, where, left)
                left -= seen
                high = high if left else end_of(self.connection, where, seen)
                where = and_(self.where, within(low, high))
            wanted = select(*TASK_COLUMNS).where(where, *self.names).order_by(timer.c.due_ms, timer.c.seq)
            found += [Task(*row) for row in self.connection.execute(wanted.limit(limit - len(found)))]
            if len(found) == limit:
                return found, None
            if not left:
                return found, high
        return found, self.looked_to


@dataclass(frozen=True, slots=True)
class Backward:
    """Rows of ``where`` from its end on: those of a lane, or those set aside."""

    connection: Connection
    where: ColumnElement[bool]
    names: Names
    scan: int

    def __call__(self, limit: int) -> tuple[list[Task], Position | None]:
        where, stopped = self.where, None
        if self.names:
            stopped = bound(self.connection, (timer.c.due_ms, timer.c.seq), where, self.scan)
            where = where if stopped is None else and_(where, tuple_(timer.c.due_ms, timer.c.seq) >= tuple_(*stopped))
        wanted = select(*TASK_COLUMNS).where(where, *self.names).order_by(timer.c.due_ms.desc(), timer.c.seq.desc())
        found = [Task(*row) for row in self.connection.execute(wanted.limit(limit))]
        return found, stopped if len(found) < limit else None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was set aside, the latest first; ``where`` is a range of the index by kind and time."""

    connection: Connection
    where: ColumnElement[bool]
    names: Names
    scan: int

    def __call__(self, limit: int) -> tuple[list[Stopped], Position | None]:
        where, stopped = self.where, None
        if self.names:
            stopped = bound(self.connection, (outcome.c.at_ms, outcome.c.id), where, self.scan)
            where = where if stopped is None else and_(where, tuple_(outcome.c.at_ms, outcome.c.id) >= tuple_(*stopped))
        joined = outcome.join(timer, timer.c.id == outcome.c.timer_id)
        wanted = select(*STOPPED_COLUMNS).select_from(joined).where(where, *self.names)
        in_order = wanted.order_by(outcome.c.at_ms.desc(), outcome.c.id.desc()).limit(limit)
        found = [Stopped(*row) for row in self.connection.execute(in_order)]
        return found, stopped if len(found) < limit else None


def within(low: Position, high: Position) -> ColumnElement[bool]:
    """Timers in (low, high]."""
    place = tuple_(timer.c.due_ms, timer.c.seq)
    return and_(place > tuple_(*low), place <= tuple_(*high))


def rows_in(connection: Connection, table: FromClause, where: ColumnElement[bool], most: int) -> int:
    """How many rows there are, counted no further than ``most``."""
    some = select(literal_column("1")).select_from(table).where(where).limit(most).subquery()
    return int(connection.scalar(select(func.count()).select_from(some)) or 0)


def end_of(connection: Connection, where: ColumnElement[bool], count: int) -> Position:
    """Where the first ``count`` rows of a range of timers end; it has so many."""
    rows = select(timer.c.due_ms, timer.c.seq).where(where).order_by(timer.c.due_ms, timer.c.seq)
    return Position(*connection.execute(rows.offset(count - 1).limit(1)).one())


def bound(
    connection: Connection, key: tuple[ColumnElement[Any], ...], where: ColumnElement[bool], scan: int
) -> Position | None:
    """Where the last ``scan`` rows of ``where`` begin; None where it has fewer."""
    rows = select(*key).where(where).order_by(*(column.desc() for column in key))
    found = connection.execute(rows.offset(scan - 1).limit(1)).one_or_none()
    return None if found is None else Position(*found)


def merged(sources: Iterable[Source], limit: int, newest_first: bool = False) -> Page[Any]:
    """One order out of several. Nothing beyond the nearest place where a source stopped looking may be shown."""
    answers = [source(limit + 1) for source in sources]
    stops = [stopped for _, stopped in answers if stopped is not None]
    nearest = (max if newest_first else min)(stops, default=None)

    def place(one: Placed) -> Position:
        return one.position

    items = list(heapq.merge(*(found for found, _ in answers), key=place, reverse=newest_first))
    if nearest is not None:
        items = [one for one in items if (one.position >= nearest if newest_first else one.position <= nearest)]
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].position)
    return Page(items, nearest)
