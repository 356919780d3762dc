"""The wheel queue as kombu declares it: producers and schedulers share it, or RabbitMQ refuses the second."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from kombu.entity import Exchange, Queue

from celery_wheel.broker.names import wheel_queue_name

#: AMQP's default exchange; an object, because kombu reads the name "" as "the producer's own exchange".
DEFAULT_EXCHANGE = Exchange("")  # type: ignore[no-untyped-call]


@cache
def wheel_queue(namespace: str, shard: int) -> Queue:
    """Return the queue for the delayed messages of a shard; only schedulers consume it.

    Its type is declared as classic, because a RabbitMQ server may make quorum queues by default, which drop a message
    after 20 deliveries.
    """
    name = wheel_queue_name(namespace, shard)
    arguments = {"x-queue-type": "classic"}
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
