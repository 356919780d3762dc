"""A kombu transport in memory, one a test: all that the app publishes ends in ``Post``.

Exchanges, bindings and routing keys are kombu's own virtual ones, so a message finds its queues as on Redis. Nothing is
ever read from it: ``Post`` has a message as soon as it is published, as JSON would bring it to the other side.
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


class Post(Protocol):
    """Where published messages go: ``raw`` is what a broker would hold."""

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        """A message for a queue."""

    def broadcast(self, channel: Any, exchange: str, raw: dict[str, Any]) -> None:
        """A message for all that listen at a fanout exchange."""


def connection_to(post: Post) -> Any:
    """A connection whose transport is of this test alone."""
    transport = type("Transport", (_Transport,), {"Channel": _channel_of(post), "shared": _state()})
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
        """Nothing will come, however long one waits: so ``inspect`` is answered by nobody, at once."""
        raise TimeoutError("no worker answers in a test with the fixture 'wheel'")


class _Channel(virtual.Channel):
    post: Post
    do_restore = False
    supports_fanout = True

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        self.post.deliver(self, queue, _loads(_dumps(message)))

    def _put_fanout(self, exchange: str, message: Any, routing_key: str | None, **options: Any) -> None:
        self.post.broadcast(self, exchange, _loads(_dumps(message)))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return True

    def _queue_bind(self, *binding: Any) -> None:
        """Kept by kombu's own state alone."""

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise Empty

    def _size(self, queue: str) -> int:
        return 0

    def _purge(self, queue: str) -> int:
        return 0


def _channel_of(post: Post) -> type:
    return type("Channel", (_Channel,), {"post": post})
