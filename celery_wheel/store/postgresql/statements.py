"""The store's statements for PostgreSQL: the three that it plans better in another form, and many rows by COPY.

Measured, 5,000 rows of 1.2 kB a commit with fsync, two busy cores: COPY takes 65 to 113 ms, 26 to 42 of them CPU time
of this process; a pipeline of INSERTs 147 to 212 ms, 113 to 154 of them CPU time. Below about 20 rows the difference is
noise. The binary format needs each value in exactly the column's type, so the types come from the table's description.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    LargeBinary,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    values,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from celery_wheel.store.sql.schema import timer, watch
from celery_wheel.store.sql.statement import CLAIM, Prepared, Statements, constant

CLOCK_SQL = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
#: The same clock at the begin of the transaction.
BEGAN_SQL = "floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint"

COPY_FROM = 20

#: SQLAlchemy's name of a type → PostgreSQL's.
_TYPES = {"small_integer": "int2", "big_integer": "int8", "integer": "int4", "large_binary": "bytea"}
_TYPES |= {"text": "text", "boolean": "bool"}


class CopyInsert:
    """Replaces the ``Prepared`` insert of a table in calls with many rows."""

    __slots__ = ("_copy", "_insert", "_types", "names")

    def __init__(self, table: Any, insert: Prepared) -> None:
        self._insert = insert
        self.names = insert.names
        columns = ", ".join(f'"{name}"' for name in self.names)
        self._copy = f"COPY {table.name} ({columns}) FROM STDIN (FORMAT BINARY)"
        self._types = [_type_of(table.c[name].type) for name in self.names]

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows; does nothing without rows."""
        if len(rows) < COPY_FROM:
            self._insert.many(connection, rows)
            return
        driver: Any = connection.connection.dbapi_connection
        with driver.cursor() as cursor, cursor.copy(self._copy) as copy:
            copy.set_types(self._types)
            for row in rows:
                copy.write_row(row)


def _type_of(type_: Any) -> str:
    return _TYPES[getattr(type_, "impl", type_).__visit_name__]


def _from_arrays(table: Table, names: Sequence[str]) -> Any:
    """Select rows out of arrays: of 5,000 tasks due within a month, 2,000 pending counts change."""
    return select(*[func.unnest(cast(bindparam(name), ARRAY(table.c[name].type))) for name in names])


def _known_of(columns: Sequence[Any], shard: Any, envelopes: list[Any]) -> Any:
    """Look up each id by itself.

    The planner may ignore an index for ``IN``: without statistics of the tables (new, restored, upgraded) it
    estimated a shard at one two-hundredth of the table, read the whole shard and compared each row with the 500
    ids: 124 ms at 500,000 rows, and in proportion, instead of half a millisecond.
    """
    wanted = values(column("id", LargeBinary), name="wanted").data([(one,) for one in envelopes])
    here = select(*columns).where(timer.c.shard == shard, timer.c.envelope_id == wanted.c.id)
    found = here.limit(constant(1)).lateral("found")
    return select(*found.c).select_from(wanted.join(found, literal_column("true")))


def _claims_on(keys: list[Any]) -> Any:
    """Look up each key by itself: for ``IN`` the planner read every watch of the shard, 10 ms at 40,000 watches."""
    listed = values(column("key", Text), name="listed").data([(one,) for one in keys])
    wanted = select(listed.c.key).distinct().subquery("wanted")
    here = (watch.c.shard == bindparam("shard"), watch.c.kind == bindparam("kind"), watch.c.key == wanted.c.key)
    # The planner does not flatten a subquery with an OFFSET.
    found = select(*CLAIM).where(*here).offset(constant(0)).lateral("found")
    return select(*found.c).select_from(wanted.join(found, literal_column("true"))).subquery("claim")


@cache
def statements() -> Statements:
    """Return the statements, compiled once in a process."""
    clock, began = (literal_column(sql, BigInteger) for sql in (CLOCK_SQL, BEGAN_SQL))
    dialect: Any = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
    return Statements(
        dialect,
        postgresql.insert,
        clock=clock,
        began=began,
        adding=CopyInsert,
        from_arrays=_from_arrays,
        # PostgreSQL itself sorts the pages that it will read.
        rows_in=lambda columns, range_: select(*columns).where(range_).order_by(timer.c.due_ms, timer.c.seq),
        known_of=_known_of,
        claims_on=_claims_on,
    )
