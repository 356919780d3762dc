"""One connection to RabbitMQ, for one purpose: made when it is needed, kept alive, thrown away when it is in doubt.

py-amqp is for one thread at a time, so every use is under ``lock``. Nothing here waits longer than ``TIMEOUT_S`` for a
server that does not answer: sockets time out, and what is waited for by hand has a deadline.

A connection that died is made anew by the next use; what was unacknowledged or unconfirmed on it is then in doubt, and
``generation`` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import amqp
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.errors import BrokerError

TIMEOUT_S = 5
#: Seconds; a server that hears nothing for so long gives a consumer's messages to others.
HEARTBEAT_S = 4

LOST = (amqp.exceptions.ConnectionError, OSError, OperationalError, AttributeError)
_REMEDY = "nothing is lost, and it is tried again; check that the server runs, and the broker URL"


class Link:
    """``connect`` returns a new kombu connection, as the app would make it."""

    def __init__(self, connect: Callable[[], Any], purpose: str) -> None:
        self._connect = connect
        self._purpose = purpose
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
            kombu.connect_timeout = TIMEOUT_S
            options = {"read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S}
            kombu.transport_options = {**(kombu.transport_options or {}), **options}
            kombu.transport_options.pop("confirm_publish", None)  # for one message a time; see ``window``
            kombu.ensure_connection(max_retries=max(1, len(kombu.alt or ())), interval_start=0, timeout=TIMEOUT_S)
            made = kombu.connection
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
        try:
            self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            return False
        return True

    def keep_alive(self) -> None:
        """Heartbeats both ways, if the connection is up and nobody is using it: who uses it keeps it alive."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self._connection is not None:
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
