"""The store whose holder was last in a shard of a broker, and the brokers to which a store dispatches.

::

    uuid differs        another store: its positions mean nothing here           claim-broker, where the broker can tell
    instance differs    a copy of this store, or this store at a new place:
      its holder lives    a copy                                                 refused
      same address        the store itself: restored, or after a restart         succeeded
      elsewhere           a copy, until a person says otherwise                  claim-store

``claim-store`` raises the store's epochs by ``EPOCH_LEAP``: a broker then knows it from the copy, whose epochs it has
passed.

One server may have several names, and several servers may be one broker. So a store keeps a set of places, like
``redis://127.0.0.1:6379/2``; a broker is the store's where one of its places is in the set, or where it has offsets of
the store. Nothing is connected to look at a known place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from kombu.connection import Connection
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.broker import broker_for
from celery_wheel.conf import Conf
from celery_wheel.engine.port import Broker
from celery_wheel.errors import StoreConflict
from celery_wheel.store.ports import FullStore, StoreIdentity

#: A holder gives a sign of life twice a second. It has ended where it has not done so for this long.
OCCUPIED_MS = 5_000

CLAIM_BROKER = "celery -A proj wheel claim-broker"
CLAIM_STORE = "celery -A proj wheel claim-store"


#: kombu carries no types.
_connection: Any = Connection

_LOCAL = ("localhost", "::1", "[::1]")


class Owner(NamedTuple):
    """The store to which a shard belongs in the broker."""

    uuid: str
    place: str  #: for people
    silent_ms: int  #: time since its holder's last sign of life
    instance: str = ""  #: a copy of the store has another
    address: str = ""  #: a store that was restored keeps it
    refused: str = ""  #: the place of a copy that has just been refused

    def __str__(self) -> str:
        return f"{self.uuid} ({self.place or 'its place is unknown'})"

    @property
    def lives(self) -> bool:
        return self.silent_ms < OCCUPIED_MS

    def is_copy_of(self, store: StoreIdentity) -> bool:
        return self.uuid == store.uuid and self.instance != store.instance


def owner_of(broker: Broker, shard: int) -> Owner | None:
    """Return the owner of a shard; None where there is none, or where the broker cannot tell."""
    reader: Callable[[int], Owner | None] | None = getattr(broker, "owner", None)
    return None if reader is None else reader(shard)


def other_store(server: str, shard: int, owner: Owner, store: StoreIdentity) -> StoreConflict:
    return StoreConflict(
        f"shard {shard} in {server} belongs to another store, {owner}, and not to {store.uuid} ({store.place}); "
        "nothing was changed, and this scheduler dispatches nothing; schedulers on one broker must share one "
        "wheel_store (is it a relative path, and this another folder?), or each have a wheel_namespace of its own; if "
        f"the other store is out of use, stop its schedulers and run: {CLAIM_BROKER}"
    )


def other_copy(server: str, shard: int, place: str, store: StoreIdentity) -> StoreConflict:
    return StoreConflict(
        f"shard {shard} in {server} is held by another copy of this store, {place}; this copy, {store.place}, holds "
        "nothing, and nothing was changed; remove the copy that is not to be used; if the store was moved here on "
        f"purpose, stop the schedulers of the other and run: {CLAIM_STORE}"
    )


def broker_places(app: Any) -> set[str]:
    """Return the place of each server in the app's broker URL, without user and password."""
    connection = app.connection_for_write()
    return {_place(one) for one in [_connection(url) for url in connection.alt or ()] or [connection]}


def is_brokers_store(app: Any, store: FullStore) -> bool:
    """Whether the store dispatches to the app's broker, or has no broker yet. Raises BrokerError."""
    known = store.brokers()
    if not known or broker_places(app) & known:
        return True
    with closing(broker_for(app, Conf(app), store)) as broker:
        owner = owner_of(broker, 0) if broker.fences else None
        return owner is not None and owner.uuid == store.uuid


def meet_broker(app: Any, store: FullStore) -> None:
    """Record the app's broker as the store's. Raises StoreConflict where the store has another, and BrokerError."""
    places, known = broker_places(app), store.brokers()
    if places <= known:
        return
    if not is_brokers_store(app, store):
        raise StoreConflict(
            f"the store {store.name} dispatches to {shown(known)}, and this app's broker is {shown(places)}: "
            "its tasks would be published there; nothing was changed; give each app a wheel_store of its own; if "
            "the broker has another address now, run: celery -A proj wheel claim-broker"
        )
    store.add_brokers(places)


def shown(places: set[str]) -> str:
    return ", ".join(sorted(places))


def _place(connection: Any) -> str:
    kind, found = str(connection.transport.driver_type), connection.info()
    host = maybe_sanitize_url(connection.hostname or "localhost")
    host = "127.0.0.1" if host in _LOCAL else host
    path = str(found["virtual_host"] or "").strip("/") or ("0" if kind == "redis" else "")
    return f"{kind}://{host}{':' if found['port'] else ''}{found['port'] or ''}/{path}"
