"""``reshard``: another number of shards for a store, while no scheduler holds one of them."""

from __future__ import annotations

from typing import Any

from celery_wheel.broker.names import shard_of
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import StoreUnusable
from celery_wheel.operations.access import open_both
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import Store
from celery_wheel.store.store_model import Resharded
from celery_wheel.timing import SystemClock


def reshard_of(app: Any, shards: int) -> Resharded:
    """Give the app's store another number of shards, while no scheduler runs; see ``store.sql.reshard``.

    Raises StoreUnusable or SettingError, with the remedy; nothing was changed then.
    """
    now_ms = SystemClock().now_ms()
    with open_both(app) as (store, broker):
        for shard in range(shards, store.shards):
            _check_empty(store, broker, shard, now_ms)
        for shard in range(store.shards, shards):
            if broker.fences:
                # The shard may have existed before: offsets that the broker kept of it say nothing about the new one.
                for lane in broker.adopt(shard, now_ms):
                    broker.set_offset(shard, now_ms, lane, ORIGIN)
                broker.leave(shard, now_ms)
        return store.maintenance.reshard(shards, shard_of, now_ms, archived_only=Conf(app).history_archive)


def _check_empty(store: Store, broker: Broker, shard: int, now_ms: int) -> None:
    epoch = store.acquire(shard, "reshard", now_ms, 10_000)
    if epoch is None:
        raise StoreUnusable(f"shard {shard} is held; nothing was changed; stop all schedulers (SIGTERM)")
    try:
        broker.adopt(shard, epoch)
        if broker.peek(shard, 1, 1).arrivals:
            raise StoreUnusable(
                f"the wheel queue of shard {shard}, which would be removed, has messages; nothing was changed; set the "
                "new wheel_shards for the producers first, and run a scheduler until the queue is empty"
            )
        broker.leave(shard, epoch)
    finally:
        store.release(shard, epoch)
