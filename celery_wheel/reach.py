"""Which messages the wheel can take: those for the app's own broker, if there is an engine for its transport.

The transports that an engine serves are listed in ``celery_wheel.broker``. On any other, everything stays Celery's;
that is said once in the log, naming the transport. So does a message that goes to another broker
(``apply_async(connection=…)`` or ``producer=…``): no scheduler of this app reads a wheel queue over there.

Brokers are compared by transport, host, port, virtual host and key prefix, not by name resolution: one that is
called by two names counts as two, and its message goes native.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from celery_wheel.broker import refusal

logger = logging.getLogger(__name__)


def reaches(app: Any, connection: Any, producer: Any) -> bool:
    """Can the wheel take what this call sends?"""
    own = app.amqp.producer_pool.connections.connection  # a template: nothing is connected
    transport = str(own.transport.driver_type)
    if refusal(transport) or not _is_one_server(own):
        _say_unserved(transport if refusal(transport) else f"{transport} with several servers")
        return False
    other = _connection_of(connection) if connection else producer.connection if producer else None
    return other is None or _same(own, other)


@cache  # once a process and transport
def _say_unserved(transport: str) -> None:
    logger.warning(
        "wheel: no engine for transport %r: delayed tasks are left to Celery itself (worker-held eta); "
        "wheel_enabled = False says so without this warning",
        transport,
        extra={"action": "not_diverted", "transport": transport},
    )


def _is_one_server(own: Any) -> bool:
    """A offset that is kept on one of several servers says nothing about the others; Sentinel names one of them.

    Where none is kept, any of them will do.
    """
    if own.transport.driver_type != "redis":
        return True
    if own.transport_cls == "sentinel":
        return bool((own.transport_options or {}).get("master_name"))
    return len(own.alt or ()) <= 1


def _connection_of(connection: Any) -> Any:
    """Celery takes a channel for a connection, too."""
    return connection if hasattr(connection, "transport_cls") else connection.connection.client


def _same(one: Any, other: Any) -> bool:
    if one.alt and one.alt == other.alt:  # the same list of brokers to fail over, at whichever each is now
        return True
    return _place(one) == _place(other)


def _place(connection: Any) -> tuple[Any, ...]:
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
