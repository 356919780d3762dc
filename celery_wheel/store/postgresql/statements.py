"""The store's statements for PostgreSQL: the two that differ there, and why."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    LargeBinary,
    Subquery,
    Text,
    and_,
    bindparam,
    column,
    literal_column,
    select,
    true,
    values,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from celery_wheel.store.postgresql.bulk_copy import CopyInsert
from celery_wheel.store.sql.schema import timer, watch
from celery_wheel.store.sql.statements import Statements
from celery_wheel.store.sql.statements.clauses import ROW
from celery_wheel.store.sql.statements.lookups import KNOWN

CLOCK_SQL = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
#: The same clock at the begin of the transaction.
BEGAN_SQL = "floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint"


class PostgresqlStatements(Statements):
    def _rows_in(self, range_: ColumnElement[bool]) -> Any:
        """Select the rows of a range by their positions: PostgreSQL itself sorts the pages that it will read."""
        return select(*ROW).where(range_).order_by(timer.c.due_ms, timer.c.seq)

    def _known_of(self, shard: BindParameter[int], envelopes: list[BindParameter[str]]) -> Any:
        """Look up each id by itself.

        The planner may ignore an index for ``IN``: without statistics of the tables (new, restored, upgraded) it
        estimated a shard at one two-hundredth of the table, read the whole shard and compared each row with the 500
        ids: 124 ms at 500,000 rows, and in proportion, instead of half a millisecond.
        """
        wanted = values(column("id", LargeBinary), name="wanted").data([(one,) for one in envelopes])
        here = select(*KNOWN).where(and_(timer.c.shard == shard, timer.c.envelope_id == wanted.c.id))
        found = here.limit(literal_column("1")).lateral("found")
        return select(*found.c).select_from(wanted.join(found, true()))

    def _claims_on(self, keys: list[BindParameter[str]]) -> Subquery:
        """Look up each key by itself: for ``IN`` the planner read every watch of the shard, 10 ms at 40,000 watches."""
        listed = values(column("key", Text), name="listed").data([(one,) for one in keys])
        wanted = select(listed.c.key).distinct().subquery("wanted")
        here = and_(watch.c.shard == bindparam("shard"), watch.c.kind == bindparam("kind"), watch.c.key == wanted.c.key)
        # The planner does not flatten a subquery with an OFFSET.
        found = select(watch.c.key, watch.c.timer_id).where(here).offset(literal_column("0")).lateral("found")
        return select(found.c.key, found.c.timer_id).select_from(wanted.join(found, true())).subquery("claim")


@cache
def statements() -> Statements:
    """Return the statements, compiled once in a process."""
    clock, began = (literal_column(sql, BigInteger) for sql in (CLOCK_SQL, BEGAN_SQL))
    dialect: Any = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
    return PostgresqlStatements(dialect, postgresql.insert, clock=clock, began=began, adding=CopyInsert)
