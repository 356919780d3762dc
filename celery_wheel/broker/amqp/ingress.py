"""The wheel queue of RabbitMQ: read only as far as ``peek`` needs, acknowledged up to a tag.

::

    queue ──deliveries, at most PREFETCH──► socket ──drain──► held (``broker.deliveries``)

Each shard has a connection of its own, so that adopting or giving up a shard disturbs no other. The socket is read only
as far as ``peek`` needs, so the bounds of ``peek`` bound the memory.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

import amqp
from kombu.entity import Queue

from celery_wheel.broker.amqp.link import Link
from celery_wheel.broker.deliveries import Deliveries

logger = logging.getLogger(__name__)

#: Deliveries under way at a time; those that ``peek`` has not needed yet are in the socket.
PREFETCH = 10_000


_OTHERWISE = (
    "the wheel queue %s exists with other arguments than the wheel gives it (%s), and is used as it is; a quorum queue "
    "must have x-delivery-limit=-1 from RabbitMQ 4 on, and none may have a maximal length or a time to live, or its "
    "messages are lost; producers, which declare it as well, are refused: delete it when it is empty"
)


class Ingress(Deliveries):
    def __init__(self, link: Link, queue: Queue) -> None:
        super().__init__(link.lock)
        self._link = link
        self._queue = queue
        self._channel: Any = None

    def keep_alive(self) -> None:
        self._link.keep_alive(reads=False)

    def _using(self, doing: str) -> AbstractContextManager[None]:
        return self._link.using(f"{doing} the wheel queue {self._queue.name}")

    @property
    def _is_up(self) -> bool:
        return self._link.is_up

    def _read(self, max_count: int, max_bytes: int) -> bool:
        """Read up to one delivery more than the bounds: ``peek`` then sees whether there are more."""
        held = self._held
        weight = sum(len(message.body) for message in held)
        while len(held) <= max_count and weight <= max_bytes:
            before = len(held)
            if not self._link.drain(0):
                self._link.connection.heartbeat_tick()  # the socket is read, so a missing heartbeat is the server's
                break
            weight += len(held[-1].body) if len(held) > before else 0
        return False

    def _acknowledge(self, count: int) -> None:
        self._channel.basic_ack(self._held[count - 1].delivery_tag, multiple=True)

    def _give_back(self) -> None:
        self._link.drop()

    def _consume(self) -> None:
        connection = self._link.connection
        self._channel = channel = connection.channel()
        try:
            self._queue.bind(channel).declare()  # type: ignore[no-untyped-call]
        except amqp.exceptions.PreconditionFailed as error:
            # Somebody declared the queue by hand, perhaps as a quorum queue.
            logger.warning(_OTHERWISE, self._queue.name, error, extra={"action": "queue_otherwise"})
            self._channel = channel = connection.channel()
            channel.queue_declare(self._queue.name, passive=True)
        channel.auto_decode = False  # bodies are bytes, whatever their content encoding says
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(self._queue.name, callback=self._held.append, no_ack=False)
