"""A store and its broker: find out why a scheduler is refused, and decide for the store.

::

    claim_broker    the broker belongs to another store, or the store has another broker
    claim_store     the broker's last holder had another copy of the store: this one was moved on purpose

Brokers other than Redis and RabbitMQ cannot tell which store uses them. Each store knows its broker.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker.owner import Owner, broker_places, is_brokers_store, other_copy, owner_of, shown
from celery_wheel.engine.port import Broker
from celery_wheel.operations.access import open_both, open_existing_store
from celery_wheel.store.ports import FullStore

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker


def other_owners(app: Any) -> dict[int, Owner]:
    """Return the shards that belong to another store in a broker that fences, each with that store."""
    with open_both(app, any_broker=True) as (store, broker):
        owners = _owners(store, broker) if broker.fences else {}
        return {shard: owner for shard, owner in owners.items() if owner.uuid != store.uuid}


def other_broker(app: Any) -> str:
    """Return the places of the broker to which the store dispatches; empty where that is the app's broker."""
    with closing(open_existing_store(app)) as store:
        return "" if is_brokers_store(app, store) else shown(store.brokers())


def claim_broker(app: Any) -> None:
    """Make the app's store the owner of every shard. Raises StoreConflict where a holder of another store lives."""
    with open_both(app, any_broker=True) as (store, broker):
        for shard in range(store.shards):
            if broker.fences:
                cast("RedisBroker", broker).claim(shard, {lane.lane: lane.offset for lane in store.lanes(shard)})
        store.add_brokers(broker_places(app))


def other_copies(app: Any) -> dict[int, Owner]:
    """Return the shards whose last holder in the broker had another copy of the app's store."""
    with open_both(app) as (store, broker):
        return _copies(store, broker)


def claim_store(app: Any) -> None:
    """Let the app's store go on where another copy of it was. Raises StoreConflict while a holder there lives."""
    with open_both(app) as (store, broker):
        for shard, owner in _copies(store, broker).items():
            if owner.lives:
                raise other_copy("the broker", shard, owner.place, store.identity())
        store.maintenance.leap()


def _copies(store: FullStore, broker: Broker) -> dict[int, Owner]:
    identity = store.identity()
    return {shard: owner for shard, owner in _owners(store, broker).items() if owner.is_copy_of(identity)}


def _owners(store: FullStore, broker: Broker) -> dict[int, Owner]:
    owners = {shard: owner_of(broker, shard) for shard in range(store.shards)}
    return {shard: owner for shard, owner in owners.items() if owner is not None}
