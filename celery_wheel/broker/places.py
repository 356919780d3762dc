"""The places of the app's broker, by which a store knows the broker to which it dispatches.

::

    redis://:secret@localhost/2            redis://127.0.0.1:6379/2
    amqps://u:p@a//;amqps://u:p@b//        amqp://a:5671/, amqp://b:5671/

One server may have several names, and several servers may be one broker. So a store keeps a set of places; a broker is
the store's where one of its places is in the set, or where it has offsets of the store. Nothing is connected to look at
a known place.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from kombu.connection import Connection
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.broker import broker_for
from celery_wheel.broker.owner import owner_of
from celery_wheel.conf import Conf
from celery_wheel.errors import StoreConflict
from celery_wheel.store.ports import FullStore

#: kombu carries no types.
_connection: Any = Connection

_LOCAL = ("localhost", "::1", "[::1]")


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
