"""A store and its broker: find shards that another store owns, or that the store has another broker, and claim it.

Only a FencingBroker keeps offsets: on other brokers nothing guards against two stores. Each store knows its broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker.places import broker_places, is_brokers_store, shown
from celery_wheel.operations.access import open_both, open_existing_store

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker
    from celery_wheel.broker.redis.offsets import Owner


def other_owners(app: Any) -> dict[int, Owner]:
    """Return the shards whose offsets belong to another store, each with that store."""
    with open_both(app, any_broker=True) as (store, broker):
        redis = cast("RedisBroker", broker)
        owners = {shard: redis.owner(shard) for shard in range(store.shards)} if broker.fences else {}
        return {shard: owner for shard, owner in owners.items() if owner is not None and owner.uuid != store.uuid}


def other_broker(app: Any) -> str:
    """Return the places of the broker to which the store dispatches; empty where that is the app's broker."""
    with closing(open_existing_store(app)) as store:
        return "" if is_brokers_store(app, store) else shown(store.brokers())


def claim(app: Any, shards: Iterable[int]) -> None:
    """Make the app's store the owner. Raises StoreConflict where a holder of the other store lives."""
    with open_both(app, any_broker=True) as (store, broker):
        for shard in shards if broker.fences else ():
            cast("RedisBroker", broker).claim(shard)
        store.add_brokers(broker_places(app))
