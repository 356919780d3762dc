"""Streaming a store's history: an offset says of each shard how far its settlements and outcomes were read.

::

    {"store": UUID, "0": {"number": 5381, "offsets": {"0": "1800000000000 5120", "3": …}}, "1": …}
                             │                └ of each lane the offset as of that number: what comes next begins there
                             └ all settlements and outcomes up to it were read

    latestOffset   (driver)   highest number of each shard, one statement; no further than ``maxRows``
    partitions     (driver)   (start, end] of each shard, as ``read`` has it
    read           (task)     one statement

No row is skipped and none comes twice, because numbers are in the order of commits: the store gives them under the
shard's lock (``celery_wheel.store.changes``), so none is committed later that is lower than one that could be seen.
What is between two offsets in a checkpoint is the same at every attempt, so a sink that writes a micro-batch once, as
Spark's file sink does, has each row once, whatever was killed meanwhile.

Order: an offset is behind another in each shard; what became of a task is therefore never in an earlier micro-batch
than what became of it before. Within one, sort by ``at``.

Two things end a stream with an error: another store behind the same URL; and a retention that was faster. The latter is
known by the offsets: a lane's oldest settlement has to begin where the last one that was read has ended. Outcomes that
were forgotten unread are not noticed by themselves: they go after the settlements of their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from sqlalchemy import Connection, func, literal, select, union_all

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.opened import numbers, opened
from celery_wheel.pipeline.source.options import Options
from celery_wheel.pipeline.source.pieces import Piece
from celery_wheel.pipeline.source.read import Asked
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.schema import batch, outcome
from celery_wheel.store.sql import SqlStore

LOST = (
    "history of shard {shard} was forgotten before this stream came to it: lane {lane} was read up to {read} and what "
    "is left begins at {begins}; keep it longer (wheel_history_retention, wheel_history_max_bytes) or stream more "
    "often; to go on with what is left: .option('failOnLoss', 'false')"
)


@dataclass(slots=True)
class Mark:
    """How far a shard was read."""

    number: int = 0
    offsets: dict[int, Position] = field(default_factory=dict)


class Offset:
    """Marks as JSON has them, in the same order each time: Spark compares the texts."""

    def __init__(self, store: str, marks: dict[int, Mark]) -> None:
        self.store = store
        self.marks = marks

    @classmethod
    def of(cls, found: dict[str, Any]) -> Offset:
        marks = {
            int(shard): Mark(mark["number"], {int(lane): _position(offset) for lane, offset in mark["offsets"].items()})
            for shard, mark in found.items()
            if shard != "store"
        }
        return cls(found["store"], marks)

    def json(self) -> dict[str, Any]:
        of_shards = {
            str(shard): {
                "number": mark.number,
                "offsets": {
                    str(lane): f"{offset.due_ms} {offset.seq}" for lane, offset in sorted(mark.offsets.items())
                },
            }
            for shard, mark in sorted(self.marks.items())
        }
        return {"store": self.store, **of_shards}


def _position(text: str) -> Position:
    due_ms, seq = text.split()
    return Position(int(due_ms), int(seq))


class WheelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._asked = Asked(options, schema)
        self._target: dict[int, int] | None = None  #: with availableNow: no further than this

    # -- on the driver ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names here and below
        with opened(self._asked.options.url) as store, store.database.snapshot() as connection:
            none = Offset(store.uuid, {})
            if self._asked.options.starting_at == "earliest":
                return none.json()
            return _moved(connection, none, numbers(connection)).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._asked.options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with opened(self._asked.options.url) as store, store.database.snapshot() as connection:
            self._target = numbers(connection)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The same as ``start`` where nothing is new: other writes of the store give numbers, too."""
        offset = Offset.of(start)
        with opened(self._asked.options.url) as store, store.database.snapshot() as connection:
            self._check_store(store, offset)
            upto = numbers(connection)
            if self._target is not None:
                upto = {shard: min(number, self._target.get(shard, 0)) for shard, number in upto.items()}
            ends = {}
            for shard, number in upto.items():
                end = _end(connection, shard, offset.marks.get(shard, Mark()).number, number, _rows(limit, len(upto)))
                if end is not None:
                    ends[shard] = end
            return _moved(connection, offset, ends).json() if ends else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Piece]:
        first, last = Offset.of(start), Offset.of(end)
        numbered = {}
        for shard, mark in last.marks.items():
            after = first.marks.get(shard, Mark()).number
            if after < mark.number:
                numbered[shard] = after, mark.number
        with opened(self._asked.options.url) as store, store.database.snapshot() as connection:
            self._check_store(store, last)
            if self._asked.options.fail_on_loss:
                for shard in numbered:
                    _check_loss(connection, shard, first.marks.get(shard, Mark()))
            return self._asked.past(connection, numbered)

    def _check_store(self, store: SqlStore, offset: Offset) -> None:
        if store.uuid != offset.store:
            raise StoreUnusable(
                f"the stream's checkpoint is of the store with the id {offset.store}, and {store.database.name} has "
                f"{store.uuid}: another one, or made anew; nothing was read; give the stream a new checkpoint folder"
            )

    # -- in a task ---------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._asked.fetch(partition)


def _rows(limit: ReadLimit, shards: int) -> int | None:
    """Of a shard; None for all."""
    if isinstance(limit, ReadAllAvailable):
        return None
    return max(1, limit.max_rows // max(1, shards)) if isinstance(limit, ReadMaxRows) else None


def _end(connection: Connection, shard: int, after: int, upto: int, rows: int | None) -> int | None:
    """How far a micro-batch reads a shard: behind the settlement with which it has ``rows``. None: there is nothing."""

    def within(table: Any) -> Any:
        return (table.c.shard == shard, table.c.id > after, table.c.id <= upto)

    batches = select(batch.c.id, batch.c.count).where(*within(batch))
    outcomes = select(outcome.c.id, literal(1).label("count")).where(*within(outcome))
    if rows is None:
        both = union_all(batches, outcomes).subquery()
        end: int | None = connection.scalar(select(func.max(both.c.id)))
        return end
    # Each has at least one row, so that no more of them are looked at; in the order of its own index each.
    firsts = [one.order_by("id").limit(rows).subquery() for one in (batches, outcomes)]
    events = union_all(*(select(one) for one in firsts)).subquery()
    end, count = None, 0
    for number, size in connection.execute(select(events).order_by(events.c.id)):
        end = number
        count += max(1, size)
        if count >= rows:
            break
    return end


def _moved(connection: Connection, offset: Offset, ends: dict[int, int]) -> Offset:
    """The offset with some shards further on, and their lanes' offsets as of there."""
    marks = dict(offset.marks)
    for shard, end in ends.items():
        before = marks.get(shard, Mark())
        new = (batch.c.shard == shard, batch.c.id > before.number, batch.c.id <= end)
        last = select(func.max(batch.c.id)).where(*new).group_by(batch.c.lane)
        offsets = select(batch.c.lane, batch.c.to_due_ms, batch.c.to_seq).where(batch.c.id.in_(last))
        found = {row.lane: Position(row.to_due_ms, row.to_seq) for row in connection.execute(offsets)}
        marks[shard] = Mark(end, before.offsets | found)
    return Offset(offset.store, marks)


def _check_loss(connection: Connection, shard: int, mark: Mark) -> None:
    """Settlements are forgotten in order: while one that was read is there, all that were not are."""
    if mark.number == 0:
        return
    of_shard = batch.c.shard == shard
    oldest = connection.scalar(select(func.min(batch.c.id)).where(of_shard))
    if oldest is None or oldest <= mark.number:
        return
    first = select(func.min(batch.c.id)).where(of_shard).group_by(batch.c.lane)
    begins = select(batch.c.lane, batch.c.from_due_ms, batch.c.from_seq).where(batch.c.id.in_(first))
    for lane, *place in connection.execute(begins):
        read = mark.offsets.get(lane, ORIGIN)
        if Position(*place) > read:
            raise StoreUnusable(LOST.format(shard=shard, lane=lane, read=tuple(read), begins=tuple(place)))
