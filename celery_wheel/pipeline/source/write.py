"""``write``: a DataFrame as a bulk load: all of it is scheduled, or nothing, however often Spark tries its tasks.

::

    writer   (driver)   the load is begun, or resumed; one that is committed is left alone, and nothing is written
    write    (tasks)    claim ─► a slice of rows ─► packed, a chunk a shard ─► some slices a transaction ─► finish
    commit   (driver)   exactly the parts that Spark counts                    abort   nothing is left

What makes it so is in ``celery_wheel.store.ports.loads``. A driver that is killed leaves its load open: the same job
under the same name goes on with it, and what is there of a slice whose rows are the same is not written again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from celery_wheel import Celery, __version__
from celery_wheel.app import WheelApp
from celery_wheel.bulk.columns import ColumnRenderer
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, StoreError
from celery_wheel.pipeline.source import arrow_rows
from celery_wheel.pipeline.source.target import Target, target
from celery_wheel.store import open_store
from celery_wheel.store.packed import pack
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.loads import Chunk, Load, Written

logger = logging.getLogger(__name__)

#: Packed chunks of a transaction.
GROUP_BYTES = 4 * 2**20

#: How long a session may wait for others: nothing here holds a lease.
PATIENCE_MS = 30_000


@dataclass
class Part(WriterCommitMessage):
    """What a task did. No attempt: it had no rows, and wrote nothing."""

    part: int
    attempt: str | None = None
    rows: int = 0
    kept: int = 0  #: of them, rows that were there from an earlier run


def refuse_overwrite() -> NoReturn:
    raise SettingError(
        "mode must be append, got overwrite: what is scheduled is not replaced by a load; write with .mode('append'), "
        "and cancel what is not wanted (celery wheel cancel)"
    )


def writer(options: Mapping[str, str], schema: StructType) -> WheelWriter:
    """Raises SettingError or StoreUnusable, with what to do."""
    where = target(options, schema)
    if where.app is not None:
        find_app(where.app)  # an error of the driver is shorter than one of every task
    with _opened(where.url) as store:
        load = store.loads.begin(where.batch, _now_ms())
    if load.is_loaded:
        logger.warning("the batch %r is loaded already (%s rows); nothing was written", where.batch, f"{load.rows:,}")
    return WheelWriter(where, load)


class WheelWriter(DataSourceArrowWriter):
    """Pickled to the tasks, and back to whoever commits."""

    def __init__(self, where: Target, load: Load) -> None:
        self._where = where
        self._load = load

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        if self._load.is_loaded:
            return Part(part)
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Part(part)
        with _opened(self._where.url) as store:
            try:
                return _Writing(self._where, self._load, store, part).run(first, batches)
            except StoreError as error:  # the store's own words are for a scheduler, which tries again by itself
                raise StoreError(
                    f"the batch {self._where.batch!r} was broken off, and nothing of it is scheduled; load it again "
                    f"under the same name: {error}"
                ) from error

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._load.is_loaded:
            return
        parts = {
            one.part: Written(one.attempt, one.rows)
            for one in messages
            if isinstance(one, Part) and one.attempt is not None
        }
        with _opened(self._where.url) as store:
            store.loads.commit(self._load.id, self._load.run, parts, _now_ms())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._load.is_loaded:
            with _opened(self._where.url) as store:
                store.loads.abort(self._load.id, _now_ms(), self._load.run)


class _Writing:
    """One attempt at one part."""

    def __init__(self, where: Target, load: Load, store: FullStore, part: int) -> None:
        self._where = where
        self._load = load
        self._store = store
        self._claim, self._there = store.loads.claim(load.id, load.run, part)
        app = bare_app() if where.app is None else find_app(where.app)
        self._renderer = ColumnRenderer(app, store.shards, Conf(app).max_message_bytes)
        #: Whatever makes other messages of the same rows.
        same = {**asdict(where), "url": "", "version": __version__, "shards": store.shards, "part": part}
        self._salt = repr(sorted(same.items())).encode()
        self._chunks: list[Chunk] = []
        self._done = Part(part, self._claim.attempt)
        self._slices = 0

    def run(self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Part:
        try:
            self._add(first)
            for batch in others:
                self._add(batch)
            self._put()
            self._store.loads.finish(self._claim, self._slices)
        finally:
            self._renderer.close()
        return self._done

    def _add(self, batch: pa.RecordBatch) -> None:
        count = self._where.chunk * self._store.shards
        for start in range(0, batch.num_rows, count):
            self._add_slice(batch.slice(start, count))

    def _add_slice(self, rows: pa.RecordBatch) -> None:
        number, first = self._slices, self._done.rows
        self._slices += 1
        self._done.rows += rows.num_rows
        digest = sha256(self._salt + str(first).encode())
        digest.update(rows.serialize())
        there = self._there.get(number)
        if there == (digest.hexdigest(), rows.num_rows):
            self._done.kept += rows.num_rows
            return
        found = self._renderer.messages(arrow_rows.columns(rows, self._envelopes(rows, first)), first)
        self._chunks += [
            Chunk(number, shard, len(messages), digest.hexdigest(), pack(messages)) for shard, messages in found.items()
        ]
        if sum(len(chunk.payload) for chunk in self._chunks) >= GROUP_BYTES:
            self._put()

    def _envelopes(self, rows: pa.RecordBatch, first: int) -> list[str]:
        if self._where.key is not None:
            return arrow_rows.by_key(rows.column(self._where.key), first)
        return arrow_rows.by_place(self._load.created_ms, self._load.id, self._done.part, first, rows.num_rows)

    def _put(self) -> None:
        if self._chunks:
            self._store.loads.put(self._claim, self._chunks)
            self._chunks = []


def find_app(name: str) -> WheelApp:
    """Raises SettingError where it is not to be found, or is no app of the wheel's."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute or "app")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"option app must be importable where Spark runs, like proj.celery:app, got {name!r}: {error}; leave it "
            "out where executors have not your project, and give a queue with each row"
        ) from error
    if not isinstance(found, WheelApp):
        raise SettingError(f"option app must name a celery_wheel.Celery, or one given to install, got {found!r:.60}")
    return found


def bare_app() -> Any:
    """For executors that have nothing but celery-wheel: Celery's defaults, and the queue of each row."""
    return Celery("wheel", broker="memory://", set_as_current=False)


def _opened(url: str) -> closing[FullStore]:
    """Closed at the end of the block."""
    return closing(open_store(url, shards=None, create=False, lease_ms=PATIENCE_MS))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
