"""Reading a store in Spark: the driver says once what there is to read, and tasks read their part of it.

::

    driver   one snapshot: offsets of all lanes, highest numbers ─► pieces
    task     one statement (``fetch``)

Parts are read at different moments, while a scheduler is at work, but up to the same offsets and numbers:

history   Promise: a row an event that was committed before the driver looked, and of no later one; each once, and what
          was replayed once a time that it left. Non-promises: what retention removes before a task comes to it is
          missing; so is the first departure of a row that was sent again by ``celery wheel replay``, or, after a
          rollback of the broker, of one that was moved or cancelled before it left again: it has another place since.
pending   Promise: what waited when the driver looked and was left alone is there once, also if it leaves meanwhile.
          Non-promise: of what is accepted, cancelled or rescheduled in that moment or later, some may be there, some
          not, and what is rescheduled even at both places.

``queue``, ``task`` and due times go into the statements; with ``pushdown``, so do conditions of the query (``push``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import Connection, func, select

from celery_wheel.pipeline.columns import PENDING
from celery_wheel.pipeline.source import pieces
from celery_wheel.pipeline.source.fetch import fetch
from celery_wheel.pipeline.source.opened import numbers, offsets, opened, plain_url
from celery_wheel.pipeline.source.options import Options
from celery_wheel.pipeline.source.parts import ranges_of, split
from celery_wheel.pipeline.source.pieces import SETTLED, STOPPED, Piece, Where
from celery_wheel.pipeline.source.push import Pushed, pushed
from celery_wheel.store.model import MAX_SEQ, SHARD_BITS, Position
from celery_wheel.store.schema import timer
from celery_wheel.store.sql import SqlStore

FIRST_MS, LAST_MS = 0, 2**62


@dataclass(slots=True)
class Asked:
    """What is to be read of a table: columns and conditions, and the pieces of it that are read at once."""

    options: Options
    schema: StructType
    pushed: list[Pushed] = field(default_factory=list)
    url: str = field(init=False)  #: of the database itself

    def __post_init__(self) -> None:
        pieces.wanted(self.options.table, self.schema)  # an error of the driver is shorter than one of every task
        self.url = plain_url(self.options.url)

    def piece(self, source: str, where: Where, *, outcomes: bool = False) -> Piece:
        columns = pieces.wanted(self.options.table, self.schema)
        where = where.plus(pieces.conditions(self.options, outcomes=outcomes))
        for one in self.pushed:
            where = where.plus(one.where(outcomes=outcomes))
        return pieces.piece(self.url, columns, source, where, outcomes=outcomes)

    def due(self) -> tuple[int, int]:
        """The due times that may count: from, to, both included."""
        low = [FIRST_MS if self.options.due_from_ms is None else self.options.due_from_ms]
        high = [LAST_MS if self.options.due_to_ms is None else self.options.due_to_ms - 1]
        for one in self.pushed:
            if one.column.name in ("due", "due_ms"):
                low += [int(value) for value in one.values if one.operator in (">", ">=", "=")]
                high += [int(value) for value in one.values if one.operator in ("<", "<=", "=")]
        return max(low), min(high)

    # -- pending ---------------------------------------------------------------------------------

    def waiting(self, store: SqlStore, connection: Connection) -> list[Piece]:
        low, high = self.due()
        if (low, high) == (FIRST_MS, LAST_MS):
            return self._by_id(store, connection)
        found = []
        for one in offsets(store, connection):
            after, upto = max(one.offset, Position(low, 0).previous()), Position(high, MAX_SEQ)
            if after < upto:
                found.append(self.piece(*pieces.of_positions(one, after, upto)))
        return found

    def _by_id(self, store: SqlStore, connection: Connection) -> list[Piece]:
        low, high = connection.execute(select(func.min(timer.c.id), func.max(timer.c.id))).one()
        if low is None:
            return []
        states = offsets(store, connection)
        count = (high - low >> SHARD_BITS) * store.shards
        return [
            self.piece(*pieces.of_ids(after, upto, states))
            for after, upto in split(low - 1, high, count, self.options.partitions)
        ]

    # -- history -----------------------------------------------------------------------------------

    def numbered(self, last: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Of each shard (after, upto]; none beyond the last: what comes later is not committed at one moment."""
        events = self.options.events
        if events is None:
            return {shard: (0, upto) for shard, upto in last.items()}
        ranges = {shard: (after, min(upto, last[shard])) for shard, (after, upto) in events.items() if shard in last}
        return {shard: (after, upto) for shard, (after, upto) in ranges.items() if after < upto}

    def past(self, connection: Connection, numbered: dict[int, tuple[int, int]]) -> list[Piece]:
        """``numbered``: of each shard the settlements and outcomes in (after, upto]."""
        dialect = connection.dialect.name
        low, high = self.due()
        found = []
        for shard, after, upto in ranges_of("wheel_batch", connection, numbered, self.options.partitions):
            where = pieces.of_numbers("b", shard, after, upto)
            if (low, high) != (FIRST_MS, LAST_MS):
                where = where.add("b.to_due_ms >= ? AND b.from_due_ms <= ?", low, high)
            found.append(self.piece(SETTLED[dialect], where))
        for shard, after, upto in ranges_of("wheel_outcome", connection, numbered, self.options.partitions):
            found.append(self.piece(STOPPED[dialect], pieces.of_numbers("o", shard, after, upto), outcomes=True))
        return found

    # -- in a task ---------------------------------------------------------------------------------

    def fetch(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Nothing for the empty partition that Spark makes where there are none."""
        if not isinstance(partition, Piece):
            return iter(())
        return fetch(partition, to_arrow_schema(self.schema, timezone="UTC"))


class WheelReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._asked = Asked(options, schema)

    def partitions(self) -> list[Piece]:
        asked = self._asked
        with opened(asked.options.url) as store, store.database.snapshot() as connection:
            if asked.options.table == PENDING:
                return asked.waiting(store, connection)
            return asked.past(connection, asked.numbered(numbers(connection)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._asked.fetch(partition)


class PushingReader(WheelReader):
    """Spark refuses every read of a reader with ``pushFilters`` while its setting is off, so it is asked for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._asked.pushed = pushed(self._asked.options.table, filters)
        return filters
