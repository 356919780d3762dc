"""Where a message goes: whether the wheel may have it, and the destination to publish it to later.

A message for another broker (``apply_async(connection=…)`` or ``producer=…``) stays with Celery: no scheduler of this
app reads a wheel queue there. Brokers are compared by transport, host, port, virtual host and key prefix, without name
resolution: a broker with two names counts as two, and its message stays with Celery.

For the destination Celery has resolved routes, queues and keys. Three rules remain:

1. kombu reads an empty exchange as "the producer's own default exchange", which a custom producer may have.
2. A named exchange may be a bare string. Its type decides about routing when the message is dispatched; the module
   searches every place of a declaration: this message, ``task_queues``, the connection's memory (virtual transports),
   the call's ``exchange_type``. An unknown type is ``direct``, as in kombu.
3. The queue is only known where the message goes to it by name or by the exchange of its declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import kombu
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from celery_wheel.broker.transport import UNSUPPORTED, missing_client
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)


def is_eligible(app: Any, connection: Any, producer: Any) -> bool:
    """Whether the wheel can accept the message of a call with these options."""
    try:
        own = app.amqp.producer_pool.connections.connection  # a template: nothing is connected
        transport = str(own.transport.driver_type)
    except ImportError as error:
        raise missing_client(app, error) from error
    if transport in UNSUPPORTED:
        _warn_unsupported(transport)
        return False
    if not _is_one_server(own):
        _warn_unsupported(f"{transport} with several servers")
        return False
    other = connection or (producer.connection if producer else None)
    if other is None:
        return True
    if not hasattr(other, "transport_cls"):  # Celery accepts a channel as well
        other = other.connection.client
    # The same failover list is one broker, whichever server each uses now.
    return bool(own.alt and own.alt == other.alt) or _broker_key(own) == _broker_key(other)


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


class Destination(NamedTuple):
    exchange: str
    exchange_type: str
    routing_key: str
    queue: str | None
    queue_expires_ms: int | None


def resolve_destination(amqp: Any, producer: Any, publish: dict[str, Any], options: dict[str, Any]) -> Destination:
    """Return the destination of a message, from arguments of ``publish`` and those of ``send_task_message``."""
    exchange = publish.get("exchange") or producer.exchange
    routing_key = publish.get("routing_key")
    if routing_key is None:
        routing_key = producer.routing_key
    name = exchange.name if isinstance(exchange, Exchange) else exchange
    queues: dict[str, Any] = amqp.queues
    named = options.get("queue")
    declared = [*(publish.get("declare") or ()), *([named] if isinstance(named, Queue) else ())]
    if not name:
        queue = next((q for q in declared if isinstance(q, Queue) and q.name == routing_key), queues.get(routing_key))
        return Destination("", "direct", routing_key, routing_key, queue_expires_ms(queue))
    bound = (q for q in declared if isinstance(q, Queue) and any(e.name == name for e in _exchanges((q,))))
    queue = next((q for q in bound if not isinstance(q, Broadcast)), None)  # only its worker knows a Broadcast's name
    return Destination(
        exchange=name,
        exchange_type=_type_of(exchange, name, declared, queues, producer, options.get("exchange_type")),
        routing_key=routing_key,
        queue=queue.name if queue is not None else None,
        queue_expires_ms=queue_expires_ms(queue),
    )


def queue_expires_ms(queue: Any) -> int | None:
    """Return ``x-expires`` of a queue's declaration, to which the Redis edge renews an expiry.

    Kombu obeys it on Redis since 5.7. With an older one a queue, whose workers do not keep it alive, would lose tasks.
    """
    if queue is None or kombu.VERSION < (5, 7):
        return None
    if queue.expires is not None:
        return int(queue.expires * 1000)
    try:
        return int((queue.queue_arguments or {})["x-expires"])
    except (KeyError, TypeError, ValueError):
        return None


def _type_of(
    exchange: Any, name: str, declared: Iterable[Any], queues: dict[str, Any], producer: Any, fallback: str | None
) -> str:
    candidates: list[Any] = [exchange, *_exchanges(declared), *_exchanges(queues.values())]
    for candidate in candidates:
        if isinstance(candidate, Exchange) and candidate.name == name and candidate.type:
            return str(candidate.type)
    state = getattr(getattr(producer.connection, "transport", None), "state", None)
    known = getattr(state, "exchanges", None) or {}
    return str(known.get(name, {}).get("type") or fallback or "direct")


def _exchanges(entities: Iterable[Any]) -> Iterator[Any]:
    for entity in entities:
        if isinstance(entity, Exchange):
            yield entity
        elif isinstance(entity, Queue):
            if entity.exchange is not None:
                yield entity.exchange
            yield from (bound.exchange for bound in entity.bindings or ())
