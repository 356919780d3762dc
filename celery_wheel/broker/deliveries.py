"""The wheel queue of a broker that pushes: deliveries stay unacknowledged in this process until the store has them.

Messages stay in order and are peeked again until they are trimmed. A token is valid for one connection, and until the
next trim; afterwards ``trim`` returns False, and the messages are peeked again. Unacknowledged deliveries return to the
queue: by leave, another adoption, a lost connection, the end of the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Literal, NamedTuple, cast

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.batches import publish_merged
from celery_wheel.broker.errors import not_adopted
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.port import Chunk, Confirmed, Peeked
from celery_wheel.store.model import Message, Row, Unreadable


class Token(NamedTuple):
    """The deliveries that one peek returned."""

    generation: int  #: number of the connection
    first: int  #: deliveries of the connection that were trimmed before
    size: int  #: number of these deliveries


class Deliveries(ABC):
    """One shard's deliveries. ``lock`` is held during every call; subclasses may share it with their connection."""

    def __init__(self, shard: int, lock: RLock) -> None:
        self._shard = shard
        self._lock = lock
        self._unacknowledged: deque[Any] = deque()
        self._generation = 0
        self._trimmed = 0
        self._epoch: int | None = None

    @abstractmethod
    def _using(self, doing: str) -> AbstractContextManager[None]:
        """Hold the lock; an error in the block ends the connection and is raised as a BrokerError."""

    @property
    @abstractmethod
    def _is_up(self) -> bool:
        """Whether the connection that ``_consume`` made still exists."""

    @abstractmethod
    def _consume(self) -> None:
        """Connect, and let the transport append deliveries to ``_unacknowledged``."""

    @abstractmethod
    def _read(self, max_count: int, max_bytes: int) -> bool:
        """Append deliveries until the bounds are reached; returns whether the queue may have more."""

    @abstractmethod
    def _acknowledge(self, count: int) -> None:
        """Acknowledge the oldest deliveries: the store has them."""

    @abstractmethod
    def _disconnect(self) -> None:
        """End the connection, so that unacknowledged deliveries return to the queue; raises nothing."""

    def adopt(self, epoch: int) -> None:
        with self._using("opening"):
            self.close()
            self._epoch = epoch
            try:
                self._begin()
            except BaseException:
                self._epoch = None
                raise

    def leave(self, epoch: int) -> None:
        with self._lock:
            if self._epoch is not None and epoch >= self._epoch:
                self.close()

    def close(self) -> None:
        with self._lock:
            self._epoch = None
            self._end()

    def peek(self, max_count: int, max_bytes: int) -> tuple[list[Any], Token, bool]:
        """Return the oldest deliveries within the bounds, at least one if any; a token; and whether there are more."""
        with self._using("reading"):
            if self._epoch is None:
                raise not_adopted(self._shard)
            if not self._is_up:
                self._begin()
            more = self._read(max_count, max_bytes)
            found: list[Any] = []
            weight = 0
            for message in self._unacknowledged:
                weight += len(message.body or b"")
                if found and (len(found) >= max_count or weight > max_bytes):
                    break
                found.append(message)
            token = Token(self._generation, self._trimmed, len(found))
            return found, token, more or len(found) < len(self._unacknowledged)

    def trim(self, token: Token) -> bool:
        if not token.size:
            return True
        with self._using("acknowledging"):
            if self._epoch is None or not self._is_up or token[:2] != (self._generation, self._trimmed):
                return False
            self._acknowledge(token.size)
            for _ in range(token.size):
                self._unacknowledged.popleft()
            self._trimmed += token.size
        return True

    def _begin(self) -> None:
        self._unacknowledged.clear()
        self._consume()
        self._generation, self._trimmed = self._generation + 1, 0

    def _end(self) -> None:
        self._disconnect()
        self._unacknowledged.clear()


#: Publishes rows at a time, perhaps again, while a function says that it may.
Publish = Callable[[Sequence[Row], int, bool, Callable[[], bool]], Confirmed]


class DeliveryBroker(ABC):
    """The part that the ConfirmingBrokers have in common."""

    fences: Literal[False] = False

    def __init__(self, reader: QueuedMessageReader, publish: Publish) -> None:
        self._reader, self._publish = reader, publish
        self._shards: dict[int, Deliveries] = {}

    @abstractmethod
    def _deliveries(self, shard: int) -> Deliveries: ...

    @abstractmethod
    def _message(self, delivery: Any) -> Message | Unreadable: ...

    @abstractmethod
    def ready(self, queues: Sequence[str]) -> dict[str, int]: ...

    def adopt(self, shard: int, epoch: int) -> None:
        if shard not in self._shards:
            self._shards[shard] = self._deliveries(shard)
        self._shards[shard].adopt(epoch)

    def leave(self, shard: int, epoch: int) -> None:
        if shard in self._shards:
            self._shards[shard].leave(epoch)

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        if shard not in self._shards:
            raise not_adopted(shard)
        found, token, more = self._shards[shard].peek(max_count, max_bytes)
        return Peeked([self._message(delivery) for delivery in found], token, more)

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        return shard in self._shards and self._shards[shard].trim(cast(Token, token))

    def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
        if not chunk.rows:
            return Confirmed()
        times = chunk.now_ms, chunk.redelivered, may_send
        return publish_merged(chunk.rows, lambda rows: self._publish(rows, *times))

    def depth(self, shard: int) -> int:
        name = wheel_queue_name(self._reader.namespace, shard)
        return self.ready([name])[name]

    def decode(self, raw: bytes) -> Message | Unreadable:
        return self._reader.decode(raw)

    def now_ms(self) -> int | None:
        """Return None: these brokers have no clock that a client can read."""
        return None

    def close(self) -> None:
        for deliveries in self._shards.values():
            deliveries.close()
