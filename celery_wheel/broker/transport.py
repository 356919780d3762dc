"""The edge that serves an app's transport, and the brokers to which a store dispatches.

A server may have several names, and a broker several servers. So a store keeps a set of places, like
``redis://127.0.0.1:6379/2``; a broker is the store's where one of its places is in the set, or where it has offsets of
the store. A known place is looked up without a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kombu.connection import Connection
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.broker.owner import owner_of
from celery_wheel.conf import Conf
from celery_wheel.errors import SettingError, StoreConflict

if TYPE_CHECKING:
    from celery_wheel.engine.port import Broker
    from celery_wheel.store.ports import FullStore

#: kombu's name (``driver_type``) of a transport without an edge → the reason.
UNSUPPORTED = {"filesystem": "it loses messages when several processes read, and when one is killed"}

#: Seconds that a call waits for the broker.
ANSWER_S = 5.0

#: kombu carries no types.
_connection: Any = Connection


#: Transports whose client library kombu misses only when it connects → the library.
_LATE = {"sqs": "boto3"}


def missing_client(app: Any, error: ImportError) -> SettingError:
    """Return the error for a transport whose client library is not installed."""
    scheme = str(app.conf.broker_write_url).partition("://")[0]
    return SettingError(
        f"broker_url needs the client library of {scheme}://, got {str(error).rstrip('.')}; "
        f"run: pip install 'kombu[{scheme}]'"
    )


def transport_of(app: Any) -> str:
    """Return kombu's name of the app's transport. Raises SettingError where its client library is missing."""
    try:
        transport = str(app.connection_for_write().transport.driver_type)
        if transport in _LATE:
            import_module(_LATE[transport])
    except ImportError as error:
        raise missing_client(app, error) from error
    return transport


def bounded_connection(connect: Callable[..., Any], **options: Any) -> Any:
    """Return a connection of kombu, not opened yet, whose calls end where packets vanish; ``connect`` is the app's.

    Without bounds a call to Redis waits for as long as the kernel sends its packets again: a quarter of an hour.
    py-amqp has such bounds by itself. The project's own ``broker_transport_options`` have priority.
    """
    connection = connect(**options)
    if connection.transport.driver_type == "redis":
        bounds = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "socket_keepalive": True}
        connection.transport_options = bounds | (connection.transport_options or {})
    return connection


def check_transport(app: Any) -> str:
    """Return ``transport_of`` the app. Raises SettingError if no edge serves it."""
    transport = transport_of(app)
    if why := UNSUPPORTED.get(transport):
        raise SettingError(f"broker_url must use a transport that the wheel supports, got {transport!r}: {why}")
    return transport


def broker_for(app: Any, conf: Conf, store: FullStore | None) -> Broker:
    """Return the edge for the broker to which this app's tasks are published; without a store it only reads."""
    from celery_wheel.broker.destinations import destinations_of
    from celery_wheel.broker.reader import QueuedMessageReader
    from celery_wheel.broker.sealed import MessageSeal
    from celery_wheel.store.ports import StoreIdentity

    transport = check_transport(app)
    identity = StoreIdentity() if store is None else store.identity()
    reader = QueuedMessageReader(destinations_of(app), conf.max_message_bytes, conf.keep_eta, MessageSeal.of(conf))
    if transport == "amqp":
        from celery_wheel.broker.amqp.edge import AmqpBroker

        return AmqpBroker(app.connection_for_write, reader, identity, conf.queue_type)
    if transport != "redis":
        from celery_wheel.broker.virtual import KombuBroker

        return KombuBroker(app, reader)
    try:
        from celery_wheel.broker.redis.edge import RedisBroker
    except ImportError as error:
        raise SettingError(
            f"broker_url needs the Redis client, got {error}; run: pip install 'celery-wheel[redis]'"
        ) from error
    return RedisBroker(
        app.conf.broker_write_url,
        store=identity,
        reader=reader,
        transport_options=app.conf.broker_transport_options or {},
        ssl=app.conf.broker_use_ssl,
    )


# -- the brokers of a store -----------------------------------------------------------------------------------


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
    host = "127.0.0.1" if host in ("localhost", "::1", "[::1]") else host
    path = str(found["virtual_host"] or "").strip("/") or ("0" if kind == "redis" else "")
    return f"{kind}://{host}{':' if found['port'] else ''}{found['port'] or ''}/{path}"
