"""The statements of ``Browse.overview``: four, however many shards and lanes the store has.

::

    shards      wheel_shard, and what waits in each inbox           levels are read where they are asked for
    lanes       open lanes, each with its first pending row, and the number of its overdue rows
    gates       wheel_gate
    counts      one list of (kind, number, queue, task, value)
        pending    shard → pending          name      queue, task → pending
        hour       hour → pending           day       day → pending           both of all shards
        second     second → pending         of the next hour, from the rows: only where it is asked for
        seen       scheduler → its last sign of life

No statement reads more than a bounded number of rows of a shard: ``COUNTED`` overdue rows of a lane and as many items
of its inbox, one row of each lane, and the sums of the tally. ``second`` alone depends on what is due; ``Overview``
asks for it the more rarely, the more it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, literal_column, null, select, tuple_

from celery_wheel.store.model import Gate
from celery_wheel.store.sql.schema import gate, inbox, lane, route, scheduler, shard, snapshot, timer, total
from celery_wheel.store.sql.statement import SHOWN, Prepared, columns_of

#: Overdue rows of a lane, and items of an inbox, that are counted.
COUNTED = 1_000

_NOTHING: ColumnElement[str] = literal_column("''")


class OverviewStatements:
    """``prepare`` compiles for the dialect."""

    def __init__(self, prepare: Callable[[Any], Prepared]) -> None:
        items = _some(select(inbox.c.rows).where(inbox.c.shard == shard.c.shard), shard)
        depth = select(func.coalesce(func.sum(func.coalesce(items.c.rows, 1)), 0)).scalar_subquery().label("inbox")
        self.shards, self.shards_with_levels = (
            prepare(
                select(shard, *SHOWN, levels, depth)
                .outerjoin(snapshot, snapshot.c.shard == shard.c.shard)
                .order_by(shard.c.shard)
            )
            for levels in (null().label("levels"), snapshot.c.levels)
        )
        self.levels = prepare(select(snapshot.c.levels).where(snapshot.c.shard == bindparam("shard")))
        self.lanes = prepare(_lanes())
        self.gates = prepare(select(gate.c.shard, *columns_of(Gate, gate)).order_by(gate.c.id))
        counts = [_pending(), _names(), _hours(), _days(), _seen()]
        self.counts, self.counts_with_seconds = (
            prepare(counts[0].union_all(*counts[1:], *more)) for more in ((), (_seconds(),))
        )


def _some(rows: Select[Any], of: FromClause) -> Any:
    """Return the first ``COUNTED`` of the rows that belong to a row of the outer statement."""
    return rows.limit(literal_column(str(COUNTED))).correlate(of).subquery()


def _lanes() -> Select[Any]:
    pending = and_(timer.c.shard == lane.c.shard, timer.c.lane == lane.c.lane, _after_offset())
    first = select(timer.c.due_ms).where(pending).order_by(timer.c.due_ms, timer.c.seq)
    next_due = first.limit(literal_column("1")).correlate(lane).scalar_subquery()
    due = _some(select(timer.c.size).where(pending, timer.c.due_ms <= bindparam("now_ms")), lane)
    overdue = select(func.count()).select_from(due).scalar_subquery()
    found = select(lane, next_due.label("next_due_ms"), overdue.label("overdue")).where(~lane.c.closed)
    return found.order_by(lane.c.shard, lane.c.lane)


def _after_offset() -> ColumnElement[bool]:
    """Match pending rows. SQLite compares a pair with columns of another table by its first half alone: it would read
    every dispatched row of a herd whose tasks have one due time."""
    offset = [column + literal_column("0") for column in (lane.c.offset_due_ms, lane.c.offset_seq)]
    return tuple_(timer.c.due_ms, timer.c.seq) > tuple_(*offset)


def _line(kind: str, number: Any, value: Any, queue: Any = _NOTHING, task: Any = _NOTHING) -> Select[Any]:
    of_kind: ColumnElement[str] = literal_column(f"'{kind}'")
    columns = {"kind": of_kind, "number": number, "queue": queue, "task": task, "value": value}
    return select(*[column.label(name) for name, column in columns.items()])


def _sum_of(kind: str, *more: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    return [total.c.kind == literal_column(f"'{kind}'"), total.c.pending > literal_column("0"), *more]


def _pending() -> Select[Any]:
    return _line("pending", total.c.shard, func.sum(total.c.pending)).where(*_sum_of("name")).group_by(total.c.shard)


def _names() -> Select[Any]:
    by_route = select(total.c.number, func.sum(total.c.pending).label("pending")).where(*_sum_of("name"))
    sums = by_route.group_by(total.c.number).subquery("sums")
    named = _line("name", literal_column("0"), sums.c.pending, route.c.target, route.c.task)
    return named.select_from(sums.join(route, route.c.id == sums.c.number))


def _hours() -> Select[Any]:
    near = total.c.number < bindparam("before_hour")
    sums = _line("hour", total.c.number, func.sum(total.c.pending)).where(*_sum_of("hour", near))
    return sums.group_by(total.c.number)


def _days() -> Select[Any]:
    return _line("day", total.c.number, func.sum(total.c.pending)).where(*_sum_of("day")).group_by(total.c.number)


def _seen() -> Select[Any]:
    return _line("seen", literal_column("0"), scheduler.c.seen_ms, scheduler.c.name)


def _seconds() -> Select[Any]:
    within = and_(timer.c.due_ms >= bindparam("now_ms"), timer.c.due_ms < bindparam("until_ms"), ~lane.c.closed)
    rows = lane.join(timer, and_(timer.c.shard == lane.c.shard, timer.c.lane == lane.c.lane, _after_offset()))
    second = timer.c.due_ms.op("/")(literal_column("1000"))
    return _line("second", second, func.count()).select_from(rows).where(within).group_by(second)
