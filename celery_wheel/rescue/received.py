"""A message in a worker's hands: is it to wait in the wheel, and what goes there?

::

    stays with Celery                               goes to the wheel
    ─────────────────────────────────────────       ─────────────────────────────────────────────────────
    no eta, past, or nearer than the threshold      envelope    back to the queue it came by, and no other
    revoked here, expired                           headers     as they are, the eta included
    the wheel has had it (NATIVE)                   properties  as they are, but for one delivery's own
    an envelope: this is the wheel queue            body        as its sender made it, packed again
    its queue is not known

The destination is the queue and not the exchange: an exchange may have given a copy to other queues as well, and they
keep theirs.

The envelope's id is made of the message, so that a message that is delivered again has the same.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from hashlib import sha1
from typing import Any
from uuid import UUID

from celery.worker import state

from celery_wheel import eta as etas
from celery_wheel.broker.envelope import HEADER, NATIVE, Envelope, encode
from celery_wheel.conf import Conf
from celery_wheel.destination import queue_expires_ms

logger = logging.getLogger(__name__)

#: Of one delivery, or in the envelope, or given by themselves.
_NOT_KEPT = {
    *("delivery_info", "delivery_tag", "body_encoding", "priority", "expiration", "application_headers"),
    *("content_type", "content_encoding"),
}

#: What topics have for any word or words, which may be none with their dot.
_IN_TOPICS = {"#": ".*", "*": ".*", ".": r"\.?"}


@dataclass(frozen=True, slots=True)
class Received:
    """What is to be published; ``compression`` is how the body was packed when it came."""

    envelope: Envelope
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    content_type: str
    content_encoding: str
    compression: str | None


class Reader:
    """Of one consumer. Raises ValueError, TypeError, LookupError, ArithmeticError for what cannot be read."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app
        conf = Conf(consumer.app)
        self._after_us = max(conf.rescue_after_ms, conf.min_delay_ms) * 1_000
        self._keeps_eta = conf.keep_eta
        # Redis gives the id of a message back with every delivery; elsewhere it is another each time.
        self._has_tags = consumer.app.connection_for_write().transport.driver_type == "redis"
        self._unknown: set[tuple[str, str]] = set()

    def read(self, message: Any, payload: Any) -> Received | None:
        """None for what stays with Celery. ``payload`` is the decoded body of protocol 1, and else None."""
        headers = message.headers
        says = headers if payload is None else payload
        text = says.get("eta")
        if not text or NATIVE in headers or message.errors or message.acknowledged or not message.content_type:
            return None
        due, now_us = etas.due_of_header(self._app, text), etas.microseconds(self._app.now())
        expires_ms = etas.expires_ms(self._app, says.get("expires"))
        if due.at_us <= now_us + self._after_us or (expires_ms is not None and expires_ms * 1_000 <= now_us):
            return None
        if self._is_revoked(says) or self._is_ours(headers):
            return None
        queue = self._queue_of(message)
        if queue is None:
            return None
        body, compression = _bytes(message), headers.get("compression")
        envelope = Envelope(
            id=self._id(message, says, queue.name, body),
            task=str(says["task"]),
            task_id=str(says["id"]),
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
        kept = {name: value for name, value in message.properties.items() if name not in _NOT_KEPT}
        marked = {**headers, HEADER: encode(envelope, headers.get(HEADER))}
        if self._keeps_eta or payload is not None:
            marked[NATIVE] = True  # it comes back with its eta, which by this worker's clock may lie ahead still
        return Received(envelope, marked, kept, body, message.content_type, message.content_encoding, compression)

    def _is_revoked(self, says: dict[str, Any]) -> bool:
        """As ``Request.revoked`` has it; Celery does then what there is to do."""
        if says["id"] in state.revoked:
            return True
        stamps = says.get("stamps") or {}
        for header in says.get("stamped_headers") or ():
            revoked = state.revoked_stamps.get(header)
            if revoked is not None and set(_listed(stamps.get(header))) & set(_listed(revoked)):
                return True
        return False

    def _is_ours(self, headers: dict[str, Any]) -> bool:
        found = headers.get(HEADER)
        if not isinstance(found, dict) or "eta_ms" not in found:
            return False
        self._say_once(("", ""), "it comes out of the wheel queue, which no worker may consume (its -Q names it)")
        return True

    def _id(self, message: Any, says: dict[str, Any], queue: str, body: bytes) -> str:
        tag = message.properties.get("delivery_tag") if self._has_tags else None
        parts = (queue, tag, says["id"], says.get("retries"), says["eta"])
        digest = sha1(repr(parts).encode() + body, usedforsecurity=False).digest()
        return str(UUID(bytes=digest[:16], version=5))

    # -- by which queue? ---------------------------------------------------------------------------

    def _queue_of(self, message: Any) -> Any:
        """The queue of this worker's by which it came; None where it may be one of several."""
        info, consumer = message.delivery_info or {}, self._consumer.task_consumer
        queues = list(consumer.queues)
        tag = info.get("consumer_tag")
        exchange, routing_key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
        if tag is not None:  # AMQP says so
            tags = {tag: name for name, tag in getattr(consumer, "_active_tags", {}).items()}
            found = [queue for queue in queues if queue.name == tags.get(str(tag))]
        elif not exchange:
            found = [queue for queue in queues if queue.name == routing_key]
        else:
            found = [queue for queue in queues if _may_get(queue, exchange, routing_key)]
        if len(found) == 1:
            return found[0]
        self._say_once((exchange, routing_key), f"{len(found)} of this worker's queues may be the one it came by")
        return None

    def _say_once(self, where: tuple[str, str], why: str) -> None:
        if where in self._unknown:
            return
        self._unknown.add(where)
        logger.warning(
            "tasks with an eta that come by exchange %r with routing key %r are held by this worker: %s",
            *where,
            why,
            extra={"action": "not_rescued"},
        )


def _may_get(queue: Any, exchange: str, routing_key: str) -> bool:
    """Whether a queue is bound so that it may get such a message; rather yes than no."""
    bindings = [(queue.exchange, queue.routing_key), *((one.exchange, one.routing_key) for one in queue.bindings or ())]
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
    """py-amqp has made text of it where it could; kombu's virtual transports give bytes."""
    body = message.body
    if body is None:
        raise ValueError("it has no body")
    return body.encode(message.content_encoding or "utf-8") if isinstance(body, str) else bytes(body)


def _priority(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= 255 else None


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set) else [value]
