"""The wheel queue as kombu declares it: the same by producers and schedulers, or RabbitMQ refuses the second."""

from __future__ import annotations

from functools import cache

from kombu.entity import Exchange, Queue

from celery_wheel.broker.names import wheel_queue_name

#: Said as an object, because kombu takes the name "" for "the producer's own default exchange".
ANONYMOUS = Exchange("")  # type: ignore[no-untyped-call]


@cache
def wheel_queue(namespace: str, shard: int) -> Queue:
    """The queue that delayed messages of a shard wait in; private: a worker that consumed it would hold them itself.

    Classic, said aloud, because a RabbitMQ may be set to make quorum queues, which give up after 20 deliveries.
    """
    name = wheel_queue_name(namespace, shard)
    arguments = {"x-queue-type": "classic"}
    return Queue(name, ANONYMOUS, routing_key=name, durable=True, queue_arguments=arguments)  # type: ignore[no-untyped-call]
