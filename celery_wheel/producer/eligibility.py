"""Eligibility: the wheel accepts messages for the app's own broker, if it supports the broker's transport.

``celery_wheel.broker`` lists unsupported transports. There all delayed tasks stay with Celery, and one log line names
the transport. A message for another broker (``apply_async(connection=…)`` or ``producer=…``) stays with Celery as well:
no scheduler of this app reads a wheel queue there.

Brokers are compared by transport, host, port, virtual host and key prefix, without name resolution: a broker with two
names counts as two, and its message stays with Celery.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from celery_wheel.broker import missing_client, unsupported_reason

logger = logging.getLogger(__name__)


def is_eligible(app: Any, connection: Any, producer: Any) -> bool:
    """Whether the wheel can accept the message of a call with these options."""
    try:
        own = app.amqp.producer_pool.connections.connection  # a template: nothing is connected
        transport = str(own.transport.driver_type)
    except ImportError as error:
        raise missing_client(app, error) from error
    if unsupported_reason(transport):
        _warn_unsupported(transport)
        return False
    if not _is_one_server(own):
        _warn_unsupported(f"{transport} with several servers")
        return False
    other = _connection_of(connection) if connection else producer.connection if producer else None
    return other is None or _is_same_broker(own, other)


@cache  # once for each process and transport
def _warn_unsupported(transport: str) -> None:
    logger.warning(
        "the wheel does not support transport %r: delayed tasks stay with Celery, whose workers hold them until their "
        "eta; set wheel_enabled = False to silence this warning",
        transport,
        extra={"action": "not_diverted", "transport": transport},
    )


def _is_one_server(own: Any) -> bool:
    """Whether the connection names one Redis server: offsets of one server mean nothing on another.

    Sentinel names one of several. On other transports the wheel keeps no offsets, and any server will do.
    """
    if own.transport.driver_type != "redis":
        return True
    if own.transport_cls == "sentinel":
        return bool((own.transport_options or {}).get("master_name"))
    return len(own.alt or ()) <= 1


def _connection_of(connection: Any) -> Any:
    """Return the connection of a connection or a channel; Celery accepts both."""
    return connection if hasattr(connection, "transport_cls") else connection.connection.client


def _is_same_broker(one: Any, other: Any) -> bool:
    if one.alt and one.alt == other.alt:  # the same failover list, whichever server each uses now
        return True
    return _broker_key(one) == _broker_key(other)


def _broker_key(connection: Any) -> tuple[Any, ...]:
    info = connection.info()
    vhost = info["virtual_host"]
    if connection.transport.driver_type == "redis":
        vhost = str(vhost or "").strip("/") or "0"
    return (
        connection.get_transport_cls(),
        info["hostname"],
        info["port"],
        vhost or "/",
        (connection.transport_options or {}).get("global_keyprefix") or "",
    )
