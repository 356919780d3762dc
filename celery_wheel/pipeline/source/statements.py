"""The columns of a store's tables in Spark, and the statement by which one Spark task reads its part of them.

::

    pending   one row a pending message: behind its lane's offset, as the driver saw it
    history   one row an event: a message was dispatched (outcome ``dispatched``), or it had another outcome

Instants are TIMESTAMP in UTC, exact to the millisecond; ``…_ms`` are the store's own integers. In ``history``, (lane,
due_ms, seq) is the position from which a message was dispatched; for any other outcome it is (-1, instant, number of
the outcome), which never changes. A settlement covers the rows that had their position when it was numbered (``seq <
number``): after a rollback of the broker, new rows may come into a range whose older rows were dispatched before. A
replayed range has two settlements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType
from sqlalchemy import Connection, select, text

from celery_wheel.errors import SettingError
from celery_wheel.store import open_store
from celery_wheel.store.model import Position
from celery_wheel.store.place import place_of
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.schema import shard as shard_table
from celery_wheel.store.sql.store import SqlStore

PENDING, HISTORY = "pending", "history"

INT, LONG, STRING, INSTANT = IntegerType(), LongType(), StringType(), TimestampType()


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column; ``sql`` is an expression over timer, route, settlement and outcome that both databases understand."""

    name: str
    type: DataType
    sql: str
    outcome: str = ""  #: the expression for a row of ``outcome``, where it differs


TARGET = "r.target"

#: A task id as text, in the SQL of each database; ``celery_wheel.store.sql.schema`` has the form of its bytes.
TASK_ID = "TASK_ID"
_TEXT = "substr(t.task_id, CASE WHEN substr(t.task_id, 2, 1) = {zero} THEN 3 ELSE 2 END)"
_POSTGRESQL_TEXT, _SQLITE_TEXT = _TEXT.format(zero=r"'\x00'::bytea"), _TEXT.format(zero="x'00'")
_GROUPS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
_SQLITE_UUID = " || '-' || ".join(f"lower(substr(hex(t.task_id), {first}, {count}))" for first, count in _GROUPS)
TASK_ID_SQL = {
    "postgresql": "CASE length(t.task_id) WHEN 16 THEN CAST(CAST(encode(t.task_id, 'hex') AS uuid) AS text)"
    f" ELSE convert_from({_POSTGRESQL_TEXT}, 'UTF8') END",
    "sqlite": f"CASE length(t.task_id) WHEN 16 THEN {_SQLITE_UUID} ELSE CAST({_SQLITE_TEXT} AS TEXT) END",
}

_MESSAGE = (
    SourceColumn("id", LONG, "t.id"),
    SourceColumn("task_id", STRING, TASK_ID),
    SourceColumn("task", STRING, "r.task"),
    SourceColumn("queue", STRING, TARGET),
    SourceColumn("key", STRING, "t.key"),
    SourceColumn("group", STRING, 't."group"'),
)

_POSITION = (
    SourceColumn("shard", INT, "t.shard", "o.shard"),  # the shard that gave the number: the task may have moved since
    SourceColumn("lane", LONG, "t.lane", "-1"),
    SourceColumn("due_ms", LONG, "t.due_ms", "o.at_ms"),
    SourceColumn("seq", LONG, "t.seq", "o.id"),
)

_ETA = SourceColumn("eta", INSTANT, "t.eta_ms")
_ARRIVAL = (SourceColumn("created", INSTANT, "t.created_ms"), SourceColumn("accepted", INSTANT, "t.accepted_ms"))

COLUMNS: dict[str, tuple[SourceColumn, ...]] = {
    PENDING: (
        *_POSITION,
        *_MESSAGE,
        SourceColumn("priority", INT, "r.priority"),
        _ETA,
        SourceColumn("due", INSTANT, "t.due_ms"),
        SourceColumn("expires", INSTANT, "t.expires_ms"),
        *_ARRIVAL,
        SourceColumn("size", INT, "t.size"),
    ),
    HISTORY: (
        *_POSITION,
        *_MESSAGE,
        _ETA,
        *_ARRIVAL,
        SourceColumn("dispatched", INSTANT, "s.dispatched_ms", "null"),
        SourceColumn("lateness_ms", LONG, "s.dispatched_ms - t.eta_ms", "null"),
        SourceColumn("outcome", STRING, "'dispatched'", "o.kind"),
        SourceColumn("reason", STRING, "null", "o.reason"),
        SourceColumn("at", INSTANT, "s.dispatched_ms", "o.at_ms"),
        SourceColumn("epoch", LONG, "s.epoch", "null"),
        SourceColumn("settlement", LONG, "s.id", "null"),
        SourceColumn("size", INT, "t.size"),
    ),
}


def schema(table: str) -> StructType:
    return StructType([StructField(column.name, column.type) for column in COLUMNS[table]])


PENDING_SCHEMA, HISTORY_SCHEMA = schema(PENDING), schema(HISTORY)


def database_url(url: str) -> str:
    """Return the URL of the store's database, valid on another machine, unlike ``django://…`` and a relative path."""
    database = place_of(url).url
    if database.get_backend_name() == "sqlite" and database.database:
        database = database.set(database=str(Path(database.database).absolute()))
    return database.render_as_string(hide_password=False)


def open_for_reading(url: str) -> closing[SqlStore]:
    """Open an existing store for the block; writes nothing. Raises SettingError or StoreUnusable, with the remedy."""
    return closing(open_store(url, shards=None, create=False))


def last_numbers(connection: Connection) -> dict[int, int]:
    """Return the highest number that each shard has given: all later settlements and outcomes have greater ones."""
    rows = connection.execute(select(shard_table.c.shard, shard_table.c.seq).order_by(shard_table.c.shard))
    return {row.shard: row.seq for row in rows}


def lane_offsets(store: SqlStore, connection: Connection) -> list[LaneOffset]:
    return [
        LaneOffset(number, lane.lane, lane.offset, last)
        for number, last in last_numbers(connection).items()
        for lane in read_lanes(connection, store.database.statements, number, closed=True)
    ]


_COUNTS = {"wheel_settlement": "sum(count)", "wheel_outcome": "count(*)"}


def _partition_count(rows: int, requested: int | None) -> int:
    return requested or max(1, min(32, -(-rows // 250_000)))


def split(after: int, upto: int, rows: int, requested: int | None) -> list[tuple[int, int]]:
    """Split (after, upto] into ranges of the same length."""
    step = max(1, -(-(upto - after) // _partition_count(rows, requested)))
    return [(start, min(start + step, upto)) for start in range(after, upto, step)]


def event_ranges(
    table: str, connection: Connection, shard_ranges: dict[int, tuple[int, int]], requested: int | None
) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, after, upto) of settlements or outcomes, without empty ranges."""
    groups = {shard: _groups(table, connection, shard, *range_) for shard, range_ in shard_ranges.items()}
    total = sum(count for shard_groups in groups.values() for _, count in shard_groups)
    most = max(1, -(-total // _partition_count(total, requested)))
    for shard, shard_groups in groups.items():
        after, weight = shard_ranges[shard][0], 0
        for upto, count in shard_groups:
            weight += count
            if weight >= most:
                yield shard, after, upto
                after, weight = upto, 0
        if weight:
            yield shard, after, shard_ranges[shard][1]


def _groups(table: str, connection: Connection, shard: int, after: int, upto: int) -> list[tuple[int, int]]:
    """Return (last number, count of rows, at least 1) of each group of numbers, in order."""
    width = max(1, (upto - after) // 256 + 1)
    # Both names come from this module, and the width is an integer: nothing here is text from outside.
    counted = f"SELECT max(id), {_COUNTS[table]} FROM {table} WHERE shard = :shard AND id > :after AND id <= :upto"
    grouped = text(f"{counted} GROUP BY (id - :after) / {width} ORDER BY 1")
    rows = connection.execute(grouped, {"shard": shard, "after": after, "upto": upto})
    return [(int(end), max(1, int(count))) for end, count in rows]


_COVERED = """
    t.shard = s.shard AND t.lane = s.lane
    AND (t.due_ms, t.seq) > (s.from_due_ms, s.from_seq) AND (t.due_ms, t.seq) <= (s.to_due_ms, s.to_seq)
    AND t.seq < s.id
"""

#: Settlements first, then the rows of each by the index of positions. A planner without statistics of the ranges would
#: scan the whole table: OFFSET 0 is PostgreSQL's optimisation fence, CROSS JOIN is SQLite's.
DISPATCHED = {
    "postgresql": f"wheel_settlement s CROSS JOIN LATERAL (SELECT * FROM wheel_timer t WHERE {_COVERED} OFFSET 0) t",
    "sqlite": f"wheel_settlement s CROSS JOIN wheel_timer t ON {_COVERED}",
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


@dataclass(frozen=True)
class StatementPartition(InputPartition):
    """``sql`` has a ``?`` for each value; its columns are those of the schema, with instants in milliseconds."""

    url: str
    sql: str
    values: tuple[Value, ...]


@dataclass(slots=True)
class Conditions:
    """SQL conditions joined by AND, with their values."""

    parts: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def add(self, part: str, *values: Value) -> Conditions:
        self.parts.append(part)
        self.values += values
        return self

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
    """Settlements (``s``) or outcomes (``o``) of a shard with a number in (after, upto]."""
    return Conditions().add(f"{alias}.shard = ? AND {alias}.id > ? AND {alias}.id <= ?", shard, after, upto)
