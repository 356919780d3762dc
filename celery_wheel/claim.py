"""The owner of the broker's offsets: find shards that another store owns, and claim them for this store.

Only a FencingBroker keeps offsets: on other brokers nothing guards against two stores, and there is nothing to claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker import broker_for
from celery_wheel.conf import Conf
from celery_wheel.store import open_store

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker
    from celery_wheel.broker.redis.offsets import Owner
    from celery_wheel.store.ports import FullStore


def other_owners(app: Any) -> dict[int, Owner]:
    """Return the shards whose offsets are another store's, each with that store."""
    with _opened(app) as (store, broker):
        found = {} if broker is None else {shard: broker.owner(shard) for shard in range(store.shards)}
        return {shard: owner for shard, owner in found.items() if owner is not None and owner.uuid != store.uuid}


def claim(app: Any, shards: Iterable[int]) -> None:
    """Make the app's store the owner. Raises StoreConflict where a holder of the other store lives."""
    with _opened(app) as (_, broker):
        for shard in shards:
            if broker is not None:
                broker.claim(shard)


@contextmanager
def _opened(app: Any) -> Iterator[tuple[FullStore, RedisBroker | None]]:
    conf = Conf(app)
    store = open_store(conf.store, durability=conf.durability, shards=None, create=False)
    try:
        broker = broker_for(app, conf, store.uuid)
        try:
            yield store, cast("RedisBroker", broker) if broker.fences else None
        finally:
            broker.close()
    finally:
        store.close()
