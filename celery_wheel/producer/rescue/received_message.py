"""A message that a worker has received: the decision whether it goes to the wheel, and its form there.

::

    stays with Celery                               goes to the wheel
    ─────────────────────────────────────────       ─────────────────────────────────────────────────────
    no eta, past, or nearer than the threshold      envelope    destination: the queue of this delivery
    revoked here, expired                           headers     unchanged, the eta included
    dispatched by the wheel (NATIVE)                properties  unchanged, without those of one delivery
    an envelope: the queue is a wheel queue         body        as its sender made it, compressed again
    the queue is ambiguous

The destination is the queue and not the exchange: other queues of the exchange may have copies of their own.

The envelope's id is made of the message, so that each delivery of a message has the same id.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from hashlib import sha1
from typing import Any
from uuid import UUID

from celery.worker import state

from celery_wheel.broker.envelope import HEADER, NATIVE, Envelope, encode
from celery_wheel.broker.reader import NOT_STORED
from celery_wheel.conf import Conf
from celery_wheel.producer.destination import queue_expires_ms
from celery_wheel.producer.eta import due_time_of_header, epoch_us, expiry_ms

logger = logging.getLogger(__name__)

#: Routes that a worker remembers to have named in its log.
MOST_WARNED = 1_000

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
        # On Redis all deliveries of a message have one tag; elsewhere each delivery has its own.
        self._has_tags = consumer.app.connection_for_write().transport.driver_type == "redis"
        self._warned: set[tuple[str, str]] = set()

    def read(self, message: Any, payload: Any) -> ReceivedMessage | None:
        """Return the message to forward; None for one that stays with Celery.

        ``payload`` is the decoded body of protocol 1, None for protocol 2. Raises ValueError, TypeError, LookupError or
        ArithmeticError for an unreadable message.
        """
        headers = message.headers
        fields = headers if payload is None else payload
        text = fields.get("eta")
        if not text or NATIVE in headers or message.errors or message.acknowledged or not message.content_type:
            return None
        due, now_us = due_time_of_header(self._app, text), epoch_us(self._app.now())
        expires_ms = expiry_ms(self._app, fields.get("expires"))
        if due.at_us <= now_us + self._after_us or (expires_ms is not None and expires_ms * 1_000 <= now_us):
            return None
        if self._is_revoked(fields) or self._has_envelope(headers):
            return None
        queue = self._queue_of(message)
        if queue is None:
            return None
        body, compression = _bytes(message), headers.get("compression")
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
            priority=_priority(message.properties.get("priority")),
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

    def _has_envelope(self, headers: dict[str, Any]) -> bool:
        found = headers.get(HEADER)
        if not isinstance(found, dict) or "eta_ms" not in found:
            return False
        self._warn_once(("", ""), "they come from the wheel queue, which no worker may consume (remove it from -Q)")
        return True

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
        if len(self._warned) >= MOST_WARNED:  # there may be a routing key for each of the application's users
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


def _priority(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= 255 else None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set) else [value]
