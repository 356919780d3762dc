"""Reading a store in Spark: the driver plans the read at one moment, and each task reads its part by one statement.

::

    PostgreSQL   COPY (statement) TO STDOUT (FORMAT csv) ─► whole lines, a megabyte ─► pyarrow.csv ─► batch
    SQLite       cursor.fetchmany ─► columns ─► batch

history   Promise: one row an event that was committed before the driver's snapshot, and none of a later event; a
          replayed message has one row a dispatch. Non-promises: rows that retention removes before a task reads them
          are missing; so is the first dispatch of a row that was repeated, moved or cancelled since.
pending   Promise: a message that was pending at the driver's snapshot and is not changed occurs once, also if it is
          dispatched meanwhile. Non-promise: messages accepted, cancelled or rescheduled later may be there or not, and
          a rescheduled message may occur at both positions.

Options become conditions of the statements. Conditions of a query do not: Spark (4.3) keeps them with the DataFrame, so
its second query would count the rows of the first one's.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import Connection, func, make_url, select

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.pipeline.source import statements
from celery_wheel.pipeline.source.options import SourceOptions
from celery_wheel.pipeline.source.statements import PENDING, Conditions, StatementPartition, open_for_reading
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store.model import MAX_SEQ, SHARD_BITS, Position
from celery_wheel.store.sql.schema import timer
from celery_wheel.store.sql.store import SqlStore

FIRST_MS, LAST_MS = 0, 2**62
ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 2**20
BUSY_TIMEOUT_S = 10


@dataclass(slots=True)
class ReadRequest:
    options: SourceOptions
    schema: StructType
    url: str = field(init=False)  #: of the database itself

    def __post_init__(self) -> None:
        # Checked on the driver: its error is shorter than that of every task.
        statements.select_columns(self.options.table, self.schema)
        self.url = statements.database_url(self.options.url)

    def partition(self, source: str, where: Conditions, *, outcomes: bool = False) -> StatementPartition:
        """Return a partition, with the conditions of the options ``queue``, ``task``, ``dueFrom`` and ``dueTo``."""
        options, due = self.options, "o.at_ms" if outcomes else "t.due_ms"
        if options.queue is not None:
            where.add(f"{statements.TARGET} = ?", options.queue)
        if options.task is not None:
            where.add("r.task = ?", options.task)
        if options.due_from_ms is not None:
            where.add(f"{due} >= ?", options.due_from_ms)
        if options.due_to_ms is not None:
            where.add(f"{due} < ?", options.due_to_ms)
        columns = statements.select_columns(options.table, self.schema)
        selected = ", ".join((outcomes and column.outcome) or column.sql for column in columns)
        sql = f"SELECT {selected} FROM {source} JOIN wheel_route r ON r.id = t.route WHERE {where}"
        task_id = statements.TASK_ID_SQL[make_url(self.url).get_backend_name()]
        return StatementPartition(self.url, sql.replace(statements.TASK_ID, task_id), tuple(where.values))

    def due_range(self) -> tuple[int, int]:
        """Return the lowest and the highest due time that the options admit."""
        low, high = self.options.due_from_ms, self.options.due_to_ms
        return FIRST_MS if low is None else low, LAST_MS if high is None else high - 1

    def pending(self, store: SqlStore, connection: Connection) -> list[StatementPartition]:
        low, high = self.due_range()
        if (low, high) == (FIRST_MS, LAST_MS):
            return self._pending_by_id(store, connection)
        partitions = []
        for lane in statements.lane_offsets(store, connection):
            after, upto = max(lane.offset, Position(low, 0).previous()), Position(high, MAX_SEQ)
            if after < upto:
                partitions.append(self.partition(*statements.pending_by_position(lane, after, upto)))
        return partitions

    def _pending_by_id(self, store: SqlStore, connection: Connection) -> list[StatementPartition]:
        low, high = connection.execute(select(func.min(timer.c.id), func.max(timer.c.id))).one()
        if low is None:
            return []
        offsets = statements.lane_offsets(store, connection)
        count = (high - low >> SHARD_BITS) * store.shards
        return [
            self.partition(*statements.pending_by_id(after, upto, offsets))
            for after, upto in statements.split(low - 1, high, count, self.options.partitions)
        ]

    def shard_ranges(self, last: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return (after, upto] of each shard, at most up to ``last``: later events are not committed at one moment."""
        events = self.options.events
        if events is None:
            return {shard: (0, upto) for shard, upto in last.items()}
        ranges = {shard: (after, min(upto, last[shard])) for shard, (after, upto) in events.items() if shard in last}
        return {shard: (after, upto) for shard, (after, upto) in ranges.items() if after < upto}

    def history(self, connection: Connection, shard_ranges: dict[int, tuple[int, int]]) -> list[StatementPartition]:
        """Return the partitions of a history; ``shard_ranges`` are the numbers to read of each shard, (after, upto]."""
        dialect = connection.dialect.name
        low, high = self.due_range()
        partitions = []
        given = (connection, shard_ranges, self.options.partitions)
        for shard, after, upto in statements.event_ranges("wheel_settlement", *given):
            where = statements.number_conditions("s", shard, after, upto)
            if (low, high) != (FIRST_MS, LAST_MS):
                where = where.add("s.to_due_ms >= ? AND s.from_due_ms <= ?", low, high)
            partitions.append(self.partition(statements.DISPATCHED[dialect], where))
        for shard, after, upto in statements.event_ranges("wheel_outcome", *given):
            where = statements.number_conditions("o", shard, after, upto)
            partitions.append(self.partition(statements.OUTCOMES[dialect], where, outcomes=True))
        return partitions

    def fetch(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch the rows of a partition; none for the empty one that Spark makes where there is no other."""
        if not isinstance(partition, StatementPartition):
            return iter(())
        return fetch(partition, to_arrow_schema(self.schema, timezone="UTC"))


class WheelReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._request = ReadRequest(options, schema)

    @concise()
    def partitions(self) -> list[StatementPartition]:
        request = self._request
        with open_for_reading(request.options.url) as store, store.database.snapshot() as connection:
            if request.options.table == PENDING:
                return request.pending(store, connection)
            return request.history(connection, request.shard_ranges(statements.last_numbers(connection)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._request.fetch(partition)


def fetch(partition: StatementPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``partition`` in the types of ``schema``; the statement returns instants as milliseconds."""
    if make_url(partition.url).get_backend_name() == "sqlite":
        return _fetch_sqlite(partition, schema)
    return _fetch_postgresql(partition, schema)


def _fetch_sqlite(partition: StatementPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    path = make_url(partition.url).database or ""
    if not Path(path).exists():
        raise StoreUnusable(
            f"there is no store at {path} on the machine where Spark reads it; a store in a SQLite file can be read "
            "only on the machine that has the file: use a local master there"
        )
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=rw", timeout=BUSY_TIMEOUT_S, uri=True)) as connection:
            connection.execute("PRAGMA query_only = 1")
            cursor = connection.execute(partition.sql, partition.values)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                yield _batch([pa.array(column, _storage_type(type_)) for column, type_ in columns], schema)
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} could not be read: {error}; nothing was changed; try again") from error


def _fetch_postgresql(partition: StatementPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import psycopg

    from celery_wheel.store.postgresql.errors import describe

    url = make_url(partition.url)
    try:
        with closing(_connect(partition.url)) as connection, closing(connection.cursor()) as cursor:
            statement = partition.sql.replace("%", "%%").replace("?", "%s")
            with cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)", partition.values) as copy:
                for lines in _line_blocks(copy):
                    yield _batch(_parse_csv(lines, schema), schema)
    except psycopg.Error as error:
        raise StoreError(describe(f"{url.database} on {url.host or 'local socket'}", error, reading=True)) from error


def _connect(url: str) -> Any:
    import psycopg

    place = make_url(url)
    args, kwargs = place.get_dialect()().create_connect_args(place)
    kwargs = {"application_name": "celery-wheel pipeline", **kwargs, "client_encoding": "utf8", "autocommit": True}
    connection = psycopg.connect(*args, **kwargs)
    # Every range has its index; a plan from stale statistics would scan the table instead.
    settings = {"statement_timeout": "0", "jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    return connection


def _line_blocks(copy: Any) -> Iterator[bytes]:
    """Yield blocks of whole lines: the server sends each row as one message."""
    block = bytearray()
    while row := copy.read():
        block += row
        if len(block) >= BYTES_AT_ONCE:
            yield bytes(block)
            block = bytearray()
    if block:
        yield bytes(block)


def _parse_csv(lines: bytes, schema: pa.Schema) -> Sequence[Any]:
    table = pacsv.read_csv(
        io.BytesIO(lines),
        # All lines in one block: no smaller size is sure to hold the longest row.
        pacsv.ReadOptions(column_names=schema.names, block_size=len(lines) + 1, use_threads=False),
        pacsv.ParseOptions(newlines_in_values=True),
        pacsv.ConvertOptions(
            column_types={field.name: _storage_type(field.type) for field in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # COPY quotes an empty text, and only that
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _batch(raw: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column, type_ in zip(raw, schema.types, strict=True):
        if pa.types.is_timestamp(
            type_
        ):  # the last instant that Spark's calendar and Python's share; a later one is null
            shared = pc.if_else(pc.less_equal(column, 253_402_300_799_999), column, pa.scalar(None, pa.int64()))
            columns.append(shared.cast(pa.timestamp("ms", tz=type_.tz)).cast(type_))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
