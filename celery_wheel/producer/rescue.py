"""Rescue: eta messages that reached a worker by other ways than ``send_task`` are forwarded to the wheel.

::

    stays with Celery                               goes to the wheel
    ─────────────────────────────────────────       ─────────────────────────────────────────────────────
    no eta, past, or nearer than the threshold      envelope    destination: the queue of this delivery
    revoked here, expired                           headers     unchanged, the eta included
    dispatched by the wheel (NATIVE)                properties  unchanged, without those of one delivery
    an envelope: the queue is a wheel queue         body        as its sender made it, compressed again
    the queue is ambiguous

Promises: 1. The original is acknowledged after the broker has confirmed the copy in the wheel queue: never a loss.
2. A crash between the two causes a second copy with the same envelope id, which is made of the message; the wheel
recognises and drops it. 3. Where any error prevents the forwarding, Celery handles the message as without the wheel,
and the log has the reason.

Non-promises: a message stays with the worker if its queue is ambiguous (two queues of one worker, bound to one
exchange, both matching), or if it has protocol 1 within protocol 2, whose eta is in the body alone.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from hashlib import sha1
from typing import Any
from uuid import UUID

from celery import bootsteps
from celery.worker import state
from kombu.messaging import Producer

from celery_wheel.broker import shard_of
from celery_wheel.broker.destinations import destinations_of
from celery_wheel.broker.envelope import HEADER, NATIVE, Envelope, encode
from celery_wheel.broker.queues import DEFAULT_EXCHANGE, wheel_queue
from celery_wheel.broker.reader import NOT_STORED
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.broker.transport import bounded_connection
from celery_wheel.conf import Conf
from celery_wheel.producer.destination import is_eligible, queue_expires_ms
from celery_wheel.producer.eta import due_time_of_header, expiry_ms
from celery_wheel.values.error_text import error_text
from celery_wheel.values.instants import us_of
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: After a failed publication the worker holds the messages for this time before the next try, which may block the
#: worker.
QUIET_S = 10.0

#: Regular expressions for the wildcards of topics; a wildcard may match no word, and then its dot is missing too.
_IN_TOPICS = {"#": ".*", "*": ".*", ".": r"\.?"}


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message to forward; ``compression`` is that of the received body."""

    envelope: Envelope
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    content_type: str
    content_encoding: str
    compression: str | None


class ReceivedMessageReader:
    """Reads the messages of one consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app
        conf = Conf(consumer.app)
        self._after_us = max(conf.rescue_after_ms, conf.min_delay_ms) * 1_000
        self._keeps_eta = conf.keep_eta
        self._destinations, self._signs = destinations_of(consumer.app), bool(MessageSeal.of(conf).signing.current)
        # On Redis all deliveries of a message have one tag; elsewhere each delivery has its own.
        self._has_tags = consumer.app.connection_for_write().transport.driver_type == "redis"
        self._warned: set[tuple[str, str]] = set()

    def read(self, message: Any, payload: Any) -> ReceivedMessage | None:
        """Return the message to forward; None for one that stays with Celery. ``payload`` is the body of protocol 1.

        Raises ValueError, TypeError, LookupError or ArithmeticError for an unreadable message.
        """
        headers = message.headers
        fields = headers if payload is None else payload
        text = fields.get("eta")
        if not text or NATIVE in headers or message.errors or message.acknowledged or not message.content_type:
            return None
        due, now_us = due_time_of_header(self._app, text), us_of(self._app.now())
        expires_ms = expiry_ms(self._app, fields.get("expires"))
        if due.at_us <= now_us + self._after_us or (expires_ms is not None and expires_ms * 1_000 <= now_us):
            return None
        if self._is_revoked(fields):
            return None
        if isinstance(headers.get(HEADER), dict) and "eta_ms" in headers[HEADER]:
            self._warn_once(("", ""), "they come from the wheel queue, which no worker may consume (remove it from -Q)")
            return None
        queue = self._queue_of(message)
        if queue is None:
            return None
        if why := self._destinations.refusal("", queue.name, queue.name, signed=self._signs):
            self._warn_once(("", queue.name), why)
            return None
        body, compression = _bytes(message), headers.get("compression")
        priority = message.properties.get("priority")
        envelope = Envelope(
            id=self._id(message, fields, queue.name, body),
            task=str(fields["task"]),
            task_id=str(fields["id"]),
            eta_ms=due.eta_ms,
            created_ms=now_us // 1_000,
            exchange="",
            exchange_type="direct",
            routing_key=queue.name,
            queue=queue.name,
            priority=priority if type(priority) is int and 0 <= priority <= 255 else None,
            expires_ms=expires_ms,
            queue_expires_ms=queue_expires_ms(queue),
        )
        properties = {name: value for name, value in message.properties.items() if name not in NOT_STORED}
        headers = {**headers, HEADER: encode(envelope, headers.get(HEADER))}
        if self._keeps_eta or payload is not None:
            headers[NATIVE] = True  # it returns with its eta, which by this worker's clock may still be ahead
        return ReceivedMessage(
            envelope, headers, properties, body, message.content_type, message.content_encoding, compression
        )

    def _is_revoked(self, fields: dict[str, Any]) -> bool:
        """Whether Celery will discard the message, by the rule of ``Request.revoked``."""
        if fields["id"] in state.revoked:
            return True
        stamps = fields.get("stamps") or {}
        for header in fields.get("stamped_headers") or ():
            revoked = state.revoked_stamps.get(header)
            if revoked is not None and set(_as_list(stamps.get(header))) & set(_as_list(revoked)):
                return True
        return False

    def _id(self, message: Any, fields: dict[str, Any], queue: str, body: bytes) -> str:
        tag = message.properties.get("delivery_tag") if self._has_tags else None
        parts = (queue, tag, fields["id"], fields.get("retries"), fields["eta"])
        digest = sha1(repr(parts).encode() + body, usedforsecurity=False).digest()
        return str(UUID(bytes=digest[:16], version=5))

    # -- the queue -----------------------------------------------------------------------------------

    def _queue_of(self, message: Any) -> Any:
        """Return the worker's queue that delivered the message; None where several may have."""
        info, consumer = message.delivery_info or {}, self._consumer.task_consumer
        queues = list(consumer.queues)
        tag = info.get("consumer_tag")
        exchange, routing_key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
        if tag is not None:  # AMQP
            tags = {tag: name for name, tag in getattr(consumer, "_active_tags", {}).items()}
            found = [queue for queue in queues if queue.name == tags.get(str(tag))]
        elif not exchange:
            found = [queue for queue in queues if queue.name == routing_key]
        else:
            found = [queue for queue in queues if _may_get(queue, exchange, routing_key)]
        if len(found) == 1:
            return found[0]
        self._warn_once((exchange, routing_key), f"{len(found)} of its queues may have delivered them")
        return None

    def _warn_once(self, route: tuple[str, str], why: str) -> None:
        if route in self._warned:
            return
        if len(self._warned) >= 1_000:  # there may be a routing key for each of the application's users
            self._warned.clear()
        self._warned.add(route)
        logger.warning(
            "this worker holds tasks with an eta from exchange %r with routing key %r: %s",
            *route,
            why,
            extra={"action": "not_rescued"},
        )


def _may_get(queue: Any, exchange: str, routing_key: str) -> bool:
    """Whether a queue's bindings may deliver such a message to it; True in doubt."""
    bindings = [(bound.exchange, bound.routing_key) for bound in (queue, *(queue.bindings or ()))]
    for bound, key in bindings:
        if bound is None or bound.name != exchange:
            continue
        if bound.type != "topic":
            if bound.type != "direct" or (key or "") == routing_key:
                return True
        elif re.fullmatch("".join(_IN_TOPICS.get(char) or re.escape(char) for char in key or ""), routing_key):
            return True
    return False


def _bytes(message: Any) -> bytes:
    """Return the body as bytes: py-amqp decodes it to text where it can, kombu's virtual transports do not."""
    body = message.body
    if body is None:
        raise ValueError("it has no body")
    return body.encode(message.content_encoding or "utf-8") if isinstance(body, str) else bytes(body)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set) else [value]


class Forwarder:
    """Publishes received messages to the wheel queues, on a connection of its own, confirmed where the broker can.

    The worker's loop waits for the publication, mostly about a millisecond. A failed one is tried once more on a new
    connection, with the same envelope id, so that a copy that only seemed lost is no second message.
    """

    def __init__(self, app: Any) -> None:
        conf = Conf(app)
        self._app = app
        self._namespace, self._queue_type, self._shards = conf.namespace, conf.queue_type, conf.shards
        self._seal = MessageSeal.of(conf)
        self._connection: Any = None
        self._producer: Any = None
        self.quiet_until_s = 0.0  #: monotonic; the next try is not before

    def publish(self, received: ReceivedMessage, shard: int | None = None) -> None:
        """Publish a message; returns when the broker has it. Raises the transport's errors.

        Args:
            shard: to whose wheel queue; None: that of its task id.
        """
        if shard is None:
            shard = shard_of(None, received.envelope.task_id, self._shards)
        try:
            self._publish(received, shard)
        except Exception:  # a connection that was idle for long: its loss shows only now
            self.drop()
            self._publish(received, shard)

    def _publish(self, received: ReceivedMessage, shard: int) -> None:
        queue, envelope = wheel_queue(self._namespace, shard, self._queue_type), received.envelope
        body = received.body
        publish = {
            "exchange": DEFAULT_EXCHANGE,
            "routing_key": queue.name,
            "headers": dict(received.headers),
            "content_type": received.content_type,
            "content_encoding": received.content_encoding,
            "compression": received.compression,
            **received.properties,
        }
        if self._seal:
            body, publish = self._seal.seal(body, publish, envelope.task, envelope.task_id, shard)
        self._connected().publish(body, declare=[queue], confirm_timeout=10, **publish)

    def _connected(self) -> Any:
        if self._producer is None:
            # No heartbeat: no code would send it between two messages.
            connection = bounded_connection(self._app.connection_for_write, heartbeat=0)
            if connection.transport.driver_type == "amqp":
                options = {**(connection.transport_options or {}), "confirm_publish": True}
                connection = connection.clone(transport_options=options)
            self._connection = connection
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
            self._producer = Producer(connection.channel(), auto_declare=False)  # type: ignore[no-untyped-call]
        return self._producer

    def drop(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.collect()


class Rescue(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """The step of a worker's consumer, which wraps each task's strategy.

    Celery makes the strategies anew with each connection and at a pool restart, so the step wraps
    ``update_strategies``. An acknowledgement at once leaves the prefetch count as it is.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._forwarder: Forwarder | None = None

    def include_if(self, consumer: Any) -> bool:
        """Whether the setting ``wheel_rescue`` or the app's own steps include it, and the wheel can serve the app."""
        conf = Conf(consumer.app)
        wanted = conf.rescue or Rescue in consumer.app.steps["consumer"]
        return wanted and conf.enabled and is_eligible(consumer.app, None, None)

    def start(self, consumer: Any) -> None:
        if self._forwarder is None:  # else the worker has reconnected
            self._forwarder = Forwarder(consumer.app)
            update = consumer.update_strategies

            def update_and_wrap() -> None:
                update()
                self._wrap(consumer)

            consumer.update_strategies = update_and_wrap
        self._wrap(consumer)

    def stop(self, consumer: Any) -> None:
        """Drop the connection: the worker ends, or has lost its own connection."""
        if self._forwarder is not None:
            self._forwarder.drop()

    terminate = stop

    def _wrap(self, consumer: Any) -> None:
        reader = ReceivedMessageReader(consumer)
        for name, strategy in consumer.strategies.items():
            if not isinstance(strategy, RescueStrategy):
                consumer.strategies[name] = RescueStrategy(strategy, consumer, reader, self._forwarder)


class RescueStrategy:
    """A task's strategy, called with each message for it."""

    def __init__(self, native: Any, consumer: Any, reader: ReceivedMessageReader, forwarder: Any) -> None:
        self._native = native
        self._consumer = consumer
        self._reader = reader
        self._forwarder = forwarder

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        if self._forward(message, body):
            # Celery's own function, which also raises the prefetch count after a reconnect.
            return ack(logger, self._consumer.connection_errors)
        return self._native(message, body, ack, reject, callbacks, **options)

    def _forward(self, message: Any, body: Any) -> bool:
        try:
            received = self._reader.read(message, body)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            # An eta that is no time, a name that is too long: Celery's strategy reports it.
            _log_not_forwarded(message, body, f"the wheel cannot accept it: {error_text(error)}")
            return False
        if received is None:
            return False
        if self._forwarder.quiet_until_s > time.monotonic():
            return False
        try:
            self._forwarder.publish(received)
        except Exception as error:  # each transport has its own classes
            self._forwarder.quiet_until_s = time.monotonic() + QUIET_S
            _log_not_forwarded(message, body, f"publishing to the wheel queue failed ({error_text(error)})")
            return False
        envelope = received.envelope
        logger.info(
            "Task %s[%s] was forwarded to the wheel and is pending there until %d (Unix milliseconds)",
            envelope.task,
            envelope.task_id,
            envelope.eta_ms,
            extra={"action": "rescue", "task_id": envelope.task_id, "queue": envelope.queue},
        )
        return True


def _log_not_forwarded(message: Any, body: Any, why: str) -> None:
    fields = message.headers if body is None else body
    logger.warning(
        "Task %s[%s] is held by this worker until its eta, as without the wheel: %s",
        fields.get("task"),
        fields.get("id"),
        why,
        extra={"action": "not_rescued"},
    )
