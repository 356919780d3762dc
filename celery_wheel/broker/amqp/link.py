"""A connection to RabbitMQ for one purpose: opened when it is needed, kept alive, dropped after an error.

py-amqp serves one thread at a time, so every use is under ``lock``. No call waits longer than ``TIMEOUT_S`` for a
server that does not answer. ``generation`` counts connections: deliveries and confirms of a former one are void.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import amqp
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.broker.amqp.frames import FrameReader, frame_handler
from celery_wheel.broker.errors import CHECK_BROKER
from celery_wheel.errors import BrokerError

TIMEOUT_S = 5
#: Seconds; a server that receives nothing for so long delivers a consumer's messages to other consumers.
HEARTBEAT_S = 4

CONNECTION_ERRORS = (amqp.exceptions.ConnectionError, OSError, OperationalError, AttributeError)
#: Longest wait of one call for the rest of a record of TLS.
FRAME_S = 0.2

_REMEDY = f"nothing is lost, and the call is tried again; {CHECK_BROKER}"


class AmqpLink:
    """A connection and its lock; ``connect`` returns a new kombu connection, as the app's producers use it."""

    def __init__(self, connect: Callable[[], Any], max_body: int = 2**63) -> None:
        self._connect = connect
        self._max_body = max_body  #: bytes of the largest body that is read as a whole
        self._connection: Any = None
        self._transport: Any = None
        self._frames: Any = None
        self.lock = threading.RLock()
        self.generation = 0
        self.blocked = False

    @property
    def connection(self) -> Any:
        """The amqp connection, opened if there is none. The caller holds the lock."""
        if self._connection is None:
            kombu = self._connect()
            kombu.heartbeat = HEARTBEAT_S
            servers = max(1, len(kombu.alt or ()))
            kombu.connect_timeout = TIMEOUT_S / servers
            options = {
                "read_timeout": TIMEOUT_S,
                "write_timeout": TIMEOUT_S,
                "frame_handler": partial(frame_handler, self._max_body),
            }
            kombu.transport_options = {**(kombu.transport_options or {}), **options}
            kombu.transport_options.pop("confirm_publish", None)  # it waits for each message; see ``publisher``
            kombu.ensure_connection(max_retries=servers, interval_start=0, timeout=TIMEOUT_S)
            self._connection = connection = kombu.connection
            connection.drain_events = _bounded_drain_events(connection)
            self._transport = connection.transport
            self._frames = FrameReader(self._transport)
            self._transport.read_frame = self._frames.read_frame
            connection.on_blocked = lambda _reason: setattr(self, "blocked", True)
            connection.on_unblocked = lambda: setattr(self, "blocked", False)
            self.generation += 1
            self.blocked = False
        return self._connection

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        """Hold the lock; an error of the connection drops it and is raised as a BrokerError."""
        with self.lock:
            try:
                yield
            except BrokerError:  # not of the connection, though it is an OSError
                raise
            except CONNECTION_ERRORS as error:
                self.drop()
                raise BrokerError(
                    f"{self.describe()} was lost or cannot be reached while {doing} ({error}); {_REMEDY}"
                ) from error
            except amqp.exceptions.ChannelError as error:
                self.drop()
                raise BrokerError(f"{self.describe()} refused {doing} ({error}); {_REMEDY}") from error

    def write(self, data: bytes) -> None:
        """Write frames on the connection, which must be up; the server counts them as a heartbeat."""
        self._transport.write(data)
        self._connection.bytes_sent += 1

    def describe(self) -> str:
        return f"RabbitMQ {maybe_sanitize_url(self._connect().as_uri())}"

    def drain(self, seconds: float) -> bool:
        """Handle the next event if it begins to arrive within the time; returns whether it is complete."""
        connection = self.connection
        while True:
            while (frame := self._frames.take()) is not None:
                if connection.on_inbound_frame(frame):
                    return True
            sock = connection.sock
            decrypted = hasattr(sock, "pending") and sock.pending()  # TLS: these bytes are no longer in the socket
            if not decrypted and not _poll_of(sock).poll(seconds * 1_000):
                return False
            try:
                with connection.transport.having_timeout(FRAME_S):
                    self._frames.read()
            except TimeoutError:
                return False  # TLS: the rest of a record is missing
            seconds = 0  # no wait for the rest of a frame, however long the server is silent

    def incoming(self) -> select.poll:
        """Return a poll that ends when bytes arrive or any thread calls ``drop``; it is polled without the lock."""
        return _poll_of(self.connection.sock)

    def keep_alive(self, reads: bool) -> None:
        """Send a heartbeat if the connection is up and not in use; a use keeps it alive by itself.

        With ``reads`` it handles the events that have arrived, which may fill the memory with deliveries.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self._connection is None:
                return
            if not reads:
                self._connection.send_heartbeat()
                return
            while self.drain(0):
                pass
            self._connection.heartbeat_tick()
        except (*CONNECTION_ERRORS, amqp.exceptions.ChannelError):
            self.drop()  # the next use raises the error
        finally:
            self.lock.release()

    def drop(self) -> None:
        """End the connection without a call to the server, which returns unacknowledged messages to their queue."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*CONNECTION_ERRORS):
                connection.collect()


def _poll_of(sock: Any) -> select.poll:
    if sock is None:
        raise amqp.exceptions.RecoverableConnectionError("the connection has ended")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll


def _bounded_drain_events(connection: Any) -> Callable[..., None]:
    """Return a drain_events for py-amqp, whose calls all wait by it, that does not count heartbeats as an answer.

    A server under an alarm reads nothing more from a connection that has published, but still sends heartbeats.
    """

    def drain_events(timeout: float | None = None) -> None:
        deadline = time.monotonic() + (TIMEOUT_S if timeout is None else timeout)
        while not connection.blocking_read(max(0.001, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise TimeoutError("no answer")

    return drain_events
