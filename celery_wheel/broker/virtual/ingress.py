"""The wheel queue through a kombu consumer: deliveries wait here, unacknowledged, until the store has them.

What becomes of them when this process is killed is the transport's affair: one with a visibility time-out gives them
back, one that pops them has lost them. So only ``PREFETCH`` are under way at a time. docs/transports.md has the list.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from kombu.entity import Queue
from kombu.exceptions import OperationalError
from kombu.messaging import Consumer

from celery_wheel.errors import BrokerError

PREFETCH = 200
CONNECT_S = 5
#: A look into the queue waits so long for the first message; transports that poll have their own interval on top.
LOOK_S = 0.01


class Token(NamedTuple):
    generation: int
    size: int  #: how many deliveries


def lost(connection: Any) -> tuple[type[BaseException], ...]:
    """What this transport raises when it cannot do what it was asked."""
    errors = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
    return (*errors, *connection.connection_errors, *connection.channel_errors, OperationalError, OSError)


class Ingress:
    def __init__(self, connect: Callable[[], Any], queue: Queue) -> None:
        self._connect = connect
        self._queue = queue
        self._lock = threading.RLock()
        self._connection: Any = None
        self._held: deque[Any] = deque()
        self._generation = 0
        self._epoch: int | None = None

    def adopt(self, epoch: int) -> None:
        with self._using("opening"):
            self._give_back()
            self._epoch = epoch
            self._consume()

    def leave(self, epoch: int) -> None:
        with self._lock:
            if self._epoch == epoch:
                self._epoch = None
                self._give_back()

    def peek(self, max_count: int, max_bytes: int) -> tuple[list[Any], Token, bool]:
        with self._using("reading"):
            if self._epoch is None:
                raise BrokerError("the wheel queue is not read: the shard was given up; nothing was taken")
            if self._connection is None:
                self._consume()
            with suppress(TimeoutError):
                while len(self._held) < min(max_count, PREFETCH):
                    self._connection.drain_events(timeout=LOOK_S)
        found: list[Any] = []
        weight = 0
        for message in self._held:
            weight += len(message.body)
            if found and (len(found) == max_count or weight > max_bytes):
                break
            found.append(message)
        return found, Token(self._generation, len(found)), len(found) == PREFETCH or len(found) < len(self._held)

    def trim(self, token: Token) -> bool:
        with self._using("acknowledging"):
            if self._epoch is None or self._connection is None or token.generation != self._generation:
                return False
            for _ in range(token.size):
                self._held[0].ack()
                self._held.popleft()
        return True

    def close(self) -> None:
        with self._lock:
            self._epoch = None
            self._give_back()

    # -- inside ------------------------------------------------------------------------------------

    def _consume(self) -> None:
        self._connection = connection = self._connect()
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        channel = connection.channel()
        consumer: Any = Consumer(channel, [self._queue], on_message=self._held.append, prefetch_count=PREFETCH)  # type: ignore[no-untyped-call]
        consumer.consume()
        self._generation += 1

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*lost(connection)):
                for message in self._held:
                    message.requeue()
            with suppress(*lost(connection)):
                connection.release()
        self._held.clear()

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        with self._lock:
            connection = self._connection or self._connect()
            try:
                yield
            except lost(connection) as error:
                self._give_back()
                raise BrokerError(
                    f"{connection.as_uri()} does not answer while {doing} the wheel queue {self._queue.name} "
                    f"({error}); nothing is lost by the wheel, and it is tried again"
                ) from error
