"""``fetch``: the rows of a statement as Arrow batches of a few thousand, in bounded memory.

::

    PostgreSQL   COPY (statement) TO STDOUT (FORMAT csv) ─► whole lines, a megabyte ─► pyarrow.csv ─► batch
    SQLite       cursor.fetchmany ─► columns ─► batch

One statement, so a task reads one moment of the store. The task's own session ends with the last row, or when Spark
stops early; it writes nothing and takes no lock.

COPY is chosen by measurement (PostgreSQL 15, 3 million rows into an aggregate of Spark, two cores): COPY and csv reach
0.44 to 0.59 million rows/s, a server-side cursor 0.30 to 0.40. ADBC reaches 1.07, but only from the second query of a
process on.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from sqlalchemy import make_url

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.pipeline.source.statements import StatementPartition

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 2**20

#: The last instant that Spark's calendar and Python's share; a later one becomes null.
LAST_MS = 253_402_300_799_999

BUSY_TIMEOUT_S = 10


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
    columns = [
        _as_instants(column, type_) if pa.types.is_timestamp(type_) else column
        for column, type_ in zip(raw, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_instants(column: pa.Array, type_: pa.DataType) -> pa.Array:
    representable = pc.if_else(pc.less_equal(column, LAST_MS), column, pa.scalar(None, pa.int64()))
    return representable.cast(pa.timestamp("ms", tz=type_.tz)).cast(type_)
