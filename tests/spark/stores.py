"""Stores to read: each with two shards, and with an event of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, LaneState, Position, StoredMessage
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, place

MakeUrl = Callable[[], str]


@dataclass
class Site:
    """A store that is open for writing, and the holders of its shards."""

    url: str
    store: SqlStore
    holder: Holder
    second: Holder

    def dispatch(self, rows: list[StoredMessage], at_ms: int, holder: Holder | None = None) -> None:
        """Settle rows of lane 0 that follow its offset."""
        holder = holder or self.holder
        [lane] = [one for one in self.store.lanes(holder.shard) if one.lane == 0]
        to = max(place(row) for row in rows)
        batch = holder.batch(lane.offset, to, at_ms=at_ms)
        batch.count = len(rows)
        holder.apply(batches=[batch], lanes=[LaneState(0, to, to)])


@contextmanager
def site(url: str) -> Iterator[Site]:
    store = open_store(url, shards=2, durability="memory")
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
    other = one.second.accept(NOW, NOW + 4_000)
    one.dispatch(other[:1], NOW + 1, one.second)


def replay(one: Site, start: Position, upto: Position, at_ms: int) -> None:
    """Dispatch a range again, as after a rollback of the broker, for which the offset moves back."""
    one.holder.put_offset(start)
    one.holder.settle(start, upto, at_ms=at_ms)
