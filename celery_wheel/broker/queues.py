"""The wheel queue as kombu declares it: producers and schedulers share it, or RabbitMQ refuses the second."""

from __future__ import annotations

from functools import cache

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
