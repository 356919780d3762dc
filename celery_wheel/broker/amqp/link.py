"""One connection to RabbitMQ, for one purpose: made when it is needed, kept alive, thrown away when it is in doubt.

py-amqp is for one thread at a time, so every use is under ``lock``. Nothing here waits longer than ``TIMEOUT_S`` for a
server that does not answer: sockets time out, what is waited for by hand has a deadline, and of several servers in the
broker URL each gets its share of the time.

A connection that died is made anew by the next use; what was unacknowledged or unconfirmed on it is then in doubt, and
``generation`` tells.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
from amqp.method_framing import frame_handler
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.errors import BrokerError

TIMEOUT_S = 5
#: Seconds; a server that hears nothing for so long gives a consumer's messages to others.
HEARTBEAT_S = 4

LOST = (amqp.exceptions.ConnectionError, OSError, OperationalError, AttributeError)
#: Part of a frame has come: the rest is waited for so long, and then again when there is more.
FRAME_S = 0.2

_HEADER_FRAME = 2
#: In it: class, weight and the body's size, before the properties.
_BEFORE_PROPERTIES = 12
#: What py-amqp raises over properties that it cannot read.
_UNREADABLE = (ValueError, OverflowError, OSError, struct.error, amqp.exceptions.FrameSyntaxError)
#: The header under which their bytes are found then.
UNREADABLE = "unreadable"

_REMEDY = "nothing is lost, and it is tried again; check that the server runs, and the broker URL"


class Link:
    """``connect`` returns a new kombu connection, as the app would make it."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._connection: Any = None
        self.lock = threading.RLock()
        self.generation = 0
        self.blocked = False

    @property
    def connection(self) -> Any:
        """The amqp connection, made if there is none. The caller holds the lock."""
        if self._connection is None:
            kombu = self._connect()
            kombu.heartbeat = HEARTBEAT_S
            servers = max(1, len(kombu.alt or ()))
            kombu.connect_timeout = TIMEOUT_S / servers
            options = {"read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S, "frame_handler": _lenient}
            kombu.transport_options = {**(kombu.transport_options or {}), **options}
            kombu.transport_options.pop("confirm_publish", None)  # for one message a time; see ``window``
            kombu.ensure_connection(max_retries=servers, interval_start=0, timeout=TIMEOUT_S)
            made = kombu.connection
            made.drain_events = _bounded(made)
            made.on_blocked, made.on_unblocked = self._set_blocked, self._set_unblocked
            self._connection = made
            self.generation += 1
            self.blocked = False
        return self._connection

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def _set_blocked(self, _reason: object) -> None:
        self.blocked = True

    def _set_unblocked(self) -> None:
        self.blocked = False

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        """The lock; what goes wrong with the connection ends it, and is a BrokerError that says so."""
        with self.lock:
            try:
                yield
            except LOST as error:
                self.drop()
                raise BrokerError(
                    f"{self.describe()} was lost or cannot be reached while {doing} ({error}); {_REMEDY}"
                ) from error
            except amqp.exceptions.ChannelError as error:
                self.drop()
                raise BrokerError(f"{self.describe()} refused {doing} ({error}); {_REMEDY}") from error

    def describe(self) -> str:
        return f"RabbitMQ {maybe_sanitize_url(self._connect().as_uri())}"

    def drain(self, seconds: float) -> bool:
        """Handle one event, if one comes within the time; returns whether one did."""
        connection = self.connection
        sock = connection.sock
        if sock is None:
            raise amqp.exceptions.RecoverableConnectionError("the connection has ended")
        if not (hasattr(sock, "pending") and sock.pending()):  # TLS: what was decrypted is not in the socket any more
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            if not poll.poll(seconds * 1_000):
                return False
        try:
            # Never 0: py-amqp would spin until the rest of a frame has come, however long the server is silent.
            connection.drain_events(timeout=FRAME_S)
        except TimeoutError:
            return False
        return True

    def keep_alive(self, reads: bool) -> None:
        """Heartbeats, if the connection is up and nobody is using it: who uses it keeps it alive.

        ``reads``: whatever has come is handled, too. Not where that would fill the memory with deliveries.
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
        except (*LOST, amqp.exceptions.ChannelError):
            self.drop()  # the next use says so
        finally:
            self.lock.release()

    def drop(self) -> None:
        """End the connection without asking the server; it gives back what was not acknowledged."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*LOST):
                connection.collect()


def _bounded(connection: Any) -> Callable[..., None]:
    """py-amqp's drain_events, on which all its calls wait for their answers, for which heartbeats are no answer.

    A server under an alarm reads nothing more from who has published, and sends heartbeats as ever.
    """

    def drain_events(timeout: float | None = None) -> None:
        deadline = time.monotonic() + (TIMEOUT_S if timeout is None else timeout)
        while not connection.blocking_read(max(0.001, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise TimeoutError("no answer")

    return drain_events


def _lenient(connection: Any, callback: Any) -> Callable[[Any], Any]:
    """py-amqp's frame handler, for which a message whose properties it cannot read is a message as well.

    Else one such message, sent by whoever may, would end every connection that it is delivered to.
    """
    handle = frame_handler(connection, callback)

    def on_frame(frame: tuple[int, int, bytes]) -> Any:
        kind, channel, content = frame
        if kind != _HEADER_FRAME:
            return handle(frame)
        try:
            return handle(frame)
        except _UNREADABLE:
            rest = bytes(content[_BEFORE_PROPERTIES:])
            found = amqp.Message(b"", application_headers={UNREADABLE: rest})._serialize_properties()
            return handle((kind, channel, bytes(content[:_BEFORE_PROPERTIES]) + found))

    return on_frame
