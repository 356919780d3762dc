"""The broker edge for any kombu transport: what ``engine.port.Broker`` asks, where the broker keeps no hand.

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as sent when the
transport's ``publish`` has returned. What has no route is reported, never dropped.

Non-promises: those that the transport does not make. Most of kombu's virtual transports take a message off the server
when they deliver it, so a scheduler that is killed between a delivery and its commit loses at most ``PREFETCH``
messages; there is no confirm; and what was in flight when a scheduler died may be there twice, the second time with
the header ``wheel_again``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from kombu.entity import Exchange
from kombu.messaging import Producer
from kombu.utils import json

from celery_wheel.broker.envelope import decode, message_of, readable
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.virtual.ingress import CONNECT_S, Ingress, Token, lost
from celery_wheel.engine.port import BrokerHand, Peeked, Published, Since, Verdict
from celery_wheel.errors import BrokerError, Interrupted
from celery_wheel.store.model import Message, Position, Row, Unreadable

AGAIN = "wheel_again"

#: Of one delivery, or the row has its own.
_NOT_KEPT = ("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration")

#: A message over which the transport fails so often, by no error of its connection, is the reason for it.
TRIES = 5

dumps: Any = json.dumps
loads: Any = json.loads


class KombuBroker:
    """Implements ``Broker`` through kombu.

    Args:
        app: whose queues say how exchanges and queues are declared.
        max_message_bytes, keep_eta: as ``envelope.decode`` takes them.
    """

    keeps_hand = False

    def __init__(self, app: Any, *, namespace: str, max_message_bytes: int, keep_eta: bool = False) -> None:
        self._app = app
        self._connect: Callable[[], Any] = app.connection_for_write
        self._namespace = namespace
        self._max_message_bytes = max_message_bytes
        self._keep_eta = keep_eta
        self._ingress: dict[int, Ingress] = {}
        self._lock = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[tuple[str, str]] = set()
        self._odd = (-1, 0)  #: the row over which the transport failed last, and how often running

    # -- the shard ---------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerHand]:
        if shard not in self._ingress:
            self._ingress[shard] = Ingress(self._connect, wheel_queue(self._namespace, shard))
        self._ingress[shard].adopt(epoch)
        return {}

    def set_hand(self, shard: int, epoch: int, lane: int, hand: Position) -> None:
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
        with self._lock:
            self._drop()

    # -- the wheel queue ---------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        found, token, more = self._ingress[shard].peek(max_count, max_bytes)
        return Peeked([self._read(message) for message in found], token, more)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        return self._ingress[shard].trim(cast(Token, token))

    def decode(self, raw: bytes) -> Message | Unreadable:
        return decode(raw, self._max_message_bytes, self._keep_eta)

    def _read(self, message: Any) -> Message | Unreadable:
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        kept = {"content_type": message.content_type, "content_encoding": message.content_encoding}
        kept |= {name: value for name, value in (message.properties or {}).items() if name not in _NOT_KEPT}

        def read() -> Message:
            if len(body) > self._max_message_bytes:
                raise ValueError(f"message must be at most {self._max_message_bytes:,} bytes, got {len(body):,}")
            return message_of(dict(message.headers or {}), dumps(kept).encode(), body, self._keep_eta, dumps)

        return readable(read, lambda: dumps({"headers": message.headers, "properties": kept, "body": body}).encode())

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
        again: bool = False,
    ) -> Published:
        published, confirmed, tried = Published(Verdict.PUBLISHED), set[int](), False
        with self._lock:
            connection = self._connection or self._connect()
            try:
                self._open()
                producer = Producer(self._channel, auto_declare=False)  # type: ignore[no-untyped-call]
                for row in rows:
                    tried = True
                    reason = self._publish_or_fail(producer, row, now_ms, again, confirmed)
                    if reason:
                        published.failed[row.id] = reason
                    else:
                        confirmed.add(row.id)
            except Interrupted:
                raise
            except lost(connection) as error:
                self._drop()
                text = f"{connection.as_uri()} does not take messages ({error}); it is tried again"
                # Whose answer was lost may be there all the same.
                raise (Interrupted(text, confirmed) if tried else BrokerError(text)) from error
        return published

    def _publish_or_fail(self, producer: Any, row: Row, now_ms: int, again: bool, confirmed: set[int]) -> str:
        """As ``_publish``; what a transport raises that its maker did not foresee is no end of the scheduler."""
        try:
            return self._publish(producer, row, now_ms, again)
        except lost(self._connection):
            raise
        except Exception as error:
            tries = self._odd[1] + 1 if self._odd[0] == row.id else 1
            self._odd = row.id, tries
            text = f"this transport cannot send it: {type(error).__name__}: {error}"
            if tries >= TRIES:
                return text
            self._drop()
            raise Interrupted(f"{text}; task {row.task}, try {tries} of {TRIES}", confirmed) from error

    def _publish(self, producer: Any, row: Row, now_ms: int, again: bool) -> str:
        """Returns why it cannot be sent, or nothing."""
        try:
            headers, properties = loads(row.headers), loads(row.properties)
            if again:
                headers[AGAIN] = True
            if not self._has_route(row):
                return f"no queue is bound to exchange {row.exchange!r} with routing key {row.routing_key!r}"
            if row.expires_ms is not None:
                properties["expiration"] = max(0, row.expires_ms - now_ms) / 1000
            producer.publish(
                row.body,
                exchange=Exchange(row.exchange, row.exchange_type),  # type: ignore[no-untyped-call]
                routing_key=row.routing_key,
                headers=headers,
                priority=row.priority or 0,
                **properties,
            )
        except (TypeError, ValueError) as error:
            return f"it cannot be sent by this transport: {error}"
        return ""

    def _has_route(self, row: Row) -> bool:
        """Declare what the app knows of the destination, once a connection: a virtual transport keeps no exchanges, and
        would take a topic for a direct one, and drop the message."""
        place = row.exchange, row.routing_key
        if place not in self._declared:
            for queue in self._app.amqp.queues.values():
                bound = queue.exchange is not None and queue.exchange.name == row.exchange
                if bound or (not row.exchange and queue.name == row.routing_key):
                    queue(self._channel).declare()
            self._declared.add(place)
        channel = self._channel
        if not row.exchange or not hasattr(channel, "get_table"):
            return True
        if row.exchange_type == "fanout" and channel.supports_fanout:
            return True
        try:
            table = channel.get_table(row.exchange)
        except KeyError:
            return False
        return bool(channel.typeof(row.exchange).lookup(table, row.exchange, row.routing_key, None))

    def _open(self) -> None:
        if self._connection is None:
            connection = self._connect()
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
            self._connection, self._channel = connection, connection.channel()
            self._declared.clear()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()
