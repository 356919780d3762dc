"""The broker edge for RabbitMQ: what ``engine.port.Broker`` asks, where the broker keeps no offset.

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as sent when RabbitMQ has
confirmed it, so it is in a queue, on disk if the queue is durable. What cannot be routed is reported, what a queue
refuses is reported, and neither is dropped.

Non-promises: RabbitMQ has no compare-and-set, so what was in flight when a scheduler or a connection died may be there
twice, the second time with the header ``wheel_redelivered``. A former holder that was suspended between its last look
at its lease and the write is not fenced.

Files: see the folder's header. All methods may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from celery_wheel.broker.amqp.ingress import Ingress, Token
from celery_wheel.broker.amqp.link import Link
from celery_wheel.broker.amqp.message import decode as decode_amqp
from celery_wheel.broker.amqp.window import Window
from celery_wheel.broker.envelope import decode
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.engine.port import BrokerOffset, Peeked, Published, Since, Verdict
from celery_wheel.store.model import Message, Position, Row, Unreadable


class AmqpBroker:
    """Implements ``Broker`` for RabbitMQ.

    Args:
        connect: makes a kombu connection, as the app's producers have it.
        max_message_bytes, keep_eta: as ``envelope.decode`` takes them.
    """

    keeps_offset = False

    def __init__(
        self, connect: Callable[[], Any], *, namespace: str, max_message_bytes: int, keep_eta: bool = False
    ) -> None:
        self._namespace = namespace
        self._max_message_bytes = max_message_bytes
        self._keep_eta = keep_eta
        self._connect = connect
        self._publishing = Link(connect)
        self._window = Window(self._publishing)
        self._left: dict[int, int] = {}  #: shard → the last epoch that ended here
        self._ingress: dict[int, Ingress] = {}

    # -- the shard ---------------------------------------------------------------------------------

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        ingress = self._ingress.get(shard)
        if ingress is None:
            ingress = self._ingress[shard] = Ingress(Link(self._connect), wheel_queue(self._namespace, shard))
        ingress.adopt(epoch)
        return {}

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        """Nothing: it keeps none."""

    def leave(self, shard: int, epoch: int) -> None:
        self._left[shard] = max(epoch, self._left.get(shard, epoch))
        if shard in self._ingress:
            self._ingress[shard].leave(epoch)

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
        if not rows:
            return Published(Verdict.PUBLISHED)
        return self._window.publish(rows, now_ms, redelivered, lambda: self._left.get(shard, -1) >= epoch)

    # -- the wheel queue ---------------------------------------------------------------------------

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        found, token, more = self._ingress[shard].peek(max_count, max_bytes)
        arrivals = [decode_amqp(message, self._max_message_bytes, self._keep_eta) for message in found]
        return Peeked(arrivals, token, more)

    def trim(self, shard: int, epoch: int, token: object) -> bool:
        return self._ingress[shard].trim(cast(Token, token))

    def decode(self, raw: bytes) -> Message | Unreadable:
        return decode(raw, self._max_message_bytes, self._keep_eta)

    # -- the server --------------------------------------------------------------------------------

    def now_ms(self) -> int | None:
        """RabbitMQ tells no time; but it wants to hear of its clients."""
        for ingress in list(self._ingress.values()):
            ingress.keep_alive()
        self._publishing.keep_alive(reads=True)
        return None

    def close(self) -> None:
        for ingress in self._ingress.values():
            ingress.close()
        with self._publishing.lock:
            self._publishing.drop()
