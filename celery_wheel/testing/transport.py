"""A kombu transport in memory, one for each test: it passes all messages of the app to ``Sink``.

Exchanges, bindings and routing keys are kombu's own virtual ones, so a message finds its queues as on Redis. Nothing is
read from the transport: ``Sink`` has a message as soon as it is published, converted by JSON as on the way to a worker.
"""

from __future__ import annotations

from queue import Empty
from typing import Any, Protocol

from kombu.connection import Connection
from kombu.transport import base, virtual
from kombu.utils import json

_loads: Any = json.loads
_dumps: Any = json.dumps
_connection: Any = Connection
_state: Any = virtual.BrokerState


class Sink(Protocol):
    """Receives published messages; ``raw`` is a message as a broker would store it."""

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        """Receive a message for a queue."""

    def broadcast(self, channel: Any, exchange: str, raw: dict[str, Any]) -> None:
        """Receive a message for all listeners of a fanout exchange."""


def connection_to(sink: Sink) -> Any:
    """Return a connection whose transport belongs to this test."""
    channel = type("Channel", (_Channel,), {"sink": sink})
    transport = type("Transport", (_Transport,), {"Channel": channel, "shared": _state()})
    return _connection("wheel.testing", transport=transport)


class _Transport(virtual.Transport):
    shared: Any
    driver_type = driver_name = "memory"
    implements = base.Transport.implements

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)  # type: ignore[no-untyped-call]
        self.state = self.shared

    def driver_version(self) -> str:
        return "N/A"

    def drain_events(self, connection: Any, timeout: Any = None, **kwargs: Any) -> None:
        """Raise TimeoutError at once, so that ``inspect`` does not wait for workers."""
        raise TimeoutError("no worker answers in a test with the fixture 'wheel'")


class _Channel(virtual.Channel):
    sink: Sink
    do_restore = False
    supports_fanout = True

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.sink.deliver(self, queue, _loads(_dumps(message)))

    def _put_fanout(self, exchange: str, message: Any, routing_key: str | None, **options: Any) -> None:
        self.sink.broadcast(self, exchange, _loads(_dumps(message)))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return True

    def _queue_bind(self, *binding: Any) -> None:
        """Do nothing: kombu's own state has the binding."""

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty

    def _size(self, queue: str) -> int:
        return 0

    def _purge(self, queue: str) -> int:
        return 0
