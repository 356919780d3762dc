"""Interception: under Celery's own sender, a delayed message is published to the wheel queue instead.

1. ``WheelEta`` is text in the message and False in ``if eta``: so Celery never enters its native delayed delivery, and
   a message that is not diverted still has its eta. A defect here makes the message late, never early.
2. The original sender runs unchanged, so signals and ``task-sent`` name the true destination, and changes by receivers
   in headers and properties count; the eta, too.
3. The identity of its headers identifies the message. Messages that a signal handler sends are other messages.
4. A call makes the envelope's id once: publishing again after a lost connection is the same message.
5. A call that names a wheel queue raises here, before any declaration or signal; so does one that is too large, which
   is why the body is serialised here.
6. With ``wheel_transactional`` a message with the id of the running task (its retry, its replacement) is no part of the
   task's transaction: Celery leaves the task by raising, which rolls the transaction back, and the retry with it.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from kombu.messaging import Producer
from kombu.utils.objects import cached_property

from celery_wheel.broker import is_own_name, queues, shard_of
from celery_wheel.broker.destinations import destinations_of
from celery_wheel.broker.envelope import BATCH, GROUP, HEADER, Envelope, encode
from celery_wheel.broker.sealed import NO_SEAL, MessageSeal
from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError, DestinationError
from celery_wheel.producer.destination import is_eligible, resolve_destination
from celery_wheel.producer.eta import DueTime, due_time_of_header, expiry_ms, postpone
from celery_wheel.producer.options import CallOptions, parse
from celery_wheel.producer.transaction import inbox_of, is_transactional
from celery_wheel.values.ids import uuid7

_SETTING = Conf.destinations.name


class WheelEta(str):
    """The eta of a message for the wheel: text, but False, so that Celery carries it without acting on it."""

    __slots__ = ("created_ms", "due", "options")
    due: DueTime
    created_ms: int
    options: CallOptions

    def __new__(cls, due: DueTime, created_ms: int, options: CallOptions) -> WheelEta:
        eta = super().__new__(cls, due.text)
        eta.due, eta.created_ms, eta.options = due, created_ms, options
        return eta

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # a process that unpickles it need not have celery-wheel


class WheelAMQP:
    """Mixed into an app's AMQP class: its sender, an attribute as in Celery, diverts messages with a ``WheelEta``."""

    app: Any

    @cached_property
    def send_task_message(self) -> Any:
        return divert_sender(self.app, super().send_task_message)  # type: ignore[misc]  # Celery's, also cached


def divert_sender(app: Any, sender: Any) -> Any:
    """Return a sender that diverts messages with a ``WheelEta`` and leaves all others to ``sender``."""
    return partial(_send_task_message, app, sender)


def _send_task_message(app: Any, original: Any, producer: Any, name: str, message: Any, **options: Any) -> Any:
    route = parse(options.pop("wheel", None))  # send_task has removed a call's own options
    for place in (options.get("queue"), options.get("exchange")):
        _check_destination(app, str(getattr(place, "name", place)), producer)
    if route.transactional is not None:
        raise TypeError(
            "wheel option transactional must be a call's (or the setting wheel_transactional), not a route's"
        )
    headers, _, body, sent_event = message
    parts = (headers, body, sent_event)  # protocol 2 has the eta in its headers, protocol 1 in its body
    if etas := [part for part in parts if isinstance(part, dict) and isinstance(part.get("eta"), WheelEta)]:
        eta = _with_jitter(etas[0]["eta"], route)
        for part in etas:  # signal handlers see plain text
            part["eta"] = str(eta)
        if not route.native or getattr(producer, "takes_native", False) is True:
            producer = DivertingProducer(app, producer, message, eta, options)
    return original(producer, name, message, **options)


def _check_destination(app: Any, name: str, producer: Any) -> None:
    """Raise DestinationError for a wheel queue, or the exchange that Celery would make for one.

    The scheduler would reject such a message, with or without a delay.
    """
    if "." not in name:
        return
    conf = Conf(app)
    if conf.enabled and is_own_name(conf.namespace, name) and is_eligible(app, None, producer):
        raise DestinationError(
            f"queue must be one that workers consume, got {name!r}, which is the wheel's own: only the scheduler reads "
            "it; nothing was sent; name the task's own queue (a delayed task reaches the wheel by itself), or choose "
            f"other names for the wheel by wheel_namespace, which is {conf.namespace!r}"
        )


def _with_jitter(eta: WheelEta, route: CallOptions) -> WheelEta:
    """Return the eta with the options of the route as well, later by a random part of the jitter, if it has any."""
    options, due = eta.options.over(route), eta.due
    if options is eta.options and not options.jitter_ms:
        return eta
    if options.jitter_ms:
        due = postpone(due, random.randint(0, options.jitter_ms))  # noqa: S311 - no secret
    return WheelEta(due, eta.created_ms, options)


class DivertingProducer:
    """Celery's producer, except for one message, which it publishes to the wheel queue.

    ``message`` is the result of ``create_task_message``, with ``eta``; ``options`` are those of ``send_task_message``.
    """

    def __init__(self, app: Any, producer: Any, message: Any, eta: WheelEta, options: dict[str, Any]) -> None:
        self._app = app
        self._producer = producer
        self._headers = message[0]
        self._eta = eta
        self._options = options
        self._envelope_id = uuid7()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        own: Any = publish.get("headers")
        if own is not self._headers:
            return self._producer.publish(body, *args, **publish)
        fields: Any = body if isinstance(body, dict) else own  # protocol 1, protocol 2
        text = fields.get("eta")
        if not text:  # a receiver of before_task_publish removed the eta
            return self._producer.publish(body, *args, **publish)
        due = self._eta.due if text == str(self._eta) else due_time_of_header(self._app, text)
        conf = Conf(self._app)
        is_transactional = self._is_transactional(str(fields["id"]))
        seal, is_one = NO_SEAL, is_transactional or isinstance(self._producer, Producer)
        if is_one:  # a bulk load checks its messages itself, and seals nothing: they share what is written
            seal = MessageSeal.of(conf, encrypts=not is_transactional)  # the store encrypts its inbox itself
        envelope = self._envelope(fields, due.eta_ms, publish, is_signed=bool(seal.signing.current))
        shard = shard_of(envelope.key, envelope.task_id, conf.shards)
        queue = queues.wheel_queue(conf.namespace, shard, conf.queue_type)
        # A copy: the memory transport keeps the dict itself, and receivers of after_task_publish see the original.
        header = own.get(HEADER)  # the task's own one, or an envelope, which a worker of a wheel queue resends
        header = None if isinstance(header, dict) and "eta_ms" in header else header
        headers = dict(own)
        if envelope.group is not None:
            headers[GROUP] = envelope.group
        if envelope.batch is not None:
            headers[BATCH] = envelope.unique
        headers[HEADER] = encode(envelope, header)
        publish.update(exchange=queues.DEFAULT_EXCHANGE, routing_key=queue.name, headers=headers)
        result: Any = None
        if is_one:
            body = queues.prepare_body(body, publish)
            self._check_size(body, publish, conf.max_message_bytes)  # as it is stored; encryption packs it before
        if seal:
            body, publish = seal.seal(body, publish, envelope.task, envelope.task_id, shard)
        if is_transactional:
            raw = queues.encode_message(queues.build_message(body, publish))
            _check_size(len(raw), conf.max_message_bytes)
            inbox_of(self._app).put_command(shard, "message", raw)
        else:
            if seal:
                self._check_size(body, publish, conf.max_message_bytes)
            publish["declare"] = queues.Undeclared(self._producer.connection, [*(publish.get("declare") or ()), queue])
            result = self._producer.publish(body, **publish)
        if "compression" in headers:  # kombu writes it while publishing, and receivers would see it there
            own["compression"] = headers["compression"]
        return result

    def _check_size(self, body: bytes, publish: dict[str, Any], most: int) -> None:
        """Raise where the scheduler would reject the message: on Redis it measures the whole message as JSON."""
        size = len(body)  # headers and properties hardly ever have more than 64 KiB
        if size * 4 // 3 + 65_536 > most and self._producer.connection.transport.driver_type == "redis":
            size = len(queues.encode_message(queues.build_message(body, publish)))
        _check_size(size, most)

    def _is_transactional(self, task_id: str) -> bool:
        option = self._eta.options.transactional
        if option is not None or not is_transactional(self._app, None):
            return bool(option)
        return not self._is_running(task_id)

    def _is_running(self, task_id: str) -> bool:
        """Whether the message is of the running task: its retry, or its replacement."""
        running = self._app.current_worker_task
        return running is not None and running.request.id == task_id

    def _envelope(self, fields: dict[str, Any], eta_ms: int, publish: dict[str, Any], *, is_signed: bool) -> Envelope:
        """Return the envelope; remove from ``publish`` what would delay or drop the message in the wheel queue."""
        options = self._eta.options
        target = resolve_destination(self._app.amqp, self._producer, publish, self._options)
        own = destinations_of(self._app)
        # Celery drops a task whose retry raises. The scheduler rejects this one with its bytes, and it can be requeued.
        may_leave = is_signed or self._is_running(str(fields["id"]))
        if why := own.refusal(target.exchange, target.routing_key, target.queue, signed=may_leave):
            remedy = (
                "add it to the list of producers and schedulers" if _SETTING in why else "name the task's own queue"
            )
            raise DestinationError(
                f"queue must be one that workers consume, but {why}: the scheduler would reject the task; nothing was "
                f"sent; {remedy}"
            )
        publish.pop("expiration", None)
        return Envelope(
            id=self._envelope_id,
            task=str(fields["task"]),
            task_id=str(fields["id"]),
            **options.admission(eta_ms, self._eta.created_ms),
            created_ms=self._eta.created_ms,
            exchange=target.exchange,
            exchange_type=target.exchange_type,
            routing_key=target.routing_key,
            queue=target.queue,
            priority=_priority(publish.pop("priority", None)),
            expires_ms=expiry_ms(self._app, fields.get("expires")),
            queue_expires_ms=target.queue_expires_ms,
            # Limits and unique hold within a shard: a group or a unique name must not have two.
            key=options.group or options.key or options.unique or options.batch,
            misfire_ms=options.misfire_ms,
            watch=None if options.watch is None else list(options.watch),
            group=options.group or None,
        )


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ArgumentError(
            f"message must be at most {most:,} bytes (wheel_max_message_bytes), got {size:,}; nothing was sent; store "
            "the data elsewhere and send its key, or raise the setting for producers and schedulers alike"
        )


def _priority(value: Any) -> int | None:
    """Return a priority as kombu's virtual transports read it; None for a value that is no number."""
    try:
        return None if value is None else max(0, min(int(value), 255))
    except (TypeError, ValueError):
        return None
