"""``fetch``: a statement's rows as Arrow batches, a few thousand at a time, whatever their number.

::

    PostgreSQL   COPY (statement) TO STDOUT (FORMAT csv) ─► whole lines, a megabyte ─► pyarrow.csv ─► batch
    SQLite       cursor.fetchmany ─► columns ─► batch

One statement, so what a task reads is of one moment. A session of its own, closed with the last row, or where Spark
wants no more; nothing is written, and nobody waits for it.

Chosen by measurement, PostgreSQL 15, 3 million rows into an aggregate of Spark, two cores: COPY and csv 0.44 to 0.59
million rows/s, a server-side cursor 0.30 to 0.40. ADBC gave up to 1.07, but not before its second query of a process.
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
from celery_wheel.pipeline.source.pieces import Piece

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 2**20

#: The last instant that Spark's calendar and Python's both have; a later one is shown as none.
LAST_MS = 253_402_300_799_999

BUSY_TIMEOUT_S = 10


def fetch(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """``schema``: as Spark wants it; in the statement its instants are milliseconds."""
    if make_url(piece.url).get_backend_name() == "sqlite":
        return _of_sqlite(piece, schema)
    return _of_postgresql(piece, schema)


def _of_sqlite(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    path = make_url(piece.url).database or ""
    if not Path(path).exists():
        raise StoreUnusable(
            f"there is no store at {path} on the machine where Spark reads it; a store in a SQLite file can be read "
            "where the file is: with a local master there"
        )
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=rw", timeout=BUSY_TIMEOUT_S, uri=True)) as connection:
            connection.execute("PRAGMA query_only = 1")
            cursor = connection.execute(piece.sql, piece.values)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                yield _batch([pa.array(column, _raw(type_)) for column, type_ in columns], schema)
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} could not be read: {error}; nothing was changed; try again") from error


def _of_postgresql(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import psycopg

    from celery_wheel.store.postgresql.words import in_words

    url = make_url(piece.url)
    try:
        with closing(_connect(piece.url)) as connection, closing(connection.cursor()) as cursor:
            statement = piece.sql.replace("%", "%%").replace("?", "%s")
            with cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)", piece.values) as copy:
                for lines in _in_blocks(copy):
                    yield _batch(_parsed(lines, schema), schema)
    except psycopg.Error as error:
        raise StoreError(in_words(f"{url.database} on {url.host or 'local socket'}", error)) from error


def _connect(url: str) -> Any:
    import psycopg

    arguments, named = (place := make_url(url)).get_dialect()().create_connect_args(place)
    named = {"application_name": "celery-wheel pipeline", **named, "client_encoding": "utf8", "autocommit": True}
    connection = psycopg.connect(*arguments, **named)
    # Every range has an index made for it, and planned from stale statistics it would be read by scanning the table.
    settings = {"statement_timeout": "0", "jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}
    for name, value in settings.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    return connection


def _in_blocks(copy: Any) -> Iterator[bytes]:
    """Whole lines: the server sends each row as a message of its own."""
    block = bytearray()
    while row := copy.read():
        block += row
        if len(block) >= BYTES_AT_ONCE:
            yield bytes(block)
            block = bytearray()
    if block:
        yield bytes(block)


def _parsed(lines: bytes, schema: pa.Schema) -> Sequence[Any]:
    table = pacsv.read_csv(
        io.BytesIO(lines),
        # All in one block: a row may be longer than any that is chosen beforehand.
        pacsv.ReadOptions(column_names=schema.names, block_size=len(lines) + 1, use_threads=False),
        pacsv.ParseOptions(newlines_in_values=True),
        pacsv.ConvertOptions(
            column_types={one.name: _raw(one.type) for one in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # COPY quotes an empty text, and only that
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def _raw(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def _batch(raw: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        _instants(column, type_) if pa.types.is_timestamp(type_) else column
        for column, type_ in zip(raw, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _instants(column: pa.Array, type_: pa.DataType) -> pa.Array:
    known = pc.if_else(pc.less_equal(column, LAST_MS), column, pa.scalar(None, pa.int64()))
    return known.cast(pa.timestamp("ms", tz=type_.tz)).cast(type_)
