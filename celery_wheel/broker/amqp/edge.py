"""The broker edge for RabbitMQ: implements ``engine.port.ConfirmingBroker``.

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as dispatched when RabbitMQ
has confirmed it, so it is in a queue, on disk if the queue is durable. Rows that cannot be routed and rows that a queue
refuses are reported, never dropped.

Non-promises: RabbitMQ has no compare-and-set, so rows that were in flight when a scheduler or a connection died may be
in their queues twice, the second time with the header ``wheel_redelivered``. A former holder that was suspended between
its last check of its lease and the write is not fenced. ``holder`` refuses another store and a copy while the holder's
connection lives. ``depth`` does not count messages that were delivered to a holder.

Files: see the folder's header. All methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import amqp

from celery_wheel.broker.amqp.holder import HolderNote
from celery_wheel.broker.amqp.ingress import AmqpIngress
from celery_wheel.broker.amqp.link import AmqpLink
from celery_wheel.broker.amqp.message import decode
from celery_wheel.broker.amqp.publisher import AmqpPublisher
from celery_wheel.broker.deliveries import DeliveryBroker
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.owner import Owner
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.ports import StoreIdentity

#: The store of an edge that only publishes and reads.
_UNKNOWN = StoreIdentity()


class AmqpBroker(DeliveryBroker):
    """Implements ``ConfirmingBroker`` for RabbitMQ.

    Args:
        connect: returns a new kombu connection, as the app's producers use it.
        reader: reads the wheel queue; its namespace begins the queues' names.
        store: the store of the scheduler.
    """

    def __init__(
        self, connect: Callable[[], Any], reader: QueuedMessageReader, store: StoreIdentity = _UNKNOWN
    ) -> None:
        super().__init__(reader)
        self._store = store
        self._connect = connect
        self._publishing = AmqpLink(connect)
        self._inspecting = AmqpLink(connect)
        self._publisher = AmqpPublisher(self._publishing)

    @property
    def can_wait(self) -> bool:
        return True

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
