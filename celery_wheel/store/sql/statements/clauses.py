"""The parts of several statements: ranges, columns, and how a statement is compiled.

A range is always (after, upto] in one lane of one shard. As a comparison of pairs it is a range of the position
index on both dialects; tests/unit/store/sql/test_schema.py checks that on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Table, and_, bindparam, insert, tuple_

from celery_wheel.store.model import Position, Row
from celery_wheel.store.sql.fields import InsertStatement, columns_of
from celery_wheel.store.sql.schema import batch, shard, snapshot, timer
from celery_wheel.store.sql.statement import Prepared

#: Values of one ``IN``. A statement has a fixed number of places, so that it is compiled once; spare places repeat the
#: last value. SQLite before 3.32 allows 999.
IN_PLACES = 500

#: Keys, task ids or row ids of one statement; most calls have one or a few.
KEY_PLACES = 50

#: The values of ``Catalogue.row``.
ROW = columns_of(Row, timer, packed=timer.c.message)

#: The values of ``shard_record`` that a holder shows of itself, beside those of its row.
SHOWN = (snapshot.c.at_ms.label("snapshot_at_ms"), snapshot.c.figures.label("snapshot"))

BATCH_RANGE = (
    batch.c.id,
    batch.c.lane,
    batch.c.from_due_ms,
    batch.c.from_seq,
    batch.c.to_due_ms,
    batch.c.to_seq,
    batch.c.bytes,
    batch.c.dispatched_ms,
)


def in_range(table: Table = timer) -> ColumnElement[bool]:
    position = tuple_(table.c.due_ms, table.c.seq)
    return and_(
        table.c.shard == bindparam("shard"),
        table.c.lane == bindparam("lane"),
        position > tuple_(bindparam("after_due_ms"), bindparam("after_seq")),
        position <= tuple_(bindparam("upto_due_ms"), bindparam("upto_seq")),
    )


def span(shard: int, lane: int, after: Position, upto: Position) -> dict[str, int]:
    """Return the bound values of a range."""
    return {
        "shard": shard,
        "lane": lane,
        "after_due_ms": after.due_ms,
        "after_seq": after.seq,
        "upto_due_ms": upto.due_ms,
        "upto_seq": upto.seq,
    }


def in_parts(wanted: Sequence[Any], places: int) -> list[tuple[Any, ...]]:
    """Split the values into as many as a statement has places; spare places repeat the last value."""
    parts = [list(wanted[start : start + places]) for start in range(0, len(wanted), places)]
    return [(*part, *part[-1:] * (places - len(part))) for part in parts]


def held() -> ColumnElement[bool]:
    """Match the shard's row while the holder's epoch is current."""
    return and_(shard.c.shard == bindparam("at_shard"), shard.c.epoch == bindparam("at_epoch"))


class StatementFactory:
    """Compiles statements for the dialect; the base of the parts of ``Statements``."""

    _dialect: Dialect
    _insert_or: Callable[[Table], Any]
    _adding: Callable[[Table, Prepared], InsertStatement] | None

    def _prepare(self, clause: Any) -> Prepared:
        return Prepared(clause, self._dialect)

    def _bulk(self, table: Table, clause: Any = None) -> InsertStatement:
        prepared = self._prepare(insert(table) if clause is None else clause)
        return prepared if self._adding is None else self._adding(table, prepared)
