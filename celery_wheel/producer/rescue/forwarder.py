"""The forwarder, which publishes to the wheel queue on a connection of its own, confirmed where the broker can do that.

The worker's loop waits for the publication, mostly about a millisecond. A failed publication is tried once more on a
new connection, with the same envelope id, so that a copy that only seemed lost is no second message.
"""

from __future__ import annotations

from typing import Any

from kombu.messaging import Producer

from celery_wheel.broker import shard_of
from celery_wheel.broker.queues import DEFAULT_EXCHANGE, wheel_queue
from celery_wheel.conf import Conf
from celery_wheel.producer.rescue.received_message import ReceivedMessage

CONNECT_S = 5
CONFIRM_S = 10


class Forwarder:
    """Publishes received messages to the wheel queues of an app."""

    def __init__(self, app: Any) -> None:
        conf = Conf(app)
        self._app = app
        self._namespace, self._shards = conf.namespace, conf.shards
        self._connection: Any = None
        self._producer: Any = None
        self.quiet_until_s = 0.0  #: monotonic; the next try is not before

    def publish(self, received: ReceivedMessage) -> None:
        """Publish a message; returns when the broker has it. Raises the transport's errors."""
        try:
            self._publish(received)
        except Exception:  # a connection that was idle for long: its loss shows only now
            self.drop()
            self._publish(received)

    def _publish(self, received: ReceivedMessage) -> None:
        envelope = received.envelope
        queue = wheel_queue(self._namespace, shard_of(None, envelope.task_id, self._shards))
        self._connected().publish(
            received.body,
            exchange=DEFAULT_EXCHANGE,
            routing_key=queue.name,
            declare=[queue],
            headers=dict(received.headers),
            content_type=received.content_type,
            content_encoding=received.content_encoding,
            compression=received.compression,
            confirm_timeout=CONFIRM_S,
            **received.properties,
        )

    def _connected(self) -> Any:
        if self._producer is None:
            connection = self._app.connection_for_write(heartbeat=0)  # no code would send it between two messages
            if connection.transport.driver_type == "amqp":
                options = {**(connection.transport_options or {}), "confirm_publish": True}
                connection = connection.clone(transport_options=options)
            self._connection = connection
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
            self._producer = Producer(connection.channel(), auto_declare=False)  # type: ignore[no-untyped-call]
        return self._producer

    def drop(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.collect()
