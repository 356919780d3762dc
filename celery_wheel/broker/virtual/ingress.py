"""The wheel queue through a kombu consumer: deliveries wait here, unacknowledged, until the store has them.

::

    look      while nothing is held, the server may delay its answer until a message arrives, if it can do so
    gather    then all messages that are there are read, for ``GATHER_S`` at most, ``PREFETCH`` at most
    trim      messages are acknowledged one by one

The rest is ``broker.deliveries``. When this process is killed, a transport with a visibility time-out delivers its
messages again, and a transport that pops messages has lost them. So only ``PREFETCH`` are under way at a time.
docs/transports.md has the list. Where a time-out ends while messages are held here, they are delivered twice, and the
store knows them by their ids.
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
from celery_wheel.broker.virtual.trouble import lost, told
from celery_wheel.errors import BrokerError

logger = logging.getLogger(__name__)

PREFETCH = 200
CONNECT_S = 5
#: A channel with one of these attributes is of a transport whose server delivers unacknowledged messages again.
TIME_OUTS = ("visibility_timeout", "peek_lock_seconds", "ack_deadline_seconds")
#: A look into an empty queue takes at least this long.
LOOK_S = 0.01
#: How long a server may delay its answer, where the option ``wait_time_seconds`` allows it (SQS: 10 by default, in
#: whole seconds, and each look costs money). Meanwhile the inbox is not read and the shard cannot be given up.
SERVER_WAIT_S = 1
#: Where messages arrive one by one, gathering ends after this time: the first of them may be due at once.
GATHER_S = 0.25


class Ingress(Deliveries):
    def __init__(self, connect: Callable[[], Any], queue: Queue) -> None:
        super().__init__(threading.RLock())
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
            if not self._held:
                raise
            # Held messages may not return to the queue any more, so they are peeked and stored first.
            logger.info("%s: no more can be read now (%s)", self._queue.name, told(error))
        return len(self._held) >= min(max_count, PREFETCH)

    def _acknowledge(self, count: int) -> None:
        for message in islice(self._held, count):
            message.ack()

    def _gather(self, count: int) -> None:
        """Append to ``_held`` the deliveries that are there."""
        until_s = None
        self._let_wait(0 if self._held else SERVER_WAIT_S)
        with suppress(TimeoutError):
            while len(self._held) < count and (until_s is None or time.monotonic() < until_s):
                self._connection.drain_events(timeout=LOOK_S)
                if until_s is None:
                    until_s = time.monotonic() + GATHER_S
                    self._let_wait(0)

    def _let_wait(self, seconds: int) -> None:
        """Set how long the server may delay its next answer; all transports of kombu have one name for it.

        It is 0 while messages are held: SQS would hide returned messages for as long.
        """
        if self._server_wait_s:
            self._channel.wait_time_seconds = min(seconds, self._server_wait_s)

    def _consume(self) -> None:
        self._connection = connection = self._connect()
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        self._channel = channel = connection.channel()
        self._server_wait_s = getattr(channel, "wait_time_seconds", 0)
        if any(hasattr(channel, name) for name in TIME_OUTS):
            # When it closes the channel, kombu would otherwise try one by one to return messages that could not be
            # returned (their time-out has ended, or the server is away), and write all of them to a file in /tmp.
            channel.do_restore = False
        consumer: Any = Consumer(
            channel,
            [self._queue],
            on_message=self._held.append,
            on_decode_error=lambda message, error: self._held.append(message),  # the reader finds the reason
            prefetch_count=PREFETCH,
        )  # type: ignore[no-untyped-call]
        consumer.consume()

    def _give_back(self) -> None:
        """Return held messages to the queue at once, as far as the transport can, and end the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self._requeue(lost(connection))
                connection.release()
            except Exception as error:
                logger.info("%s is left without a word (%s)", connection.as_uri(), told(error))

    def _requeue(self, away: tuple[type[BaseException], ...]) -> None:
        for message in self._held:
            try:
                message.requeue()
            except away:
                raise
            except Exception as error:  # such as a time-out that has ended: the message is in the queue already
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
                self._end()
                raise BrokerError(
                    f"{connection.as_uri()} does not answer while {doing} the wheel queue {self._queue.name} "
                    f"({told(error)}); nothing is lost by the wheel, and it is tried again"
                ) from error
