"""A part of a load: the rows of one of Spark's tasks, in slices, written behind the fence of ``BulkLoads``.

::

    claim ─► a slice of rows ─► packed, a chunk a shard ─► commits of some slices ─► finish ─► WrittenPart

A slice that an earlier attempt or run wrote of the same rows is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from celery_wheel import Celery
from celery_wheel.app import WheelApp
from celery_wheel.bulk_load.columns import ColumnRenderer
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, StoreError
from celery_wheel.pipeline.source import arrow_rows
from celery_wheel.pipeline.source.target import WriteTarget
from celery_wheel.store import open_store
from celery_wheel.store.message_pack import pack
from celery_wheel.store.ports import FullStore
from celery_wheel.store.store_model import BulkLoad, PartChunk, PartResult
from celery_wheel.values import __version__

#: Packed chunks in one transaction.
GROUP_BYTES = 4 * 2**20

#: Longest wait of a session for locks: nothing here holds a lease.
PATIENCE_MS = 30_000


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
    with open_for_loading(target.url) as store:
        try:
            load = open_load(store)
            return WrittenPart(part) if load.is_loaded else _PartWrite(target, load, store, part).run(first, batches)
        except StoreError as error:  # the store's own message is for a scheduler, which retries by itself
            raise StoreError(
                f"the batch {target.batch!r} was interrupted, and none of it is scheduled; {remedy}: {error}"
            ) from error


def part_results(messages: Sequence[WriterCommitMessage | None]) -> Mapping[int, PartResult]:
    """Return the parts that have rows, for the commit."""
    return {
        message.part: PartResult(message.attempt, message.rows)
        for message in messages
        if isinstance(message, WrittenPart) and message.attempt is not None
    }


class _PartWrite:
    """One attempt at writing one part."""

    def __init__(self, target: WriteTarget, load: BulkLoad, store: FullStore, part: int) -> None:
        self._target = target
        self._load = load
        self._store = store
        self._claim, self._stored = store.loads.claim(load.id, load.run, part)
        app = bare_app() if target.app is None else find_app(target.app)
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
        by_shard = self._renderer.messages(arrow_rows.columns(rows, self._envelopes(rows, first)), first)
        self._chunks += [
            PartChunk(number, shard, len(messages), digest.hexdigest(), pack(messages))
            for shard, messages in by_shard.items()
        ]
        if sum(len(chunk.payload) for chunk in self._chunks) >= GROUP_BYTES:
            self._put()

    def _envelopes(self, rows: pa.RecordBatch, first: int) -> list[str]:
        if self._target.key is not None:
            return arrow_rows.key_envelopes(rows.column(self._target.key), first)
        return arrow_rows.row_envelopes(self._load.created_ms, self._load.id, self._done.part, first, rows.num_rows)

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


def bare_app() -> Any:
    """Return an app for executors without a project: Celery's defaults, and the queue of each row."""
    return Celery("wheel", broker="memory://", set_as_current=False)


def open_for_loading(url: str) -> closing[FullStore]:
    """Open the store for the block, as a writer without a lease."""
    return closing(open_store(url, shards=None, create=False, lease_ms=PATIENCE_MS))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
