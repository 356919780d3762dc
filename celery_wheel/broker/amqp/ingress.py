"""The wheel queue of RabbitMQ: read only as far as ``peek`` needs, acknowledged up to a tag.

::

    queue ──deliveries, at most PREFETCH──► socket ──drain──► unacknowledged (``broker.deliveries``)
                                              └─ await_delivery: polls the socket, without the lock

Each shard has a connection of its own, so that adopting or leaving a shard disturbs no other. The socket is read only
as far as ``peek`` needs, so the bounds of ``peek`` bound the memory, beside the bytes of one read and the delivery that
``await_delivery`` has read.

µs of CPU a message: 8 to read three frames and deliver, 27 to decode (properties 13, JSON of headers and properties 6,
envelope 3); the engine and the store take as much again.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from typing import Any

import amqp
from kombu.entity import Queue

from celery_wheel.broker.amqp.holder import HolderNote
from celery_wheel.broker.amqp.link import HEARTBEAT_S, AmqpLink
from celery_wheel.broker.deliveries import Deliveries

logger = logging.getLogger(__name__)

#: Unacknowledged deliveries at a time; the socket has those that ``peek`` has not needed yet.
PREFETCH = 10_000

_FOREIGN_ARGUMENTS = (
    "the wheel queue %s exists with other arguments than the wheel declares (%s), and is used as it is; a quorum queue "
    "must have x-delivery-limit=-1 from RabbitMQ 4 on, and no queue may have a maximal length or a time to live, or "
    "messages are lost; RabbitMQ refuses producers, which declare it too: delete the queue when it is empty"
)


class AmqpIngress(Deliveries):
    """One shard's deliveries on a connection of their own."""

    def __init__(self, shard: int, link: AmqpLink, queue: Queue, holder: HolderNote) -> None:
        super().__init__(shard, link.lock)
        self._holder = holder
        self._link = link
        self._queue = queue
        self._channel: Any = None

    def keep_alive(self) -> None:
        self._link.keep_alive(reads=False)

    def await_delivery(self, timeout_ms: int) -> bool:
        """Wait until a delivery has been read; returns False after the time, or as soon as the shard is left.

        The lock is free meanwhile: other threads peek, trim and leave, and may read the delivery first.
        """
        until_s = time.monotonic() + timeout_ms / 1_000
        while True:
            with self._using("waiting at"):
                if self._epoch is None:
                    return False
                if not self._is_up:
                    self._begin()
                while not self._unacknowledged and self._link.drain(0):
                    pass
                if self._unacknowledged:
                    return True
                self._link.connection.heartbeat_tick()  # the socket is empty, as in ``_read``
                incoming = self._link.incoming()
            remaining_s = until_s - time.monotonic()
            if remaining_s <= 0:
                return False
            incoming.poll(min(remaining_s, HEARTBEAT_S / 2) * 1_000)

    def _using(self, doing: str) -> AbstractContextManager[None]:
        return self._link.using(f"{doing} the wheel queue {self._queue.name}")

    @property
    def _is_up(self) -> bool:
        return self._link.is_up

    def _read(self, max_count: int, max_bytes: int) -> bool:
        """Read up to one delivery more than the bounds: ``peek`` then sees whether there are more."""
        found = self._unacknowledged
        weight = sum(len(message.body) for message in found)
        while len(found) <= max_count and weight <= max_bytes:
            before = len(found)
            if not self._link.drain(0):
                self._link.connection.heartbeat_tick()  # the socket is empty: a missing heartbeat is the server's fault
                break
            weight += len(found[-1].body) if len(found) > before else 0
        return False

    def _acknowledge(self, count: int) -> None:
        self._channel.basic_ack(self._unacknowledged[count - 1].delivery_tag, multiple=True)

    def _disconnect(self) -> None:
        self._link.drop()

    def _consume(self) -> None:
        connection = self._link.connection
        try:
            self._holder.take(connection, self._epoch or 0)
        except BaseException:
            self._disconnect()  # a connection counts as one that consumes
            raise
        self._channel = channel = connection.channel()
        try:
            self._queue.bind(channel).declare()  # type: ignore[no-untyped-call]
        except amqp.exceptions.PreconditionFailed as error:
            # The queue was declared by hand, perhaps as a quorum queue.
            logger.warning(_FOREIGN_ARGUMENTS, self._queue.name, error, extra={"action": "queue_otherwise"})
            self._channel = channel = connection.channel()
            channel.queue_declare(self._queue.name, passive=True)
        channel.auto_decode = False  # bodies are bytes, whatever their content encoding says
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(self._queue.name, callback=self._unacknowledged.append, no_ack=False)
