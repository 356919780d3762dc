"""The broker edge for RabbitMQ: implements ``engine.port.ConfirmingBroker``.

::

    wheel.0.holder          durable, one message: the note with the store's identity, the epoch, the name of the sign
    wheel.0.holder.5f1c…    the sign of life: an exclusive queue of the holder's connection, which ends with it
    wheel.0.holder.lock     exclusive while a scheduler reads or replaces the note: two never decide at once

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as dispatched when RabbitMQ
has confirmed it. Rows that cannot be routed and rows that a queue refuses are reported. The bounds of ``peek`` bound
the memory, beside the bytes of one read.

Non-promises: RabbitMQ has no compare-and-set. Rows in flight when a scheduler or a connection dies may be in their
queues twice, the second time with the header ``wheel_redelivered``. A former holder that was suspended between its last
check of its lease and the write is not fenced. One that loses its connection works until its next peek, which finds the
note of a copy that came meanwhile; ``broker.owner`` has the rule. ``depth`` leaves out the messages at a holder.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

import amqp
from kombu.entity import Queue

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.amqp.link import CONNECTION_ERRORS, HEARTBEAT_S, AmqpLink
from celery_wheel.broker.amqp.publisher import AmqpPublisher, decode
from celery_wheel.broker.deliveries import Deliveries, DeliveryBroker
from celery_wheel.broker.owner import OCCUPIED_MS, Owner, other_copy, other_store
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.ports import StoreIdentity
from celery_wheel.store.store_model import EPOCH_LEAP
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Seconds; a server under an alarm accepts no note, and the shard's lease goes on.
PATIENCE_S = 1.0
PAUSE_S = 0.02  #: between two tries to lock the note

_CLASSIC = {"x-queue-type": "classic"}


class HolderNote:
    """The note of one shard; ``queue`` is the name of its wheel queue, ``store`` the one of this process.

    No other code uses ``link``: under an alarm the server reads nothing more from a connection that has published.
    The queue of the note has the type of the wheel queue: what outlives a node needs both.
    """

    def __init__(self, shard: int, queue: Any, link: AmqpLink, store: StoreIdentity) -> None:
        self._shard, self._name, self._arguments = shard, f"{queue.name}.holder", queue.queue_arguments
        self._link, self._store = link, store

    def take(self, reading: Any, epoch: int) -> None:
        """Sign the note for this store while ``reading`` lives, the connection that reads the wheel queue.

        Raises StoreConflict where another store has it.
        """
        with self._reading() as (channel, notes):
            found = _latest(notes)
            if found is not None:
                self._check(self._owner(found), epoch - int(found["epoch"]))
            sign = f"{self._name}.{secrets.token_hex(8)}"
            reading.channel().queue_declare(sign, exclusive=True, auto_delete=False, arguments=_CLASSIC)
            body = json.dumps({**self._store._asdict(), "epoch": epoch, "sign": sign})
            note = amqp.Message(body.encode(), delivery_mode=2)
            channel.queue_declare(self._name, durable=True, auto_delete=False, arguments=self._arguments)
            try:
                channel.basic_publish_confirm(note, routing_key=self._name, confirm_timeout=PATIENCE_S)
                for former in notes:  # after the new one: where this process dies between, the last note counts
                    former.channel.basic_ack(former.delivery_tag)
            except TimeoutError:  # an alarm: the note of before stays, and messages are still accepted
                logger.warning(
                    "%s accepts no note about the holder of shard %d: its memory or disk alarm is on",
                    self._link.describe(),
                    self._shard,
                    extra={"action": "no_note", "shard": self._shard},
                )

    def owner(self) -> Owner | None:
        with self._reading() as (_, notes):
            found = _latest(notes)
            return None if found is None else self._owner(found)

    def _check(self, owner: Owner, ahead: int) -> None:
        store, leap = self._store, EPOCH_LEAP // 2
        if owner.uuid != store.uuid:
            if owner.lives:
                raise other_store(self._link.describe(), self._shard, owner, store)
            logger.warning(
                "shard %d in %s was held by another store, %s, whose pending tasks stay there; now %s holds it",
                self._shard,
                self._link.describe(),
                owner,
                store.place,
                extra={"action": "other_store", "shard": self._shard},
            )
            return
        elsewhere = owner.address != store.address or ahead <= -leap
        if owner.is_copy_of(store) and ahead < leap and (owner.lives or elsewhere):
            raise other_copy(self._link.describe(), self._shard, owner.place, store)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, list[Any]]]:
        """Lock the note; yields a channel and the notes, of which the last counts."""
        with self._link.using(f"reading the holder of shard {self._shard}"):
            try:
                yield self._locked(), self._notes()
            finally:
                with suppress(*CONNECTION_ERRORS):
                    self._link.connection.close()  # unlocks, and returns the notes
                self._link.drop()

    def _locked(self) -> Any:
        """Return a channel of the connection that has the lock now: another process has it for some milliseconds."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            channel = self._link.connection.channel()  # the server closes that of a refused declaration
            try:
                channel.queue_declare(f"{self._name}.lock", exclusive=True, auto_delete=False, arguments=_CLASSIC)
            except amqp.exceptions.ResourceLocked as error:
                if time.monotonic() >= until_s:
                    raise BrokerError(
                        f"another process looks who holds shard {self._shard} in {self._link.describe()}; nothing was "
                        "changed; try again"
                    ) from error
                time.sleep(PAUSE_S)
            else:
                return channel

    def _notes(self) -> list[Any]:
        channel, notes = self._link.connection.channel(), list[Any]()
        channel.auto_decode = False
        try:
            while (note := channel.basic_get(self._name, no_ack=False)) is not None:
                notes.append(note)
        except amqp.exceptions.NotFound:  # nothing was ever adopted
            pass
        return notes

    def _owner(self, note: dict[str, Any]) -> Owner:
        silent_ms = 0 if _exists(self._link.connection, str(note["sign"])) else OCCUPIED_MS
        return Owner(str(note["uuid"]), str(note["place"]), silent_ms, str(note["instance"]), str(note["address"]))


def _exists(connection: Any, queue: str) -> bool:
    """Whether a queue of any connection has the name. An exclusive one of another connection is locked."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except amqp.exceptions.NotFound:
        return False
    except amqp.exceptions.ResourceLocked:
        return True
    channel.close()
    return True


def _latest(notes: list[Any]) -> dict[str, Any] | None:
    if not notes:
        return None
    found: dict[str, Any] = json.loads(notes[-1].body)
    return found


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
        weight = sum(message.body_size for message in found)
        while len(found) <= max_count and weight <= max_bytes:
            before = len(found)
            if not self._link.drain(0):
                self._link.connection.heartbeat_tick()  # the socket is empty: a missing heartbeat is the server's fault
                break
            weight += found[-1].body_size if len(found) > before else 0
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
        self,
        connect: Callable[[], Any],
        reader: QueuedMessageReader,
        store: StoreIdentity = _UNKNOWN,
        queue_type: str = "classic",
    ) -> None:
        self._store, self._connect, self._queue_type = store, connect, queue_type
        self._publishing, self._inspecting = AmqpLink(connect), AmqpLink(connect, reader.max_kept_bytes)
        super().__init__(reader, AmqpPublisher(self._publishing).publish)

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return shard in self._shards and cast(AmqpIngress, self._shards[shard]).await_delivery(timeout_ms)

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        return {queue: self._count(queue) for queue in queues}

    def _count(self, queue: str) -> int:
        with self._inspect(f"counting the messages of queue {queue}") as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
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
        queue = self._queue(shard)
        link = AmqpLink(self._connect, self._reader.max_kept_bytes)
        return AmqpIngress(shard, link, queue, self._holder(shard))

    def owner(self, shard: int) -> Owner | None:
        """Return the store of the shard's last holder; None where there was none."""
        return self._holder(shard).owner()

    def _holder(self, shard: int) -> HolderNote:
        return HolderNote(shard, self._queue(shard), AmqpLink(self._connect), self._store)

    def _queue(self, shard: int) -> Queue:
        return wheel_queue(self._reader.namespace, shard, self._queue_type)

    def _message(self, delivery: Any) -> Message | Unreadable:
        return decode(delivery, self._reader)

    def keep_alive(self) -> None:
        for ingress in list(self._shards.values()):
            cast(AmqpIngress, ingress).keep_alive()
        for link in (self._publishing, self._inspecting):
            link.keep_alive(reads=True)

    def close(self) -> None:
        super().close()
        for link in (self._publishing, self._inspecting):
            with link.lock:
                link.drop()
