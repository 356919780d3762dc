"""The edge for kombu transports without an edge of their own: ``engine.port.ConfirmingBroker`` by kombu's public API.

::

    publish ──► a row without a route, or that cannot be encoded   failed: rejected
            ├─► the server does not answer                         PublishInterrupted or BrokerError: all is tried again
            └─► the server refuses the row                         refused: rows of this destination wait in order
                    for the fifth time, and not as a transient error   failed: too big, not allowed, …

Promises: a message is acknowledged in the wheel queue after the store has it; a task counts as dispatched when the
transport's ``publish`` has returned. Rows without a route and refused rows are reported.

Non-promises: the edge adds no promise to those of the transport (docs/transports.md). A scheduler that is killed
between a delivery and its commit loses at most ``PREFETCH`` messages where the transport takes a message off the server
as it delivers. No publication is confirmed: rows in flight when a scheduler dies may be in their queues twice, the
second time with the header ``wheel_redelivered``. Nothing guards against two stores on one namespace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from kombu.compression import compress
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.messaging import Consumer, Producer
from kombu.utils import json

from celery_wheel.broker import is_own_name
from celery_wheel.broker.deliveries import Deliveries, DeliveryBroker
from celery_wheel.broker.destinations import Destinations
from celery_wheel.broker.envelope import REDELIVERED
from celery_wheel.broker.errors import stopped, url_of
from celery_wheel.broker.queues import wheel_queue
from celery_wheel.broker.reader import QueuedMessageReader, read_or_reject, stored_properties
from celery_wheel.engine.port import Confirmed
from celery_wheel.errors import BrokerError, PublishInterrupted
from celery_wheel.store.model import Message, Row, Unreadable
from celery_wheel.store.schedule_model import SLOT
from celery_wheel.values.error_text import Malformed, error_text
from celery_wheel.values.ids import dispatch_ids
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

PREFETCH = 200
CONNECT_S = 5
#: A poll of an empty queue takes at least this long.
POLL_S = 0.01
#: Longest time for which a server may delay its answer, where the option ``wait_time_seconds`` allows it (SQS: 10 by
#: default, in whole seconds, and each poll costs money). Meanwhile the inbox is not read and no thread can leave the
#: shard.
SERVER_WAIT_S = 1
#: Where messages arrive one by one, gathering ends after this time: the first of them may be due at once.
GATHER_S = 0.25

#: A message that was refused this often is rejected: after about a second, and each time on a new connection, because
#: some transports cache the properties of a queue.
TRIES = 5

#: Destinations that a publisher remembers. Beyond them, the oldest count of tries begins anew, and destinations are
#: declared again.
MOST_PLACES = 1_000

_loads: Any = json.loads
_dumps: Any = json.dumps


def connection_errors(connection: Any) -> tuple[type[BaseException], ...]:
    """Return the errors that this transport raises when it cannot reach its server."""
    errors = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
    return (*errors, *connection.connection_errors, *connection.channel_errors, OperationalError, OSError)


def is_transient(error: BaseException) -> bool:
    """Whether the server's answer, in the form of botocore's ClientError, does not blame the message."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return False
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or status >= 500 or "throttl" in str(answer.get("Error", {}).get("Code")).lower()


def format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def refusal_text(error: BaseException) -> str:
    """Return the server's code, or the kind of the error, by which a message was refused: its text may quote it."""
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return f"{type(error).__name__} {code}" if isinstance(code, str) else error_text(error)


def ensure_connection(connection: Any) -> None:
    """Connect, or raise the transport's error within ``CONNECT_S`` a try."""
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)


class KombuIngress(Deliveries):
    """One shard's deliveries on a connection of their own."""

    def __init__(self, shard: int, connect: Callable[[], Any], queue: Queue) -> None:
        super().__init__(shard, threading.RLock())
        self._connect = connect
        self._queue = queue
        self._connection: Any = None
        self._channel: Any = None
        self._server_wait_s = 0  #: the transport's own option

    @property
    def _is_up(self) -> bool:
        return self._connection is not None

    def _read(self, max_count: int, max_bytes: int) -> bool:
        try:
            self._gather(min(max_count, PREFETCH))
        except Exception as error:
            if not self._unacknowledged:
                raise
            # The server may never deliver these messages again, so they are peeked and stored first.
            logger.info("%s cannot be read further now (%s)", self._queue.name, format_error(error))
        return len(self._unacknowledged) >= min(max_count, PREFETCH)

    def _acknowledge(self, count: int) -> None:
        for message in islice(self._unacknowledged, count):
            message.ack()

    def _gather(self, count: int) -> None:
        until_s = None
        self._limit_server_wait(0 if self._unacknowledged else SERVER_WAIT_S)
        with suppress(TimeoutError):
            while len(self._unacknowledged) < count and (until_s is None or time.monotonic() < until_s):
                self._connection.drain_events(timeout=POLL_S)
                if until_s is None:
                    until_s = time.monotonic() + GATHER_S
                    self._limit_server_wait(0)

    def _limit_server_wait(self, seconds: int) -> None:
        """Set how long the server may delay its next answer; all transports of kombu have one name for it.

        The limit is 0 while messages are unacknowledged: SQS would hide returned messages for as long.
        """
        if self._server_wait_s:
            self._channel.wait_time_seconds = min(seconds, self._server_wait_s)

    def _consume(self) -> None:
        self._connection = connection = self._connect()
        ensure_connection(connection)
        self._channel = channel = connection.channel()
        self._server_wait_s = getattr(channel, "wait_time_seconds", 0)
        # A channel with one of these attributes is of a transport whose server delivers unacknowledged messages again.
        if any(hasattr(channel, name) for name in ("visibility_timeout", "peek_lock_seconds", "ack_deadline_seconds")):
            # Otherwise kombu, as it closes the channel, tries to return each message that could not be returned (its
            # time-out has ended, or the server is away), and writes all of them to a file in /tmp.
            channel.do_restore = False
        consumer: Any = Consumer(
            channel,
            [self._queue],
            on_message=self._unacknowledged.append,
            on_decode_error=lambda message, error: self._unacknowledged.append(message),  # the reader finds the reason
            prefetch_count=PREFETCH,
        )  # type: ignore[no-untyped-call]
        consumer.consume()

    def _disconnect(self) -> None:
        """Return unacknowledged messages to the queue at once, as far as the transport can; end the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                self._requeue(connection_errors(connection))
                connection.release()
            except Exception as error:
                logger.info("%s was disconnected without a reply (%s)", url_of(connection), format_error(error))

    def _requeue(self, disconnected: tuple[type[BaseException], ...]) -> None:
        for message in self._unacknowledged:
            try:
                message.requeue()
            except disconnected:
                raise
            except Exception as error:  # such as a time-out that has ended: the message is in the queue already
                logger.debug("a message cannot be requeued (%s)", format_error(error))

    @contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        with self._lock:
            connection = self._connection or self._connect()
            try:
                yield
            except BrokerError:
                raise
            except Exception as error:  # each transport has its own classes
                self._end()
                raise BrokerError(
                    f"{url_of(connection)} does not answer while {doing} the wheel queue {self._queue.name} "
                    f"({format_error(error)}); the wheel loses nothing and tries again"
                ) from error


class KombuPublisher:
    """Publishes rows on a connection of its own; the app's queues have the declarations of exchanges and queues."""

    def __init__(self, app: Any, destinations: Destinations) -> None:
        self._app = app
        self._destinations = destinations
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
                        waiting[row.route.target] = answer.refused[row.id] = refusal_text(error)
                        continue
                if reason:
                    answer.failed[row.id] = reason
                else:
                    confirmed.add(row.id)
                self._refused.pop(row.route.target, None)
            if stale:
                self.forget()
        return answer

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages each queue has; a depth is read up to ten times a second."""
        with self._lock:
            self._producer()
            connection, found = self._connection, dict.fromkeys(queues, 0)
            try:
                for queue in queues:
                    with suppress(*connection.channel_errors), connection.channel() as channel:  # no such queue
                        found[queue] = int(channel.queue_declare(queue, passive=True).message_count)
                return found
            except connection_errors(connection) as error:
                raise BrokerError(self._drop(error)) from error

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
            return f"refused {tries} times: {refusal_text(error)}"
        if len(self._refused) >= MOST_PLACES:
            self._refused.pop(next(iter(self._refused)))
        self._refused[target] = row.id, tries
        if first:
            logger.warning(
                "%s does not accept a task %s (%s); tasks for this destination wait and are tried again",
                target,
                row.route.task,
                refusal_text(error),
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
            if row.reports:
                headers[SLOT] = row.id  # a retry has inherited another one
            queues = self._queues(row)
            if not queues:
                return (
                    f"no queue is bound to exchange {row.route.exchange!r} with routing key {row.route.routing_key!r}"
                )
            if reserved := next(filter(self._is_reserved, queues), None):
                return f"queue {reserved!r} is one of the wheel, of Celery or of kombu"
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
            return f"it cannot be sent by this transport: {error_text(error)}"
        return ""

    def _is_reserved(self, queue: str) -> bool:
        rename = getattr(self._channel, "entity_name", str)
        own = self._destinations
        return own.is_reserved(queue) or is_own_name(own.namespace, queue, rename)

    def _queues(self, row: Row) -> Collection[str]:
        """Declare the destination's queues, once for each connection; return those that get the row, none if none is
        bound, and the exchange where it alone is known.

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
            return [row.route.exchange or row.route.routing_key]
        if row.route.exchange_type == "fanout" and channel.supports_fanout:
            return [row.route.exchange]
        try:
            table = channel.get_table(row.route.exchange)
        except KeyError:
            return []
        kind = channel.typeof(row.route.exchange)
        found: Collection[str] = kind.lookup(table, row.route.exchange, row.route.routing_key, None)
        return found

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
        text = f"{url_of(self._connection)} does not accept messages ({format_error(error)}); it is tried again"
        self.forget()
        return text


class KombuBroker(DeliveryBroker):
    """Implements ``ConfirmingBroker`` through kombu; the namespace of ``reader`` begins the queues' names."""

    can_wait = False  # a thread that waited would hold the connection that ``trim`` and ``leave`` need

    def __init__(self, app: Any, reader: QueuedMessageReader) -> None:
        self._outgoing = KombuPublisher(app, reader.destinations)
        super().__init__(reader, self._outgoing.publish)
        self._connect: Callable[[], Any] = app.connection_for_write

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return False

    def keep_alive(self) -> None: ...

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        return self._outgoing.ready(queues)

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
            self._reader.check_size(len(body))
            return self._reader.message(headers, _dumps(properties).encode(), body, _dumps)

        raw = {"headers": delivery.headers, "properties": properties, "body": delivery.body}
        return read_or_reject(read, lambda: _dumps(raw).encode(), self._reader.max_kept_bytes)


def _body(message: Any) -> bytes:
    """Return the body as its sender made it: kombu has decompressed it, and left the header with the compression."""
    if message.errors:
        raise Malformed(f"body must have the compression that its header names: {error_text(message.errors[0][1])}")
    body = message.body.encode() if isinstance(message.body, str) else message.body
    if body is None:
        raise Malformed("message must have a body")
    compression = (message.headers or {}).get("compression")
    return bytes(compress(body, compression)[0] if compression else body)  # type: ignore[no-untyped-call]
