"""Stores to read and to load: each with two shards, filled ones with an event of every kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.intake.stored_form import unpack_chunk
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.pipeline.source.statements import HISTORY, HISTORY_SCHEMA
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, LaneState, Message, StoredMessage, each
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, place
from tests.kit.servers.postgres import PostgresServer

Rows = list[dict[str, Any]]

#: The database of a test: SQLite without a mark, except in modules that test each on both.
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("url", ["postgresql"], indirect=True)
on_both = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that does not exist yet, of the database that ``request`` names."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/wheel.sqlite3"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database(stays=True)


@dataclass
class Site:
    url: str
    store: SqlStore
    holder: Holder
    second: Holder

    def dispatch(self, rows: list[StoredMessage], at_ms: int, holder: Holder | None = None) -> None:
        holder = holder or self.holder
        [lane] = [one for one in self.store.lanes(holder.shard) if one.lane == 0]
        to = max(place(row) for row in rows)
        settlement = holder.settlement(lane.offset, to, at_ms=at_ms)
        settlement.count = len(rows)
        holder.apply(settlements=[settlement], lanes=[LaneState(0, to, to)])


@contextmanager
def site(url: str) -> Iterator[Site]:
    # PostgreSQL ends a session that stops in a transaction for half of the lease: this process may, while a JVM starts.
    store = open_store(url, shards=2, durability="memory", lease_ms=60_000)
    try:
        yield Site(url, store, Holder(store, 0), Holder(store, 1))
    finally:
        store.close()


def fill(one: Site) -> None:
    """Shard 0: 6 dispatched, 1 rejected, 1 moved, 3 pending (1 in lane 3). Shard 1: 1 dispatched, 1 pending."""
    holder = one.holder
    rows = holder.accept(*range(NOW, NOW + 5), key="order:42")
    rows += holder.accept(NOW + 5, task="app.mail", queue="mail", priority=5, expires_ms=NOW + 60_000)
    one.dispatch(rows, NOW + 20)
    bad = holder.reject(b"no json")
    holder.apply(rejects=[bad], outcomes=[holder.outcome(bad.id, "rejected", NOW + 3)])
    pending = holder.accept(NOW + 1_000, NOW + 2_000)
    in_lane_3 = holder.row(NOW + 1_500, lane=3, queue=None, routing_key="by.key")
    holder.apply(rows=[in_lane_3], lanes=[LaneState(3, ORIGIN, ORIGIN, "by.key")])
    move = holder.move(pending[1], NOW + 3_000)
    holder.apply(moves=[move], outcomes=[holder.outcome(pending[1].id, "moved", NOW + 30)])
    one.dispatch(one.second.accept(NOW, NOW + 4_000)[:1], NOW + 1, one.second)


def rows_of(reader: WheelReader) -> Rows:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def read_history(url: str, **options: str) -> Rows:
    return rows_of(WheelReader(read_options({"url": url, "table": HISTORY, **options}), HISTORY_SCHEMA))


def loaded_messages(store: SqlStore) -> list[Message]:
    chunks = [chunk for shard in range(store.shards) for chunk in store.read_loads(shard, 10**9)]
    read = QueuedMessageReader(max_message_bytes=2**23).decode
    found = [one for chunk in chunks for one in each(unpack_chunk(chunk, read, str))]
    assert all(isinstance(one, Message) for one in found), found
    return found  # type: ignore[return-value]
