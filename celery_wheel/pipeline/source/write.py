"""Writing to a store from Spark: bulk loads, all of whose rows are scheduled, or none, however often Spark retries.

::

    write          driver   begin or resume the load "monday"; for a committed load, write nothing
                   tasks    a part each: claim ─► slices of rows, packed, a chunk a shard ─► finish
                   driver   commit exactly the parts that Spark counts, or remove everything
    writeStream    the same with the load "orders" / query / number, which the tasks join in its next run

``celery_wheel.store.store_model`` has the protocol behind it. A killed driver leaves its load open: a repeated job with
the same batch name, or the restarted query, resumes it and keeps slices that were written of the same rows. A row's id
is given again: a UUIDv5 of the value of the key column, the same in every load; or a UUIDv7 of (begin of the load;
load, part, row), which keeps the store's index of ids append-friendly.

Spark repeats a micro-batch, with the same rows, until the checkpoint has it. Its load is committed in one transaction;
one up to the last that is loaded is not written again. A repeated execution joins the open load in its next run, which
fences all writers and the commit of the run before. At most one of two drivers that plan at once commits, because the
commit names the attempts. A query that finds only loads of other queries has a new checkpoint, and is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha1, sha256
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from celery_wheel import Celery
from celery_wheel.app import WheelApp
from celery_wheel.bulk_load.columns import BadRow, ColumnRenderer, Columns
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, StoreError
from celery_wheel.pipeline.source.options import TEXTS, WriteTarget, read_target
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store import open_store
from celery_wheel.store.message_pack import pack
from celery_wheel.store.ports import FullStore
from celery_wheel.store.store_model import BulkLoad, PartChunk, PartResult
from celery_wheel.values import __version__
from celery_wheel.values.instants import now_ms
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import text_rule

logger = get_logger(__name__)


def _target(options: Mapping[str, str], schema: StructType, kind: str) -> WriteTarget:
    target = read_target(options, schema, kind)
    if target.app is not None:
        find_app(target.app)  # an error of the driver is shorter than that of every task
    return target


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WheelWriter:
    """Begin or resume the load. Raises SettingError or StoreUnusable, with the remedy."""
    if overwrite:
        raise SettingError(
            "mode must be append, got overwrite: a load does not replace scheduled tasks; write with .mode('append'), "
            "and cancel unwanted tasks with celery -A proj wheel cancel"
        )
    target = _target(options, schema, "load")
    with open_for_loading(target.url) as store:
        load = store.loads.begin(target.batch, now_ms())
    if load.is_loaded:
        logger.warning("the batch %r is loaded already (%s rows); nothing was written", target.batch, f"{load.rows:,}")
    return WheelWriter(target, load)


class WheelWriter(DataSourceArrowWriter):
    """Writes the parts in the tasks, to which Spark pickles it, and commits them on the driver."""

    def __init__(self, target: WriteTarget, load: BulkLoad) -> None:
        self._target = target
        self._load = load

    @concise()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        if self._load.is_loaded:
            return WrittenPart(part)
        return write_part(self._target, part, iterator, lambda _: self._load)

    @concise()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._load.is_loaded:
            with open_for_loading(self._target.url) as store:
                store.loads.commit(self._load.id, self._load.run, part_results(messages), now_ms())

    @concise()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._load.is_loaded:
            with open_for_loading(self._target.url) as store:
                store.loads.abort(self._load.id, now_ms(), self._load.run)


#: Local properties of a task in a micro-batch.
QUERY, NUMBER = "sql.streaming.queryId", "streaming.sql.batchId"

_QUERY_AND_NUMBER = re.compile(r"([0-9a-f-]{36})/(\d+)").fullmatch


class MicroBatch(NamedTuple):
    query: str
    number: int  #: Spark calls it the batch id, or the epoch


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WheelStreamWriter:
    """Read the loads of the stream. Raises SettingError or StoreUnusable, with the remedy."""
    if overwrite:
        raise SettingError(
            "output mode must be append, got complete: a stream does not replace scheduled tasks; write with "
            ".outputMode('append')"
        )
    target = _target(options, schema, "stream")
    if rule := text_rule(_load_name(target.batch, MicroBatch(str(UUID(int=0)), 2**63))):
        raise SettingError(f"option batch must be shorter: it is the first part of the names of loads, each {rule}")
    with open_for_loading(target.url) as store:
        return WheelStreamWriter(target, _loads_of(store, target.batch))


class WheelStreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one for the plan of each micro-batch, which it pickles to the tasks, and another for its commit."""

    def __init__(self, target: WriteTarget, loads: Mapping[MicroBatch, BulkLoad]) -> None:
        self._target = target
        self._loads = loads

    @concise()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        part, micro_batch = _task()
        if self._is_loaded(micro_batch):
            return WrittenPart(part)
        remedy = "start the query again with the same checkpoint"
        return write_part(self._target, part, iterator, lambda store: self._join(store, micro_batch), remedy)

    def _is_loaded(self, micro_batch: MicroBatch) -> bool:
        loaded = [one for one, load in self._loads.items() if load.is_loaded]
        if any(one.query == micro_batch.query for one in loaded):
            return any(one.query == micro_batch.query and one.number >= micro_batch.number for one in loaded)
        if loaded:
            others = ", ".join(sorted({one.query for one in loaded}))
            stream = self._target.batch
            raise SettingError(
                f"the stream {stream!r} was loaded by the query {others}, and this is the query {micro_batch.query}: "
                "its checkpoint is another, or was removed, so its rows may be scheduled already; nothing was written. "
                "Start the query with its earlier checkpoint; or load all that the new checkpoint reads as another "
                f"stream: .option('batch', '{stream}-2'), where option key prevents that a row of the earlier one is "
                "scheduled again"
            )
        return False

    def _join(self, store: FullStore, micro_batch: MicroBatch) -> BulkLoad:
        planned = self._loads.get(micro_batch)
        run = 1 if planned is None else planned.run + 1
        return store.loads.join(_load_name(self._target.batch, micro_batch), run, now_ms())

    @concise()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        loads = [one.load for one in messages if isinstance(one, WrittenPart) and one.load is not None]
        if not loads:
            return  # no rows, or they were loaded before
        [(load, run)] = {(one.id, one.run) for one in loads}  # the writers of one plan have one run
        with open_for_loading(self._target.url) as store:
            store.loads.commit(load, run, part_results(messages), now_ms())
            micro_batches = {one.id: micro_batch for micro_batch, one in _loads_of(store, self._target.batch).items()}
            query, number = micro_batches[load]
            store.loads.forget(
                [id_ for id_, one in micro_batches.items() if one.query == query and one.number < number]
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the load open, for the restarted query."""


def _task() -> tuple[int, MicroBatch]:
    context = TaskContext.get()
    query, number = (None, None) if context is None else map(context.getLocalProperty, (QUERY, NUMBER))
    if context is None or query is None or number is None:
        raise SettingError("trigger of the query must be one of micro-batches, like processingTime, got another")
    return context.partitionId(), MicroBatch(query, int(number))


def _load_name(stream: str, micro_batch: MicroBatch) -> str:
    return f"{stream}/{micro_batch.query}/{micro_batch.number}"


def _loads_of(store: FullStore, stream: str) -> dict[MicroBatch, BulkLoad]:
    prefix = f"{stream}/"
    found = ((_QUERY_AND_NUMBER(load.name.removeprefix(prefix)), load) for load in store.loads.by_prefix(prefix))
    return {MicroBatch(match[1], int(match[2])): load for match, load in found if match}


#: Packed chunks in one transaction.
GROUP_BYTES = 4 * 2**20


@dataclass
class WrittenPart(WriterCommitMessage):
    """The message of a task to the driver. Without an attempt the task had no rows and wrote nothing."""

    part: int
    attempt: str | None = None
    rows: int = 0
    kept: int = 0  #: rows that an earlier run had written
    load: BulkLoad | None = None


def write_part(
    target: WriteTarget,
    part: int,
    batches: Iterator[pa.RecordBatch],
    open_load: Callable[[FullStore], BulkLoad],
    remedy: str = "load it again under the same name",
) -> WrittenPart:
    """Write the rows of a task as a part of the load that ``open_load`` returns, unless that one is loaded already."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return WrittenPart(part)
    with open_for_loading(target.url, _keys_of(target)) as store:
        try:
            load = open_load(store)
            return WrittenPart(part) if load.is_loaded else _PartWrite(target, load, store, part).run(first, batches)
        except StoreError as error:  # the store's own message is for a scheduler, which retries by itself
            raise StoreError(
                f"the batch {target.batch!r} was interrupted, and none of it is scheduled; {remedy}: {error}"
            ) from error


def part_results(messages: Sequence[WriterCommitMessage | None]) -> Mapping[int, PartResult]:
    return {
        message.part: PartResult(message.attempt, message.rows)
        for message in messages
        if isinstance(message, WrittenPart) and message.attempt is not None
    }


class _PartWrite:
    """One attempt at writing the rows of one of Spark's tasks, behind the fence of ``BulkLoads``."""

    def __init__(self, target: WriteTarget, load: BulkLoad, store: FullStore, part: int) -> None:
        self._target = target
        self._load = load
        self._store = store
        self._claim, self._stored = store.loads.claim(load.id, load.run, part)
        # Executors without a project have Celery's defaults, and the queue of each row.
        bare = Celery("wheel", broker="memory://", set_as_current=False)
        app = bare if target.app is None else find_app(target.app)
        self._renderer = ColumnRenderer(app, store.shards, Conf(app).max_message_bytes)
        # Everything but the rows that decides the messages: a slice with another salt is written again.
        inputs = {**asdict(target), "url": "", "version": __version__, "shards": store.shards, "part": part}
        self._salt = repr(sorted(inputs.items())).encode()
        self._chunks: list[PartChunk] = []
        self._done = WrittenPart(part, self._claim.attempt, load=load)
        self._slices = 0

    def run(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> WrittenPart:
        try:
            self._add(first)
            for batch in batches:
                self._add(batch)
            self._put()
            self._store.loads.finish(self._claim, self._slices)
        finally:
            self._renderer.close()
        return self._done

    def _add(self, batch: pa.RecordBatch) -> None:
        count = self._target.chunk * self._store.shards
        for start in range(0, batch.num_rows, count):
            self._add_slice(batch.slice(start, count))

    def _add_slice(self, rows: pa.RecordBatch) -> None:
        number, first = self._slices, self._done.rows
        self._slices += 1
        self._done.rows += rows.num_rows
        digest = sha256(self._salt + str(first).encode())
        digest.update(rows.serialize())
        if self._stored.get(number) == (digest.hexdigest(), rows.num_rows):
            self._done.kept += rows.num_rows
            return
        by_shard = self._renderer.messages(_to_columns(rows, self._envelopes(rows, first)), first)
        self._chunks += [
            PartChunk(number, shard, len(messages), digest.hexdigest(), pack(messages))
            for shard, messages in by_shard.items()
        ]
        if sum(len(chunk.payload) for chunk in self._chunks) >= GROUP_BYTES:
            self._put()

    def _envelopes(self, rows: pa.RecordBatch, first: int) -> list[str]:
        if self._target.key is not None:
            return key_envelopes(rows.column(self._target.key), first)
        return row_envelopes(self._load.created_ms, self._load.id, self._done.part, first, rows.num_rows)

    def _put(self) -> None:
        if self._chunks:
            self._store.loads.put(self._claim, self._chunks)
            self._chunks = []


def find_app(name: str) -> WheelApp:
    """Import the app ``name``, like proj.celery:app. Raises SettingError where it is missing or lacks the wheel."""
    module, _, attribute = name.partition(":")
    try:
        app: Any = getattr(import_module(module), attribute or "app")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"option app must be importable where Spark runs, like proj.celery:app, got {name!r}: {error}; where "
            "executors lack your project, omit it and name a queue in each row"
        ) from error
    if not isinstance(app, WheelApp):
        raise SettingError(f"option app must name a celery_wheel.Celery, or an app with install(app), got {app!r:.60}")
    return app


def open_for_loading(url: str, keys: Sequence[str] = ()) -> closing[FullStore]:
    """Open the store for the block, as a writer without a lease: a session waits as long for locks."""
    return closing(open_store(url, shards=None, create=False, lease_ms=30_000, keys=keys))


def _keys_of(target: WriteTarget) -> Sequence[str]:
    """Return the secrets of the project; executors without it have them in their environment."""
    if target.app is not None:
        return Conf(find_app(target.app)).encryption_keys
    return os.environ.get(KEYS, "").split()


#: A variable of the environment: the value of wheel_encryption_keys, with spaces between the secrets.
KEYS = "WHEEL_ENCRYPTION_KEYS"

#: Namespace of the ids that are made from a key column.
NAMESPACE = UUID("0c3d2a52-7c0e-5f55-9d41-6f6b4f4f2c11")

#: Bits of a row's number, and of its part's number.
ROW_BITS, PART_BITS = 30, 18

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def _to_columns(batch: pa.RecordBatch, envelopes: list[str]) -> Columns:
    arrays = {name: batch.column(name) for name in batch.schema.names}
    ms = arrays.get("eta_ms")
    eta_us = _microseconds(arrays["eta"]) if ms is None else pc.multiply(ms.cast(pa.int64()), 1_000)
    instants = eta_us.fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[us]")
    texts = {name: arrays[name].to_pylist() for name in TEXTS if name in arrays}
    return Columns(
        envelope=envelopes,
        task=texts.pop("task"),
        eta_us=eta_us.to_pylist(),
        eta=[f"{text}+00:00" for text in np.datetime_as_string(instants).tolist()],
        priority=arrays["priority"].to_pylist() if "priority" in arrays else None,
        expires=_expires(arrays["expires"]) if "expires" in arrays else None,
        **texts,
    )


def _microseconds(column: pa.Array) -> pa.Array:
    """Unix microseconds of timestamps; one without a zone is in UTC."""
    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())


def _expires(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if at is None else datetime.fromtimestamp(at / 1e6, UTC) for at in _microseconds(column).to_pylist()]


def key_envelopes(column: pa.Array, first: int) -> list[str]:
    """Return an id for each value of the key column. ``first``: number of the first row, for BadRow."""
    if column.null_count:
        raise BadRow(f"row {first + column.to_pylist().index(None):,}: the key column must not be null")
    prefix, envelopes = NAMESPACE.bytes, []
    for value in column.cast(pa.string()).to_pylist():
        text = sha1(prefix + value.encode(), usedforsecurity=False).hexdigest()
        envelopes.append(f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}")
    return envelopes


def row_envelopes(created_ms: int, load: int, part: int, first: int, count: int) -> list[str]:
    """Return an id for each of ``count`` rows, from the numbers of the load in the store, the part and the row."""
    if part >> PART_BITS or first + count >> ROW_BITS:
        raise BadRow(
            f"a load may have {1 << PART_BITS:,} partitions of {1 << ROW_BITS:,} rows; coalesce or repartition"
        )
    time, mixed = f"{created_ms:012x}", load & 0x3FFFFFF  # 26 bits
    prefix = f"{time[:8]}-{time[8:]}-7{mixed >> 14:03x}-{0x8000 | mixed & 0x3FFF:04x}-"
    return [f"{prefix}{part << ROW_BITS | n:012x}" for n in range(first, first + count)]
