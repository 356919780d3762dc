"""The broker edge for any kombu transport: what ``engine.port.Broker`` asks, where the broker keeps no offset.

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as sent when the
transport's ``publish`` has returned. What has no route or is refused is reported, never dropped.

Non-promises: those that the transport does not make. Most of kombu's virtual transports take a message off the server
when they deliver it, so a scheduler that is killed between a delivery and its commit loses at most ``PREFETCH``
messages; there is no confirm; and what was in flight when a scheduler died may be there twice, the second time with
the header ``wheel_redelivered``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from kombu.compression import compress
from kombu.utils import json

from celery_wheel.broker.envelope import decode, message_of, readable
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.virtual.ingress import Ingress, Token
from celery_wheel.broker.virtual.outgoing import Outgoing
from celery_wheel.engine.port import BrokerOffset, Peeked, Published, Since
from celery_wheel.store.model import Message, Position, Row, Unreadable

#: Of one delivery, or the row has its own.
_NOT_KEPT = ("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration")

dumps: Any = json.dumps
pack: Any = compress


class KombuBroker:
    """Implements ``Broker`` through kombu.

    Args:
        app: whose queues say how exchanges and queues are declared.
        max_message_bytes, keep_eta: as ``envelope.decode`` takes them.
    """

    keeps_offset = False

    def __init__(self, app: Any, *, namespace: str, max_message_bytes: int, keep_eta: bool = False) -> None:
        self._connect: Callable[[], Any] = app.connection_for_write
        self._namespace = namespace
        self._max_message_bytes = max_message_bytes
        self._keep_eta = keep_eta
        self._ingress: dict[int, Ingress] = {}
        self._outgoing = Outgoing(app)

    # -- the shard ---------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        if shard not in self._ingress:
            self._ingress[shard] = Ingress(self._connect, wheel_queue(self._namespace, shard))
        self._ingress[shard].adopt(epoch)
        return {}

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        """Nothing: it keeps none."""

    def leave(self, shard: int, epoch: int) -> None:
        if shard in self._ingress:
            self._ingress[shard].leave(epoch)

    def now_ms(self) -> int | None:
        """No transport tells the time."""
        return None

    def close(self) -> None:
        for ingress in self._ingress.values():
            ingress.close()
        self._outgoing.close()

    # -- the wheel queue ---------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        found, token, more = self._ingress[shard].peek(max_count, max_bytes)
        return Peeked([self._read(message) for message in found], token, more)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        return self._ingress[shard].trim(cast(Token, token))

    def decode(self, raw: bytes) -> Message | Unreadable:
        return decode(raw, self._max_message_bytes, self._keep_eta)

    def _read(self, message: Any) -> Message | Unreadable:
        kept = {"content_type": message.content_type, "content_encoding": message.content_encoding}
        kept |= {name: value for name, value in (message.properties or {}).items() if name not in _NOT_KEPT}

        def read() -> Message:
            body, headers = _body(message), dict(message.headers or {})
            if len(body) > self._max_message_bytes:
                raise ValueError(f"message must be at most {self._max_message_bytes:,} bytes, got {len(body):,}")
            return message_of(headers, dumps(kept).encode(), body, self._keep_eta, dumps)

        raw = {"headers": message.headers, "properties": kept, "body": message.body}
        return readable(read, lambda: dumps(raw).encode())

    # -- dispatch ----------------------------------------------------------------------------------

    def publish(
        self,
        shard: int,
        epoch: int,
        lane: int,
        from_: Position,
        to: Position,
        rows: Sequence[Row],
        now_ms: int,
        since: Since | None = None,
        redelivered: bool = False,
    ) -> Published:
        return self._outgoing.publish(rows, now_ms, redelivered)


def _body(message: Any) -> bytes:
    """As its sender made it: kombu has unpacked it, and left the header that says how it was packed."""
    if message.errors:
        raise ValueError(f"body must be what its header 'compression' says: {message.errors[0][1]}")
    body = message.body.encode() if isinstance(message.body, str) else message.body
    if body is None:
        raise ValueError("message must have a body")
    how = (message.headers or {}).get("compression")
    return bytes(pack(body, how)[0] if how else body)
