"""Reading a store in Spark: the driver plans the read at one moment, and each task reads its part.

::

    driver   one snapshot: offsets of all lanes, highest numbers ─► partitions
    task     one statement (``fetch``)

Tasks read at different moments, while a scheduler is at work, but up to the same offsets and numbers:

history   Promise: one row an event that was committed before the driver's snapshot, and none of a later event; a
          replayed message has one row a dispatch. Non-promises: rows that retention removes before a task reads them
          are missing; so is the first dispatch of a row that ``celery wheel replay`` repeated, or that was moved or
          cancelled after a rollback of the broker and before its second dispatch: its position has changed since.
pending   Promise: a message that was pending at the driver's snapshot and is not changed occurs once, also if it is
          dispatched meanwhile. Non-promise: messages accepted, cancelled or rescheduled at that moment or later may be
          there or not, and a rescheduled message may occur at both positions.

``queue``, ``task`` and due times go into the statements; with ``pushdown``, so do conditions of the query.
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
from celery_wheel.pipeline.source import statements
from celery_wheel.pipeline.source.fetch import fetch
from celery_wheel.pipeline.source.options import SourceOptions
from celery_wheel.pipeline.source.pushdown import PushedCondition, pushed_conditions
from celery_wheel.pipeline.source.ranges import event_ranges, split
from celery_wheel.pipeline.source.snapshot import database_url, lane_offsets, last_numbers, open_for_reading
from celery_wheel.pipeline.source.statements import DISPATCHED, OUTCOMES, Conditions, StatementPartition
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store.model import MAX_SEQ, SHARD_BITS, Position
from celery_wheel.store.sql.schema import timer
from celery_wheel.store.sql.store import SqlStore

FIRST_MS, LAST_MS = 0, 2**62


@dataclass(slots=True)
class ReadRequest:
    """The columns and conditions of one read, and the partitions in which it is read."""

    options: SourceOptions
    schema: StructType
    pushed: list[PushedCondition] = field(default_factory=list)
    url: str = field(init=False)  #: of the database itself

    def __post_init__(self) -> None:
        # Checked on the driver: its error is shorter than that of every task.
        statements.select_columns(self.options.table, self.schema)
        self.url = database_url(self.options.url)

    def partition(self, source: str, where: Conditions, *, outcomes: bool = False) -> StatementPartition:
        columns = statements.select_columns(self.options.table, self.schema)
        where = where.extend(statements.option_conditions(self.options, outcomes=outcomes))
        for condition in self.pushed:
            where = where.extend(condition.where(outcomes=outcomes))
        return statements.make_partition(self.url, columns, source, where, outcomes=outcomes)

    def due_range(self) -> tuple[int, int]:
        """Return the lowest and the highest due time that the conditions admit."""
        low = [FIRST_MS if self.options.due_from_ms is None else self.options.due_from_ms]
        high = [LAST_MS if self.options.due_to_ms is None else self.options.due_to_ms - 1]
        for condition in self.pushed:
            if condition.column.name in ("due", "due_ms"):
                low += [int(value) for value in condition.values if condition.operator in (">", ">=", "=")]
                high += [int(value) for value in condition.values if condition.operator in ("<", "<=", "=")]
        return max(low), min(high)

    # -- pending ---------------------------------------------------------------------------------

    def pending(self, store: SqlStore, connection: Connection) -> list[StatementPartition]:
        low, high = self.due_range()
        if (low, high) == (FIRST_MS, LAST_MS):
            return self._pending_by_id(store, connection)
        partitions = []
        for lane in lane_offsets(store, connection):
            after, upto = max(lane.offset, Position(low, 0).previous()), Position(high, MAX_SEQ)
            if after < upto:
                partitions.append(self.partition(*statements.pending_by_position(lane, after, upto)))
        return partitions

    def _pending_by_id(self, store: SqlStore, connection: Connection) -> list[StatementPartition]:
        low, high = connection.execute(select(func.min(timer.c.id), func.max(timer.c.id))).one()
        if low is None:
            return []
        offsets = lane_offsets(store, connection)
        count = (high - low >> SHARD_BITS) * store.shards
        return [
            self.partition(*statements.pending_by_id(after, upto, offsets))
            for after, upto in split(low - 1, high, count, self.options.partitions)
        ]

    # -- history -----------------------------------------------------------------------------------

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
        for shard, after, upto in event_ranges("wheel_batch", connection, shard_ranges, self.options.partitions):
            where = statements.number_conditions("b", shard, after, upto)
            if (low, high) != (FIRST_MS, LAST_MS):
                where = where.add("b.to_due_ms >= ? AND b.from_due_ms <= ?", low, high)
            partitions.append(self.partition(DISPATCHED[dialect], where))
        for shard, after, upto in event_ranges("wheel_outcome", connection, shard_ranges, self.options.partitions):
            where = statements.number_conditions("o", shard, after, upto)
            partitions.append(self.partition(OUTCOMES[dialect], where, outcomes=True))
        return partitions

    # -- in a task ---------------------------------------------------------------------------------

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
            return request.history(connection, request.shard_ranges(last_numbers(connection)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._request.fetch(partition)


class PushdownReader(WheelReader):
    """A reader of its own, because Spark refuses any reader with ``pushFilters`` while its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._request.pushed = pushed_conditions(self._request.options.table, filters)
        return filters
