"""The owner of the broker's offsets: find shards that another store owns, and claim them for this store.

Only a FencingBroker keeps offsets: on other brokers nothing guards against two stores, and there is nothing to claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.operations.access import open_both

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker
    from celery_wheel.broker.redis.offsets import Owner


def other_owners(app: Any) -> dict[int, Owner]:
    """Return the shards whose offsets belong to another store, each with that store."""
    with open_both(app) as (store, broker):
        redis = cast("RedisBroker", broker)
        owners = {shard: redis.owner(shard) for shard in range(store.shards)} if broker.fences else {}
        return {shard: owner for shard, owner in owners.items() if owner is not None and owner.uuid != store.uuid}


def claim(app: Any, shards: Iterable[int]) -> None:
    """Make the app's store the owner. Raises StoreConflict where a holder of the other store lives."""
    with open_both(app) as (_, broker):
        for shard in shards if broker.fences else ():
            cast("RedisBroker", broker).claim(shard)
