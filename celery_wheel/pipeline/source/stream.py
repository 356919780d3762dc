"""A store's history as a stream, whose offset is the last event read of each shard.

::

    {"store": UUID, "0": {"number": 5381, "offsets": {"0": "1800000000000 5120", "3": …}}, "1": …}
                             │                └ offset of each lane at that number: the next settlement begins there
                             └ all settlements and outcomes up to this number were read

No row is skipped and none occurs twice: the store gives numbers in the order of commits, so the rows between two
offsets are the same at every attempt. The events of a task never occur in an earlier micro-batch than its older ones.
A stream ends with an error where another store is behind its URL, or retention removed unread events: a lane's oldest
settlement must begin where the last one that was read ended. Outcomes are removed after the settlements of their time.
The store forgets a lane that is closed and has no settlement left: so does the offset, or it would grow for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from sqlalchemy import Connection, func, literal, select, union_all

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.options import SourceOptions
from celery_wheel.pipeline.source.read import ReadRequest
from celery_wheel.pipeline.source.statements import StatementPartition, last_numbers, open_for_reading
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.sql.schema import lane, outcome, settlement
from celery_wheel.store.sql.store import SqlStore


@dataclass(slots=True)
class ShardProgress:
    """The last event of a shard that was read, and the offset of each lane at that event."""

    number: int = 0
    offsets: dict[int, Position] = field(default_factory=dict)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ShardProgress:
        offsets = {int(lane): Position(*map(int, offset.split())) for lane, offset in fields["offsets"].items()}
        return cls(fields["number"], offsets)

    def json(self) -> dict[str, Any]:
        offsets = {str(lane): f"{offset.due_ms} {offset.seq}" for lane, offset in sorted(self.offsets.items())}
        return {"number": self.number, "offsets": offsets}


@dataclass(slots=True)
class StreamOffset:
    """The progress in every shard. Its JSON has one fixed order, because Spark compares the texts."""

    store: str
    shards: dict[int, ShardProgress]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StreamOffset:
        shards = {int(name): ShardProgress.from_json(value) for name, value in fields.items() if name != "store"}
        return cls(fields["store"], shards)

    def json(self) -> dict[str, Any]:
        shards = {str(shard): progress.json() for shard, progress in sorted(self.shards.items())}
        return {"store": self.store, **shards}

    def shard(self, number: int) -> ShardProgress:
        return self.shards.get(number, ShardProgress())


class WheelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._request = ReadRequest(options, schema)
        self._target: dict[int, int] | None = None  #: with availableNow: the numbers at which the stream ends

    @concise()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names here and below
        with open_for_reading(self._request.options.url) as store, store.database.snapshot() as connection:
            start = StreamOffset(store.uuid, {})
            if self._request.options.starting_at == "latest":
                start = _advance(connection, start, last_numbers(connection))
            return start.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._request.options.max_rows)

    @concise()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with open_for_reading(self._request.options.url) as store, store.database.snapshot() as connection:
            self._target = last_numbers(connection)

    @concise()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Equal to ``start`` where no event is new: other writes of the store take numbers, too."""
        offset = StreamOffset.from_json(start)
        with open_for_reading(self._request.options.url) as store, store.database.snapshot() as connection:
            self._check_store(store, offset)
            upto = last_numbers(connection)
            if self._target is not None:
                upto = {shard: min(number, self._target.get(shard, 0)) for shard, number in upto.items()}
            # The greatest number of rows of one shard in a micro-batch; None: all.
            rows = max(1, limit.max_rows // max(1, len(upto))) if isinstance(limit, ReadMaxRows) else None
            found = {
                shard: _batch_end(connection, shard, offset.shard(shard).number, number, rows)
                for shard, number in upto.items()
            }
            ends = {shard: end for shard, end in found.items() if end is not None}
            return _advance(connection, offset, ends).json() if ends else start

    @concise()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StatementPartition]:
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        ends = {shard: (first.shard(shard).number, progress.number) for shard, progress in last.shards.items()}
        ranges = {shard: (after, upto) for shard, (after, upto) in ends.items() if after < upto}
        with open_for_reading(self._request.options.url) as store, store.database.snapshot() as connection:
            self._check_store(store, last)
            if self._request.options.fail_on_loss:
                for shard in ranges:
                    _check_loss(connection, shard, first.shard(shard))
            return self._request.history(connection, ranges)

    def _check_store(self, store: SqlStore, offset: StreamOffset) -> None:
        if store.uuid != offset.store:
            raise StoreUnusable(
                f"the stream's checkpoint belongs to the store {offset.store}, but {store.database.name} is "
                f"{store.uuid}: another store, or one created anew; nothing was read; give the stream "
                "a new checkpoint folder"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._request.fetch(partition)


def _batch_end(connection: Connection, shard: int, after: int, upto: int, rows: int | None) -> int | None:
    """Return the number at which a micro-batch has ``rows`` rows of a shard, or its last one; None: no event is new."""

    def within(table: Any) -> Any:
        return (table.c.shard == shard, table.c.id > after, table.c.id <= upto)

    settlements = select(settlement.c.id, settlement.c.count).where(*within(settlement))
    outcomes = select(outcome.c.id, literal(1).label("count")).where(*within(outcome))
    if rows is None:
        both = union_all(settlements, outcomes).subquery()
        end: int | None = connection.scalar(select(func.max(both.c.id)))
        return end
    # An event has at least one row, so ``rows`` events of each table are enough; each table is read by its index.
    firsts = [one.order_by("id").limit(rows).subquery() for one in (settlements, outcomes)]
    events = union_all(*(select(one) for one in firsts)).subquery()
    end, count = None, 0
    for number, size in connection.execute(select(events).order_by(events.c.id)):
        end = number
        count += max(1, size)
        if count >= rows:
            break
    return end


def _advance(connection: Connection, offset: StreamOffset, ends: dict[int, int]) -> StreamOffset:
    """Return the offset with the shards of ``ends`` at those numbers, and the offsets of their lanes there."""
    shards = dict(offset.shards)
    for shard, end in ends.items():
        before = offset.shard(shard)
        new = (settlement.c.shard == shard, settlement.c.id > before.number, settlement.c.id <= end)
        last = select(func.max(settlement.c.id)).where(*new).group_by(settlement.c.lane)
        columns = (settlement.c.lane, settlement.c.to_due_ms, settlement.c.to_seq)
        offsets = select(*columns).where(settlement.c.id.in_(last))
        lanes = {row.lane: Position(row.to_due_ms, row.to_seq) for row in connection.execute(offsets)}
        known = set(connection.scalars(select(lane.c.lane).where(lane.c.shard == shard)))
        left = {number: read for number, read in (before.offsets | lanes).items() if number in known}
        shards[shard] = ShardProgress(end, left)
    return StreamOffset(offset.store, shards)


def _check_loss(connection: Connection, shard: int, progress: ShardProgress) -> None:
    """Raise StoreUnusable where retention, which removes settlements in order, removed unread ones."""
    if progress.number == 0:
        return
    in_shard = settlement.c.shard == shard
    oldest = connection.scalar(select(func.min(settlement.c.id)).where(in_shard))
    if oldest is None or oldest <= progress.number:
        return
    first = select(func.min(settlement.c.id)).where(in_shard).group_by(settlement.c.lane)
    columns = (settlement.c.lane, settlement.c.from_due_ms, settlement.c.from_seq)
    begins = select(*columns).where(settlement.c.id.in_(first))
    for number, *place in connection.execute(begins):
        read = progress.offsets.get(number, ORIGIN)
        if Position(*place) > read:
            raise StoreUnusable(
                f"retention removed history of shard {shard} before this stream read it: lane {number} was read up to "
                f"{tuple(read)} and the remaining history begins at {tuple(place)}; keep history longer "
                "(wheel_history_retention, wheel_history_max_bytes) or stream more often; to continue with the "
                "remaining history: .option('failOnLoss', 'false')"
            )
