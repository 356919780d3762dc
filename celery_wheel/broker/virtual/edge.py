"""The broker edge for any kombu transport: implements ``engine.port.ConfirmingBroker``.

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as dispatched when the
transport's ``publish`` has returned. Rows without a route and refused rows are reported, never dropped.

Non-promises: the edge adds no promise that the transport does not make. Most of kombu's virtual transports take a
message off the server when they deliver it, so a scheduler that is killed between a delivery and its commit loses at
most ``PREFETCH`` messages. No publication is confirmed. Rows that were in flight when a scheduler died may be in their
queues twice, the second time with the header ``wheel_redelivered``. Nothing guards against two stores on one namespace.
``oldest`` returns None, because reading a message removes it from the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.compression import compress
from kombu.utils import json

from celery_wheel.broker.deliveries import DeliveryBroker
from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader, read_or_reject, stored_properties
from celery_wheel.broker.virtual.errors import connection_errors, format_error
from celery_wheel.broker.virtual.ingress import KombuIngress, ensure_connection
from celery_wheel.broker.virtual.publisher import KombuPublisher
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.errors import BrokerError
from celery_wheel.store.model import Message, Unreadable

_dumps: Any = json.dumps
_compress: Any = compress


class KombuBroker(DeliveryBroker):
    """Implements ``ConfirmingBroker`` through kombu.

    Args:
        app: its queues say how exchanges and queues are declared.
        reader: reads the wheel queue; its namespace begins the queues' names.
    """

    def __init__(self, app: Any, reader: QueuedMessageReader) -> None:
        super().__init__(reader)
        self._connect: Callable[[], Any] = app.connection_for_write
        self._outgoing = KombuPublisher(app)

    @property
    def can_wait(self) -> bool:
        """Return False: a thread that waited would hold the connection that ``trim`` and ``leave`` need."""
        return False

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return False

    def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
        return self._outgoing.publish(chunk.rows, chunk.now_ms, chunk.redelivered, may_send)

    def depth(self, shard: int) -> int:
        name = wheel_queue_name(self._reader.namespace, shard)
        with self._connect() as connection:
            try:
                ensure_connection(connection)
                with connection.channel() as channel:
                    return int(channel.queue_declare(name, passive=True).message_count)
            except connection.channel_errors:  # no message was ever sent to the queue
                return 0
            except connection_errors(connection) as error:
                raise BrokerError(
                    f"{connection.as_uri()} does not answer ({format_error(error)}); it is tried again"
                ) from error

    def oldest(self, shard: int) -> Message | Unreadable | None:
        return None

    def close(self) -> None:
        super().close()
        self._outgoing.close()

    def _deliveries(self, shard: int) -> KombuIngress:
        return KombuIngress(shard, self._connect, wheel_queue(self._reader.namespace, shard))

    def _message(self, delivery: Any) -> Message | Unreadable:
        properties = stored_properties(delivery.properties or {}, delivery.content_type, delivery.content_encoding)

        def read() -> Message:
            body, headers = _body(delivery), dict(delivery.headers or {})
            self._reader.check_size(body)
            return self._reader.message(headers, _dumps(properties).encode(), body, _dumps)

        raw = {"headers": delivery.headers, "properties": properties, "body": delivery.body}
        return read_or_reject(read, lambda: _dumps(raw).encode())


def _body(message: Any) -> bytes:
    """Return the body as its sender made it: kombu has decompressed it, and left the header with the compression."""
    if message.errors:
        raise ValueError(f"body must have the compression that its header names: {message.errors[0][1]}")
    body = message.body.encode() if isinstance(message.body, str) else message.body
    if body is None:
        raise ValueError("message must have a body")
    compression = (message.headers or {}).get("compression")
    return bytes(_compress(body, compression)[0] if compression else body)
