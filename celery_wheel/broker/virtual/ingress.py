"""The wheel queue through a kombu consumer: deliveries wait here, unacknowledged, until the store has them.

::

    poll      while no message is unacknowledged, the server may delay its answer until one arrives, if it can
    gather    then all messages in the queue are read, for ``GATHER_S`` at most, ``PREFETCH`` at most
    trim      messages are acknowledged one by one

The rest is ``broker.deliveries``. When this process is killed, a transport with a visibility time-out delivers its
messages again, and a transport that pops messages has lost them; so at most ``PREFETCH`` are unacknowledged at a time.
docs/transports.md has the list. A time-out that ends before the acknowledgement causes a second delivery, which the
store recognises by its id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from kombu.entity import Queue
from kombu.messaging import Consumer

from celery_wheel.broker.deliveries import Deliveries
from celery_wheel.broker.virtual.errors import connection_errors, format_error
from celery_wheel.errors import BrokerError

logger = logging.getLogger(__name__)

PREFETCH = 200
CONNECT_S = 5
#: A channel with one of these attributes is of a transport whose server delivers unacknowledged messages again.
TIME_OUTS = ("visibility_timeout", "peek_lock_seconds", "ack_deadline_seconds")
#: A poll of an empty queue takes at least this long.
POLL_S = 0.01
#: Longest time for which a server may delay its answer, where the option ``wait_time_seconds`` allows it (SQS: 10 by
#: default, in whole seconds, and each poll costs money). Meanwhile the inbox is not read and no thread can leave the
#: shard.
SERVER_WAIT_S = 1
#: Where messages arrive one by one, gathering ends after this time: the first of them may be due at once.
GATHER_S = 0.25


def ensure_connection(connection: Any) -> None:
    """Connect, or raise the transport's error within ``CONNECT_S`` a try."""
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)


class KombuIngress(Deliveries):
    """One shard's deliveries on a connection of their own."""

    def __init__(self, shard: int, connect: Callable[[], Any], queue: Queue) -> None:
        super().__init__(shard, threading.RLock())
        self._connect = connect
        self._queue = queue
        self._connection: Any = None
        self._channel: Any = None
        self._server_wait_s = 0  #: the transport's own option

    @property
    def _is_up(self) -> bool:
        return self._connection is not None

    def _read(self, max_count: int, max_bytes: int) -> bool:
        try:
            self._gather(min(max_count, PREFETCH))
        except Exception as error:
            if not self._unacknowledged:
                raise
            # The server may never deliver these messages again, so they are peeked and stored first.
            logger.info("%s cannot be read further now (%s)", self._queue.name, format_error(error))
        return len(self._unacknowledged) >= min(max_count, PREFETCH)

    def _acknowledge(self, count: int) -> None:
        for message in islice(self._unacknowledged, count):
            message.ack()

    def _gather(self, count: int) -> None:
        until_s = None
        self._limit_server_wait(0 if self._unacknowledged else SERVER_WAIT_S)
        with suppress(TimeoutError):
            while len(self._unacknowledged) < count and (until_s is None or time.monotonic() < until_s):
                self._connection.drain_events(timeout=POLL_S)
                if until_s is None:
                    until_s = time.monotonic() + GATHER_S
                    self._limit_server_wait(0)

    def _limit_server_wait(self, seconds: int) -> None:
        """Set how long the server may delay its next answer; all transports of kombu have one name for it.

        The limit is 0 while messages are unacknowledged: SQS would hide returned messages for as long.
        """
        if self._server_wait_s:
            self._channel.wait_time_seconds = min(seconds, self._server_wait_s)

    def _consume(self) -> None:
        self._connection = connection = self._connect()
        ensure_connection(connection)
        self._channel = channel = connection.channel()
        self._server_wait_s = getattr(channel, "wait_time_seconds", 0)
        if any(hasattr(channel, name) for name in TIME_OUTS):
            # Otherwise kombu, as it closes the channel, tries to return each message that could not be returned (its
            # time-out has ended, or the server is away), and writes all of them to a file in /tmp.
            channel.do_restore = False
        consumer: Any = Consumer(
            channel,
            [self._queue],
            on_message=self._unacknowledged.append,
            on_decode_error=lambda message, error: self._unacknowledged.append(message),  # the reader finds the reason
            prefetch_count=PREFETCH,
        )  # type: ignore[no-untyped-call]
        consumer.consume()

    def _disconnect(self) -> None:
        """Return unacknowledged messages to the queue at once, as far as the transport can; end the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self._requeue(connection_errors(connection))
                connection.release()
            except Exception as error:
                logger.info("%s was disconnected without a reply (%s)", connection.as_uri(), format_error(error))

    def _requeue(self, disconnected: tuple[type[BaseException], ...]) -> None:
        for message in self._unacknowledged:
            try:
                message.requeue()
            except disconnected:
                raise
            except Exception as error:  # such as a time-out that has ended: the message is in the queue already
                logger.debug("a message cannot be requeued (%s)", format_error(error))

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        with self._lock:
            connection = self._connection or self._connect()
            try:
                yield
            except BrokerError:
                raise
            except Exception as error:  # each transport has its own classes
                self._end()
                raise BrokerError(
                    f"{connection.as_uri()} does not answer while {doing} the wheel queue {self._queue.name} "
                    f"({format_error(error)}); the wheel loses nothing and tries again"
                ) from error
