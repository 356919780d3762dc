"""The broker edge for RabbitMQ: implements ``engine.port.ConfirmingBroker``.

::

    queue ──deliveries, at most PREFETCH──► socket ──drain──► unacknowledged (``broker.deliveries``)
                                              └─ await_delivery: polls the socket, without the lock

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as dispatched when RabbitMQ
has confirmed it, so it is in a queue, on disk if the queue is durable. Rows that cannot be routed and rows that a queue
refuses are reported, never dropped. The bounds of ``peek`` bound the memory, beside the bytes of one read and the
delivery that ``await_delivery`` has read.

Non-promises: RabbitMQ has no compare-and-set, so rows that were in flight when a scheduler or a connection died may be
in their queues twice, the second time with the header ``wheel_redelivered``. A former holder that was suspended between
its last check of its lease and the write is not fenced. ``holder`` refuses another store and a copy while the holder's
connection lives. ``depth`` does not count messages that were delivered to a holder.

µs of CPU a message: 8 to read three frames and deliver, 27 to decode (properties 13, JSON of headers and properties 6,
envelope 3); the engine and the store take as much again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import amqp
from kombu.entity import Queue

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.amqp.holder import HolderNote
from celery_wheel.broker.amqp.link import HEARTBEAT_S, AmqpLink
from celery_wheel.broker.amqp.message import decode
from celery_wheel.broker.amqp.publisher import AmqpPublisher
from celery_wheel.broker.deliveries import Deliveries, DeliveryBroker
from celery_wheel.broker.owner import Owner
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.ports import StoreIdentity

logger = logging.getLogger(__name__)

#: Unacknowledged deliveries at a time; the socket has those that ``peek`` has not needed yet.
PREFETCH = 10_000

_FOREIGN_ARGUMENTS = (
    "the wheel queue %s exists with other arguments than the wheel declares (%s), and is used as it is; a quorum queue "
    "must have x-delivery-limit=-1 from RabbitMQ 4 on, and no queue may have a maximal length or a time to live, or "
    "messages are lost; RabbitMQ refuses producers, which declare it too: delete the queue when it is empty"
)


#: The store of an edge that only publishes and reads.
_UNKNOWN = StoreIdentity()


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


class AmqpBroker(DeliveryBroker):
    """Implements ``ConfirmingBroker`` for RabbitMQ; ``connect`` returns a new kombu connection, as for a producer."""

    can_wait = True

    def __init__(
        self, connect: Callable[[], Any], reader: QueuedMessageReader, store: StoreIdentity = _UNKNOWN
    ) -> None:
        super().__init__(reader)
        self._store, self._connect = store, connect
        self._publishing, self._inspecting = AmqpLink(connect), AmqpLink(connect)
        self._publisher = AmqpPublisher(self._publishing)

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return shard in self._shards and cast(AmqpIngress, self._shards[shard]).await_delivery(timeout_ms)

    def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
        if not chunk.rows:
            return Confirmed()
        return self._publisher.publish(chunk.rows, chunk.now_ms, chunk.redelivered, may_send)

    def depth(self, shard: int) -> int:
        name = wheel_queue_name(self._reader.namespace, shard)
        with self._inspect(f"counting the wheel queue {name}") as channel:
            return int(channel.queue_declare(name, passive=True).message_count)
        return 0

    def oldest(self, shard: int) -> Message | Unreadable | None:
        """Return the oldest message; RabbitMQ requeues it in its place as the channel closes."""
        name = wheel_queue_name(self._reader.namespace, shard)
        with self._inspect(f"reading the oldest message of the wheel queue {name}") as channel:
            found = channel.basic_get(name, no_ack=False)
            return None if found is None else self._message(found)
        return None

    @contextmanager
    def _inspect(self, doing: str) -> Iterator[Any]:
        """Open a channel on a connection that consumes nothing; a queue that does not exist ends the block."""
        with self._inspecting.using(doing):
            channel = self._inspecting.connection.channel()
            channel.auto_decode = False
            try:
                yield channel
            except amqp.exceptions.NotFound:
                return
            finally:
                if channel.is_open:
                    channel.close()

    def _deliveries(self, shard: int) -> AmqpIngress:
        queue = wheel_queue(self._reader.namespace, shard)
        return AmqpIngress(shard, AmqpLink(self._connect), queue, self._holder(shard))

    def owner(self, shard: int) -> Owner | None:
        """Return the store of the shard's last holder; None where there was none."""
        return self._holder(shard).owner()

    def _holder(self, shard: int) -> HolderNote:
        queue = wheel_queue_name(self._reader.namespace, shard)
        return HolderNote(shard, queue, AmqpLink(self._connect), self._store)

    def _message(self, delivery: Any) -> Message | Unreadable:
        return decode(delivery, self._reader)

    def now_ms(self) -> int | None:
        """Return None, since clients cannot read RabbitMQ's clock; send the heartbeats that it expects."""
        for ingress in list(self._shards.values()):
            cast(AmqpIngress, ingress).keep_alive()
        self._publishing.keep_alive(reads=True)
        return None

    def close(self) -> None:
        super().close()
        for link in (self._publishing, self._inspecting):
            with link.lock:
                link.drop()
