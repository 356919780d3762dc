"""Publishing through any kombu transport, one message after the other, on a connection of its own.

::

    publish ──► a row without a route, or that cannot be encoded   failed: rejected
            ├─► the server does not answer                         PublishInterrupted or BrokerError: all is tried again
            └─► the server refuses the row                         refused: rows of this destination wait in order
                    for the fifth time, and not as a transient error   failed: too big, not allowed, …
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kombu.entity import Exchange
from kombu.messaging import Producer
from kombu.utils import json

from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.broker.errors import stopped
from celery_wheel.broker.virtual.errors import connection_errors, format_error, is_transient
from celery_wheel.broker.virtual.ingress import ensure_connection
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Row
from celery_wheel.values.dispatch_ids import dispatch_ids

logger = logging.getLogger(__name__)

#: A message that was refused this often is rejected: after about a second, and each time on a new connection, because
#: some transports cache the properties of a queue.
TRIES = 5

#: Destinations that a publisher remembers. Beyond them, the oldest count of tries begins anew, and destinations are
#: declared again.
MOST_PLACES = 1_000

_loads: Any = json.loads


class KombuPublisher:
    """Publishes rows on a connection of its own.

    Args:
        app: its queues have the declarations of exchanges and queues.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[tuple[str, str]] = set()
        #: By destination: the id of the row that it refused last, and its tries. The row is done with as soon as the
        #: destination accepts a row, or refuses another one: the row before it has left the lane.
        self._refused: dict[str, tuple[int, int]] = {}

    def publish(self, rows: Sequence[Row], now_ms: int, redelivered: bool, may_send: Callable[[], bool]) -> Confirmed:
        """Publish the rows; ``may_send`` is called before each message."""
        answer, confirmed = Confirmed(), set[int]()
        waiting: dict[str, str] = {}  #: destinations that did not accept a message, so that none overtakes it
        stale = False
        with self._lock:
            producer = self._producer()
            for row, message_id in zip(rows, dispatch_ids(now_ms), strict=False):
                if row.route.target in waiting:
                    answer.refused[row.id] = waiting[row.route.target]
                    continue
                if not may_send():
                    raise stopped(confirmed)
                try:
                    reason = self._send(producer, row, now_ms, redelivered, message_id.decode())
                except connection_errors(self._connection) as error:
                    # The row without an answer may be in its queue, even the first one.
                    raise PublishInterrupted(self._drop(error), confirmed) from error
                except Exception as error:  # each transport has its own classes
                    reason = self._rejection(row, error)
                    stale |= not is_transient(error)
                    if not reason:
                        waiting[row.route.target] = answer.refused[row.id] = format_error(error)
                        continue
                if reason:
                    answer.failed[row.id] = reason
                else:
                    confirmed.add(row.id)
                self._refused.pop(row.route.target, None)
            if stale:
                self.forget()
        return answer

    def forget(self) -> None:
        """End the connection; the next message opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()

    def close(self) -> None:
        with self._lock:
            self.forget()

    def _rejection(self, row: Row, error: Exception) -> str:
        """Return the reason why a refused row is rejected; empty where it is tried again."""
        target = row.route.target
        first = target not in self._refused
        row_id, tries = self._refused.pop(target, (row.id, 0))
        tries = (tries if row_id == row.id else 0) + (not is_transient(error))
        if tries >= TRIES:
            return f"refused {tries} times: {format_error(error)}"
        if len(self._refused) >= MOST_PLACES:
            self._refused.pop(next(iter(self._refused)))
        self._refused[target] = row.id, tries
        if first:
            logger.warning(
                "%s does not accept a task %s (%s); tasks for this destination wait and are tried again",
                target,
                row.route.task,
                format_error(error),
                extra={"action": "refused", "target": target},
            )
        return ""

    def _send(self, producer: Any, row: Row, now_ms: int, redelivered: bool, message_id: str) -> str:
        """Send a row; returns the reason where it cannot be sent, else an empty text."""
        try:
            parts = row.parts()
            headers, properties = _loads(parts.headers), _loads(parts.properties)
            properties.setdefault("message_id", message_id)
            if redelivered:
                headers[REDELIVERED] = True
            if not self._has_route(row):
                return (
                    f"no queue is bound to exchange {row.route.exchange!r} with routing key {row.route.routing_key!r}"
                )
            if row.expires_ms is not None:
                properties["expiration"] = max(0, row.expires_ms - now_ms) / 1000
            producer.publish(
                parts.body,
                exchange=Exchange(row.route.exchange, row.route.exchange_type),  # type: ignore[no-untyped-call]
                routing_key=row.route.routing_key,
                headers=headers,
                priority=row.route.priority or 0,
                **properties,
            )
        except (TypeError, ValueError) as error:
            return f"it cannot be sent by this transport: {error}"
        return ""

    def _has_route(self, row: Row) -> bool:
        """Declare the destination's queues, once for each connection; returns whether a queue is bound.

        A virtual transport keeps no exchanges: undeclared, a topic exchange would count as direct and drop the message.
        """
        place = row.route.exchange, row.route.routing_key
        if place not in self._declared:
            for queue in self._app.amqp.queues.values():
                bound = queue.exchange is not None and queue.exchange.name == row.route.exchange
                if bound or (not row.route.exchange and queue.name == row.route.routing_key):
                    queue(self._channel).declare()
            if len(self._declared) >= MOST_PLACES:
                self._declared.clear()
            self._declared.add(place)
        channel = self._channel
        if not row.route.exchange or not hasattr(channel, "get_table"):
            return True
        if row.route.exchange_type == "fanout" and channel.supports_fanout:
            return True
        try:
            table = channel.get_table(row.route.exchange)
        except KeyError:
            return False
        return bool(channel.typeof(row.route.exchange).lookup(table, row.route.exchange, row.route.routing_key, None))

    def _producer(self) -> Any:
        if self._connection is None:
            self._connection = connection = self._app.connection_for_write()
            try:
                ensure_connection(connection)
                self._channel = connection.channel()
            except Exception as error:  # not all transports count a wrong key among their connection errors
                raise BrokerError(self._drop(error)) from error
            self._declared.clear()
        return Producer(self._channel, auto_declare=False)  # type: ignore[no-untyped-call]

    def _drop(self, error: BaseException) -> str:
        text = f"{self._connection.as_uri()} does not accept messages ({format_error(error)}); it is tried again"
        self.forget()
        return text
