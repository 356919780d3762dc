"""The wheel queue for code that uses kombu: its declaration, and messages in the form that they have in it.

Producers and schedulers share the declaration, or RabbitMQ refuses the second. No connection is made here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from inspect import signature
from typing import Any, cast

from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.utils.json import JSONEncoder

from celery_wheel.broker import wheel_queue_name

#: AMQP's default exchange; an object, because kombu reads the name "" as "the producer's own exchange".
DEFAULT_EXCHANGE = Exchange("")  # type: ignore[no-untyped-call]


#: kombu's serialising, compressing and defaults, without a channel.
preparer: Any = cast(Any, Producer)(None)

#: Arguments of kombu's ``publish`` that are no properties of the message.
NO_PROPERTY = frozenset(signature(Producer.publish).parameters)


@cache
def wheel_queue(namespace: str, shard: int, kind: str = "classic") -> Queue:
    """Return the queue for the delayed messages of a shard; only schedulers consume it.

    Its type is always declared, because a RabbitMQ server may make quorum queues by default, which drop a message after
    20 deliveries unless a policy says otherwise.
    """
    name = wheel_queue_name(namespace, shard)
    arguments = {"x-queue-type": kind}
    return Queue(name, DEFAULT_EXCHANGE, routing_key=name, durable=True, queue_arguments=arguments)  # type: ignore[no-untyped-call]


class Undeclared(list[Any]):
    """Entities for ``declare`` of kombu's ``publish``, without those that kombu has declared on the connection.

    kombu knows them as well, but copies and binds an entity before it looks, which takes 30 µs for a queue. The list
    looks whenever kombu iterates over it: publishing again after a lost connection declares all of them again.
    """

    def __init__(self, connection: Any, entities: list[Any]) -> None:
        super().__init__(entities)
        self._connection = connection

    def __iter__(self) -> Iterator[Any]:
        declared = getattr(self._connection, "declared_entities", ())
        return (one for one in super().__iter__() if not one.can_cache_declaration or hash(one) not in declared)


def prepare_body(body: Any, publish: dict[str, Any]) -> bytes:
    """Return the body as kombu's ``publish`` would make it, with arguments by which kombu leaves it as it is."""
    made = publish.get("content_type"), publish.get("content_encoding")
    encoded, publish["content_type"], publish["content_encoding"] = preparer._prepare(
        body, publish.get("serializer"), *made, compression=publish.get("compression"), headers=publish["headers"]
    )
    publish["compression"] = ""  # None would be that of the producer
    return encoded.encode() if isinstance(encoded, str) else bytes(encoded)


def message_parts(body: Any, publish: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return headers, properties with type and encoding of the content, and body, as ``publish`` would send them;
    kombu writes the compression into the headers."""
    publish = dict(publish)
    encoded = prepare_body(body, publish)
    _, mode = preparer._delivery_details(publish["exchange"], publish.get("delivery_mode"))
    properties = {name: value for name, value in publish.items() if name not in NO_PROPERTY}
    content = {name: publish[name] for name in ("content_type", "content_encoding")}
    return publish["headers"], {**content, **properties, "delivery_mode": mode}, encoded


def build_message(body: Any, publish: dict[str, Any]) -> dict[str, Any]:
    """Return the message that ``publish`` would put into a queue, as kombu's virtual transports write it."""
    headers, properties, encoded = message_parts(body, publish)
    return {
        "body": encode_body(encoded),
        "content-encoding": properties.pop("content_encoding"),
        "content-type": properties.pop("content_type"),
        "headers": headers,
        "properties": {**properties, "body_encoding": "base64"},
    }


def encode_body(body: Any) -> str:
    """Return a body as base64 text; serialisers return text or bytes."""
    return b64encode(body.encode() if isinstance(body, str) else body).decode()


def encode_message(message: dict[str, Any]) -> bytes:
    return JSONEncoder().encode(message).encode()
