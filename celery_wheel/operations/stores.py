"""Operations on a store as a whole: open it, claim it or its broker, move it to another database, change its shards.

Brokers other than Redis and RabbitMQ cannot tell which store uses them. Each store knows its broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from celery_wheel.broker import shard_of
from celery_wheel.broker.owner import Owner, other_copy, owner_of
from celery_wheel.broker.transport import broker_for, broker_places, is_brokers_store, meet_broker, shown
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.store import move_store, open_store
from celery_wheel.store.audit_model import Operator, store_entry
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.place import place_of, read_url
from celery_wheel.store.ports import FullStore, Store
from celery_wheel.store.store_model import MovedStore, Progress, Resharded
from celery_wheel.timing import SystemClock
from celery_wheel.values.text import EXAMPLES, is_store_url

if TYPE_CHECKING:
    from celery_wheel.broker.redis.edge import RedisBroker


def open_existing_store(app: Any) -> FullStore:
    """Open the app's store. Raises StoreError where it does not exist. The caller closes it."""
    conf = Conf(app)
    return open_store(
        conf.store,
        durability=conf.durability,
        shards=None,
        create=False,
        lease_ms=conf.lease_ms,
        keys=conf.encryption_keys,
    )


@contextmanager
def open_both(app: Any, *, any_broker: bool = False) -> Iterator[tuple[FullStore, Broker]]:
    """Open the app's store and its broker's edge for the block. Raises StoreConflict for another broker."""
    with closing(open_existing_store(app)) as store, closing(broker_for(app, Conf(app), store)) as broker:
        if not any_broker:
            meet_broker(app, store)
        yield store, broker


def other_owners(app: Any) -> dict[int, Owner]:
    """Return the shards that belong to another store in a broker that fences, each with that store."""
    with open_both(app, any_broker=True) as (store, broker):
        owners = _owners(store, broker) if broker.fences else {}
        return {shard: owner for shard, owner in owners.items() if owner.uuid != store.uuid}


def other_broker(app: Any) -> str:
    """Return the places of the broker to which the store dispatches; empty where that is the app's broker."""
    with closing(open_existing_store(app)) as store:
        return "" if is_brokers_store(app, store) else shown(store.brokers())


@contextmanager
def recorded(store: FullStore, action: str, by: Operator | None, **details: Any) -> Iterator[dict[str, int]]:
    """Record an act of several transactions in the audit log before it begins, and after it has ended.

    Yields the counts of its end. An act that failed or was killed has only its begin there.
    """
    entry = store_entry(action, by, SystemClock().now_ms(), {"store": "begun"}, details)
    store.maintenance.record(entry)
    counts: dict[str, int] = {}
    yield counts
    store.maintenance.record(replace(entry, results=json.dumps({"store": {"result": "done", **counts}})))


def claim_broker(app: Any, by: Operator | None = None) -> None:
    """Make the app's store the owner of every shard. Raises StoreConflict where a holder of another store lives.

    ``by``, here and below: the person for the audit log; None: this process.
    """
    with open_both(app, any_broker=True) as (store, broker):
        places = broker_places(app)
        with recorded(store, "claim_broker", by, broker=shown(places)):
            for shard in range(store.shards):
                if broker.fences:
                    cast("RedisBroker", broker).claim(shard, {lane.lane: lane.offset for lane in store.lanes(shard)})
            store.add_brokers(places)


def other_copies(app: Any) -> dict[int, Owner]:
    """Return the shards whose last holder in the broker had another copy of the app's store."""
    with open_both(app) as (store, broker):
        return _copies(store, broker)


def claim_store(app: Any, by: Operator | None = None) -> None:
    """Let the app's store go on where another copy of it was. Raises StoreConflict while a holder there lives."""
    with open_both(app) as (store, broker):
        copies = _copies(store, broker)
        for shard, owner in copies.items():
            if owner.lives:
                raise other_copy("the broker", shard, owner.place, store.identity())
        others = {"from": sorted({owner.place for owner in copies.values()})}
        store.maintenance.leap(store_entry("claim_store", by, SystemClock().now_ms(), {"store": "done"}, others))


def _copies(store: FullStore, broker: Broker) -> dict[int, Owner]:
    identity = store.identity()
    return {shard: owner for shard, owner in _owners(store, broker).items() if owner.is_copy_of(identity)}


def _owners(store: FullStore, broker: Broker) -> dict[int, Owner]:
    return {shard: owner for shard in range(store.shards) if (owner := owner_of(broker, shard)) is not None}


def move(app: Any, to: str, source: str | None, progress: Progress, by: Operator | None = None) -> MovedStore:
    """Move a store, by default that of wheel_store, to the database ``to``, whose tables are made, also in Django's.

    Raises StoreUnusable or SettingError; the old store is as before then. The next move continues one that was killed.
    """
    conf = Conf(app)
    conf.check()
    source = source or conf.store
    for url in (to, source):
        if not is_store_url(url):
            raise SettingError(f"a store must be a database URL like {EXAMPLES}, got another value (not shown)")
    place = place_of(to)
    if place.make is not None:
        before = dict(app.conf.changes)
        app.conf.wheel_store = to  # Django's router lets migrations make the tables where the store is
        try:
            place.make()
        finally:
            app.conf.changes.clear()
            app.conf.changes.update(before)
    return move_store(source, to, SystemClock().now_ms(), progress, by)


def settings_line(conf: Conf, store: str) -> str:
    """Return the line that names a store in the project's settings, with PASSWORD for each password of its URL."""
    scheme = store.partition("://")[0]
    if scheme.startswith("sqlite"):
        store = f"sqlite:///{Path(read_url(store).database or '').absolute()}"  # in each process, whatever its folder
    elif scheme.startswith("postgres"):
        url = read_url(store)
        hidden = {name: "PASSWORD" for name in ("password", "sslpassword") if name in url.query}
        url = url.set(password=url.password and "PASSWORD").update_query_dict(hidden)
        store = url.render_as_string(hide_password=False)
    name = conf.spelling("wheel_store")
    plain = name == "wheel_store" and not conf.app._config_source
    return f"{'app.conf.' if plain else ''}{name} = {json.dumps(store)}"


def reshard_of(app: Any, shards: int, by: Operator | None = None) -> Resharded:
    """Give the app's store another number of shards, while no scheduler runs. Raises StoreUnusable, SettingError."""
    now_ms = SystemClock().now_ms()
    with open_both(app) as (store, broker):
        for shard in range(shards, store.shards):
            _check_empty(store, broker, shard, now_ms)
        for shard in range(store.shards, shards):
            if broker.fences:
                # The shard may have existed before: offsets that the broker kept of it say nothing about the new one.
                for lane in broker.adopt(shard, now_ms):
                    broker.set_offset(shard, now_ms, lane, ORIGIN)
                broker.set_accepted(shard, now_ms, 0)
                broker.leave(shard, now_ms)
        return store.maintenance.reshard(shards, shard_of, now_ms, archived_only=Conf(app).history_archive, by=by)


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
