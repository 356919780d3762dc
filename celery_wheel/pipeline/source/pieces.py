"""What one task of Spark reads of a store: a statement, in the words of the store's database.

::

    pending   timer, a range of ids           behind the offsets that the driver saw
              timer, a range of positions     where only some due times are asked for: the rest is not looked at
    history   batch ─► timer                  the rows in (from, to] of each settlement of a range of numbers
              outcome ─► timer                a range of numbers

A settlement's rows are those that had their place when it was numbered (``seq < number``). After a rollback of the
broker the offset is put back: new rows may come into a range of which the old ones left already, and were not in it.
A replayed range has two settlements, and its rows are there twice: they left twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.columns import COLUMNS, TARGET, Col
from celery_wheel.pipeline.source.options import Options
from celery_wheel.store.model import Position

_WITHIN = """
    t.shard = b.shard AND t.lane = b.lane
    AND (t.due_ms, t.seq) > (b.from_due_ms, b.from_seq) AND (t.due_ms, t.seq) <= (b.to_due_ms, b.to_seq)
    AND t.seq < b.id
"""

#: Settlements first, then the rows of each by the index of positions. A planner that is free to choose reads the whole
#: table where it knows nothing of the ranges: OFFSET 0 is PostgreSQL's fence, CROSS JOIN is SQLite's.
SETTLED = {
    "postgresql": f"wheel_batch b CROSS JOIN LATERAL (SELECT * FROM wheel_timer t WHERE {_WITHIN} OFFSET 0) t",
    "sqlite": f"wheel_batch b CROSS JOIN wheel_timer t ON {_WITHIN}",
}
STOPPED = {
    "postgresql": "wheel_outcome o JOIN wheel_timer t ON t.id = o.timer_id",
    "sqlite": "wheel_outcome o CROSS JOIN wheel_timer t ON t.id = o.timer_id",
}

Value = int | str


class LaneOffset(NamedTuple):
    """Where a lane stands: what waits in it is behind ``offset``, at places given up to the number ``last``."""

    shard: int
    lane: int
    offset: Position
    last: int


class Piece(InputPartition):
    """``sql`` has a ``?`` for each value; its columns are those of the schema, instants as milliseconds."""

    def __init__(self, url: str, sql: str, values: Sequence[Value]) -> None:
        self.url = url
        self.sql = sql
        self.values = tuple(values)


@dataclass(slots=True)
class Where:
    """Conditions that have to hold all, with their values."""

    parts: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, part: str, *values: Value) -> Where:
        self.parts.append(part)
        self.values += values
        return self

    def plus(self, other: Where) -> Where:
        return Where([*self.parts, *other.parts], [*self.values, *other.values])

    def __str__(self) -> str:
        return " AND ".join(f"({part})" for part in self.parts) or "1 = 1"


def wanted(table: str, schema: StructType) -> list[Col]:
    """The columns of a schema, in its order. Raises SettingError for one that the table has not, or of another type."""
    columns = {column.name: column for column in COLUMNS[table]}
    for one in schema.fields:
        if one.name not in columns:
            raise SettingError(f"columns of {table} must be some of {', '.join(columns)}, got {one.name}")
        if one.dataType != columns[one.name].type:
            has = columns[one.name].type.simpleString()
            raise SettingError(f"column {one.name} of {table} must be {has}, got {one.dataType.simpleString()}")
    return [columns[one.name] for one in schema.fields]


def conditions(options: Options, *, outcomes: bool = False) -> Where:
    """What the options ask for, but for the range."""
    where = Where()
    if options.queue is not None:
        where.add(f"{TARGET} = ?", options.queue)
    if options.task is not None:
        where.add("t.task = ?", options.task)
    due = "o.at_ms" if outcomes else "t.due_ms"
    if options.due_from_ms is not None:
        where.add(f"{due} >= ?", options.due_from_ms)
    if options.due_to_ms is not None:
        where.add(f"{due} < ?", options.due_to_ms)
    return where


def of_ids(after: int, upto: int, offsets: Iterable[LaneOffset]) -> tuple[str, Where]:
    """Pending rows by id, in (after, upto]: FROM and WHERE. Of a lane that is not in ``offsets`` all rows wait."""
    rows = ", ".join(f"({one.shard}, {one.lane}, {one.offset.due_ms}, {one.offset.seq}, {one.last})" for one in offsets)
    source = f"""wheel_timer t LEFT JOIN (
        WITH lane_offset (shard, lane, due_ms, seq, last) AS (VALUES {rows}) SELECT * FROM lane_offset
    ) h ON h.shard = t.shard AND h.lane = t.lane"""
    where = Where().add("t.id > ? AND t.id <= ?", after, upto).add("t.lane >= 0")
    return source, where.add("h.shard IS NULL OR ((t.due_ms, t.seq) > (h.due_ms, h.seq) AND t.seq <= h.last)")


def of_positions(one: LaneOffset, after: Position, upto: Position) -> tuple[str, Where]:
    """Pending rows of a lane in (after, upto]."""
    where = Where().add("t.shard = ? AND t.lane = ?", one.shard, one.lane).add("(t.due_ms, t.seq) > (?, ?)", *after)
    return "wheel_timer t", where.add("(t.due_ms, t.seq) <= (?, ?)", *upto).add("t.seq <= ?", one.last)


def of_numbers(alias: str, shard: int, after: int, upto: int) -> Where:
    """Settlements (``b``) or outcomes (``o``) of a shard in (after, upto]."""
    return Where().add(f"{alias}.shard = ? AND {alias}.id > ? AND {alias}.id <= ?", shard, after, upto)


def piece(url: str, columns: Sequence[Col], source: str, where: Where, *, outcomes: bool = False) -> Piece:
    select = ", ".join(column.at_outcome if outcomes else column.sql for column in columns)
    return Piece(url, f"SELECT {select} FROM {source} WHERE {where}", where.values)
