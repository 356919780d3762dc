"""The broker edges, each in a module or folder of its own that alone imports its client library; and shared names.

::

    app.connection_for_write() ──driver type──► redis       celery_wheel.broker.redis.edge
                                                amqp        celery_wheel.broker.amqp.edge
                                                filesystem  none: its delayed tasks stay Celery's own
                                                others      celery_wheel.broker.virtual

    key, or else the task id     ──►   shard 3 of 4                   computed alike by producers and schedulers,
    namespace "wheel", shard 3   ──►   wheel queue "wheel.3"          which do not talk to each other

A queue name is as kombu knows it: a transport's own prefix (Redis: ``global_keyprefix``) comes before it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from zlib import crc32

from celery_wheel.errors import SettingError

if TYPE_CHECKING:
    from celery_wheel.conf import Conf
    from celery_wheel.engine.port import Broker
    from celery_wheel.store.ports import FullStore

#: kombu's name (``driver_type``) of a transport without an edge → the reason.
_UNSUPPORTED = {"filesystem": "it loses messages when several processes read, and when one is killed"}

#: Transports whose client library kombu misses only when it connects → the library.
_LATE = {"sqs": "boto3"}


def unsupported_reason(transport: str) -> str | None:
    """Return the reason why no edge serves a transport; None if one does."""
    return _UNSUPPORTED.get(transport)


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


def check_transport(app: Any) -> str:
    """Return ``transport_of`` the app. Raises SettingError if no edge serves it."""
    transport = transport_of(app)
    if why := unsupported_reason(transport):
        raise SettingError(f"broker_url must use a transport that the wheel supports, got {transport!r}: {why}")
    return transport


def broker_for(app: Any, conf: Conf, store: FullStore | None) -> Broker:
    """Return the edge for the broker to which this app's tasks are published; without a store it only reads."""
    from celery_wheel.broker.reader import QueuedMessageReader
    from celery_wheel.store.ports import StoreIdentity

    transport = check_transport(app)
    identity = StoreIdentity() if store is None else store.identity()
    reader = QueuedMessageReader(conf.namespace, conf.max_message_bytes, conf.keep_eta)
    if transport == "amqp":
        from celery_wheel.broker.amqp.edge import AmqpBroker

        return AmqpBroker(app.connection_for_write, reader, identity)
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


def wheel_queue_name(namespace: str, shard: int) -> str:
    """Return the queue into which producers put the delayed messages of a shard."""
    return f"{namespace}.{shard}"


def is_own_name(namespace: str, queue: str) -> bool:
    """Whether a name belongs to a wheel queue, its note or an offset key: no task may have it as its destination."""
    rest = queue.removeprefix(f"{namespace}.")
    return rest != queue and rest.removeprefix("offset.").removesuffix(".holder").isdecimal()


def shard_of(key: str | None, task_id: str, shards: int) -> int:
    """Return the shard of a task; tasks with the same key share a shard, so they are dispatched in order."""
    return crc32((key or task_id).encode()) % shards
