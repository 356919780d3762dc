"""The statement by which one Spark task reads its part of a store, in the SQL of the store's database.

::

    pending   timer, a range of ids           behind the offsets that the driver saw
              timer, a range of positions     where the options bound the due time: other positions are not read
    history   batch ─► timer                  the rows in (from, to] of each settlement of a range of numbers
              outcome ─► timer                a range of numbers

A settlement covers the rows that had their position when it was numbered (``seq < number``). After a rollback of the
broker the offset moves back: new rows may come into a range whose older rows were dispatched before, and those new rows
do not belong to the earlier settlement. A replayed range has two settlements and its rows occur twice: they were
dispatched twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from sqlalchemy import make_url

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.columns import COLUMNS, TARGET, TASK_ID, TASK_ID_SQL, SourceColumn
from celery_wheel.pipeline.source.options import SourceOptions
from celery_wheel.store.model import Position

_COVERED = """
    t.shard = b.shard AND t.lane = b.lane
    AND (t.due_ms, t.seq) > (b.from_due_ms, b.from_seq) AND (t.due_ms, t.seq) <= (b.to_due_ms, b.to_seq)
    AND t.seq < b.id
"""

#: Settlements first, then the rows of each by the index of positions. A planner without statistics of the ranges would
#: scan the whole table: OFFSET 0 is PostgreSQL's optimisation fence, CROSS JOIN is SQLite's.
DISPATCHED = {
    "postgresql": f"wheel_batch b CROSS JOIN LATERAL (SELECT * FROM wheel_timer t WHERE {_COVERED} OFFSET 0) t",
    "sqlite": f"wheel_batch b CROSS JOIN wheel_timer t ON {_COVERED}",
}
OUTCOMES = {
    "postgresql": "wheel_outcome o JOIN wheel_timer t ON t.id = o.timer_id",
    "sqlite": "wheel_outcome o CROSS JOIN wheel_timer t ON t.id = o.timer_id",
}

Value = int | str


class LaneOffset(NamedTuple):
    """The offset of a lane: its pending rows lie behind ``offset`` and have a ``seq`` of at most ``last``."""

    shard: int
    lane: int
    offset: Position
    last: int


class StatementPartition(InputPartition):
    """``sql`` has a ``?`` for each value; its columns are those of the schema, with instants in milliseconds."""

    def __init__(self, url: str, sql: str, values: Sequence[Value]) -> None:
        self.url = url
        self.sql = sql
        self.values = tuple(values)


@dataclass(slots=True)
class Conditions:
    """SQL conditions joined by AND, with their values."""

    parts: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, part: str, *values: Value) -> Conditions:
        self.parts.append(part)
        self.values += values
        return self

    def extend(self, other: Conditions) -> Conditions:
        return Conditions([*self.parts, *other.parts], [*self.values, *other.values])

    def __str__(self) -> str:
        return " AND ".join(f"({part})" for part in self.parts) or "1 = 1"


def select_columns(table: str, schema: StructType) -> list[SourceColumn]:
    """Return the columns of ``schema``, in its order. Raises SettingError for an unknown column or a wrong type."""
    columns = {column.name: column for column in COLUMNS[table]}
    for field_ in schema.fields:
        if field_.name not in columns:
            raise SettingError(f"columns of {table} must be some of {', '.join(columns)}, got {field_.name}")
        if field_.dataType != columns[field_.name].type:
            expected = columns[field_.name].type.simpleString()
            got = field_.dataType.simpleString()
            raise SettingError(f"column {field_.name} of {table} must be {expected}, got {got}")
    return [columns[field_.name] for field_ in schema.fields]


def option_conditions(options: SourceOptions, *, outcomes: bool = False) -> Conditions:
    """Return the conditions of the options ``queue``, ``task``, ``dueFrom`` and ``dueTo``."""
    where = Conditions()
    if options.queue is not None:
        where.add(f"{TARGET} = ?", options.queue)
    if options.task is not None:
        where.add("r.task = ?", options.task)
    due = "o.at_ms" if outcomes else "t.due_ms"
    if options.due_from_ms is not None:
        where.add(f"{due} >= ?", options.due_from_ms)
    if options.due_to_ms is not None:
        where.add(f"{due} < ?", options.due_to_ms)
    return where


def pending_by_id(after: int, upto: int, offsets: Iterable[LaneOffset]) -> tuple[str, Conditions]:
    """FROM and WHERE of pending rows with an id in (after, upto]. All rows of a lane without an offset are pending."""
    rows = ", ".join(f"({one.shard}, {one.lane}, {one.offset.due_ms}, {one.offset.seq}, {one.last})" for one in offsets)
    source = f"""wheel_timer t LEFT JOIN (
        WITH lane_offset (shard, lane, due_ms, seq, last) AS (VALUES {rows}) SELECT * FROM lane_offset
    ) l ON l.shard = t.shard AND l.lane = t.lane"""
    where = Conditions().add("t.id > ? AND t.id <= ?", after, upto).add("t.lane >= 0")
    return source, where.add("l.shard IS NULL OR ((t.due_ms, t.seq) > (l.due_ms, l.seq) AND t.seq <= l.last)")


def pending_by_position(lane: LaneOffset, after: Position, upto: Position) -> tuple[str, Conditions]:
    """FROM and WHERE of the pending rows of a lane in (after, upto]."""
    where = Conditions().add("t.shard = ? AND t.lane = ?", lane.shard, lane.lane)
    where.add("(t.due_ms, t.seq) > (?, ?)", *after).add("(t.due_ms, t.seq) <= (?, ?)", *upto)
    return "wheel_timer t", where.add("t.seq <= ?", lane.last)


def number_conditions(alias: str, shard: int, after: int, upto: int) -> Conditions:
    """Settlements (``b``) or outcomes (``o``) of a shard with a number in (after, upto]."""
    return Conditions().add(f"{alias}.shard = ? AND {alias}.id > ? AND {alias}.id <= ?", shard, after, upto)


def make_partition(
    url: str, columns: Sequence[SourceColumn], source: str, where: Conditions, *, outcomes: bool = False
) -> StatementPartition:
    select = ", ".join(column.outcome_sql if outcomes else column.sql for column in columns)
    sql = f"SELECT {select} FROM {source} JOIN wheel_route r ON r.id = t.route WHERE {where}"
    return StatementPartition(url, sql.replace(TASK_ID, TASK_ID_SQL[make_url(url).get_backend_name()]), where.values)
