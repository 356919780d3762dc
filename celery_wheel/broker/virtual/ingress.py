"""The wheel queue through a kombu consumer: deliveries wait here, unacknowledged, until the store has them.

::

    look      nothing is held: the server may hold the look until something comes, if the transport can do that
    gather    … and then whatever is there without waiting, for ``GATHER_S`` at most, ``PREFETCH`` at most
    peek      what is held, again and again
    trim      acknowledged one by one

What becomes of them when this process is killed is the transport's affair: one with a visibility time-out gives them
back, one that pops them has lost them. So only ``PREFETCH`` are under way at a time. docs/transports.md has the list.
A time-out that runs out while they are held here delivers them twice, which the store notices by their ids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from kombu.entity import Queue
from kombu.messaging import Consumer

from celery_wheel.broker.virtual.trouble import lost, told
from celery_wheel.errors import BrokerError

logger = logging.getLogger(__name__)

PREFETCH = 200
CONNECT_S = 5
#: A channel that has one of these is of a transport whose server gives back what nobody acknowledged.
TIME_OUTS = ("visibility_timeout", "peek_lock_seconds", "ack_deadline_seconds")
#: A look into the queue takes at least so long when there is nothing.
LOOK_S = 0.01
#: How long a server may hold a look, where the option ``wait_time_seconds`` allows it (SQS: 10 by default, in whole
#: seconds, and each look costs money). While it does, neither the inbox is read nor the shard given up.
SERVER_WAIT_S = 1
#: What comes one by one is not waited for until ``PREFETCH`` are there: the first of them may be due at once.
GATHER_S = 0.25


class Token(NamedTuple):
    generation: int
    size: int  #: how many deliveries


class Ingress:
    def __init__(self, connect: Callable[[], Any], queue: Queue) -> None:
        self._connect = connect
        self._queue = queue
        self._lock = threading.RLock()
        self._connection: Any = None
        self._channel: Any = None
        self._server_wait_s = 0  #: the transport's own option
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
            try:
                self._gather(min(max_count, PREFETCH))
            except Exception as error:
                if not self._held:
                    raise
                # Who knows whether they could be given back: first they go to the store.
                logger.info("%s: no more can be read now (%s)", self._queue.name, told(error))
        found: list[Any] = []
        weight = 0
        for message in self._held:
            weight += len(message.body or "")
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

    def _gather(self, count: int) -> None:
        """Take more deliveries into ``_held``, as far as they are there."""
        until_s = None
        self._let_wait(0 if self._held else SERVER_WAIT_S)
        with suppress(TimeoutError):
            while len(self._held) < count and (until_s is None or time.monotonic() < until_s):
                self._connection.drain_events(timeout=LOOK_S)
                if until_s is None:
                    until_s = time.monotonic() + GATHER_S
                    self._let_wait(0)

    def _let_wait(self, seconds: int) -> None:
        """How long the server may hold the next look; all transports of kombu that can do it call it the same.

        Not at all while messages are held: SQS would hide for as long what is given back.
        """
        if self._server_wait_s:
            self._channel.wait_time_seconds = min(seconds, self._server_wait_s)

    def _consume(self) -> None:
        self._connection = connection = self._connect()
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        self._channel = channel = connection.channel()
        self._server_wait_s = getattr(channel, "wait_time_seconds", 0)
        if any(hasattr(channel, name) for name in TIME_OUTS):
            # kombu, closing the channel, would try again what could not be given back (its time-out has run out, or the
            # server is away), one by one, and write all of it to a file in /tmp.
            channel.do_restore = False
        consumer: Any = Consumer(
            channel,
            [self._queue],
            on_message=self._held.append,
            on_decode_error=lambda message, error: self._held.append(message),  # its reader will say why
            prefetch_count=PREFETCH,
        )  # type: ignore[no-untyped-call]
        consumer.consume()
        self._generation += 1

    def _give_back(self) -> None:
        """As far as that is possible, to be had by others at once; raises nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self._requeue(lost(connection))
                connection.release()
            except Exception as error:
                logger.info("%s is left without a word (%s)", connection.as_uri(), told(error))
        self._held.clear()

    def _requeue(self, away: tuple[type[BaseException], ...]) -> None:
        for message in self._held:
            try:
                message.requeue()
            except away:
                raise
            except Exception as error:  # such as a time-out that has run out: it is in the queue already
                logger.debug("a message does not go back (%s)", told(error))

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        with self._lock:
            connection = self._connection or self._connect()
            try:
                yield
            except BrokerError:
                raise
            except Exception as error:  # whatever the transport calls it
                self._give_back()
                raise BrokerError(
                    f"{connection.as_uri()} does not answer while {doing} the wheel queue {self._queue.name} "
                    f"({told(error)}); nothing is lost by the wheel, and it is tried again"
                ) from error
