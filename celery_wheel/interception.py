"""Under Celery's own sender: the one message that is to wait is published to the wheel queue instead.

::

    send_task ── eta=HeldEta ──► create_task_message ──► send_task_message (here)
                                                            │  tells the message its eta in plain text
                                                            ▼
                          Celery's own sender: routing, signals, retry policy, task-sent
                                                            │
                                     producer.publish ──► DivertingProducer (here)
                                                            ├─ this message: wheel queue, with an envelope
                                                            │    or, transactional, the store's inbox
                                                            └─ all else (task-sent): as it is

1. ``HeldEta`` is text to the message and False to ``if eta``: so Celery's native delayed delivery, which asks that,
   is never entered, and if nobody diverts the message (a sender that was set by hand), it still has its eta: the
   worker holds it, as without the wheel. It can be late by our mistake, never early.
2. The original sender runs unchanged, so signals and ``task-sent`` name the true destination, and what their
   receivers change in headers and properties counts; the eta, too.
3. A message is known by the identity of its headers. What a signal handler sends on its own is another message.
4. The envelope's id is made once a call: publishing again after a lost connection is the same message.
5. A wheel queue is no destination: what names one raises here, before anything is declared or told to receivers.
6. With ``wheel_transactional`` what carries the id of the task that runs (its retry, its replacement) is no part of the
   task's transaction: Celery leaves the task by raising, which rolls that back, and the retry would be gone with it.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from kombu.utils.objects import cached_property

from celery_wheel import eta as etas
from celery_wheel.broker.envelope import HEADER, Envelope, encode
from celery_wheel.broker.names import is_own_name, shard_of
from celery_wheel.broker.queues import ANONYMOUS, wheel_queue
from celery_wheel.broker.raw import raw, written
from celery_wheel.conf import Conf
from celery_wheel.destination import resolve
from celery_wheel.errors import DestinationError
from celery_wheel.ids import uuid7
from celery_wheel.options import CallOptions, parse
from celery_wheel.reach import reaches
from celery_wheel.transaction import inbox_of, wanted


class HeldEta(str):
    """An eta that is text, and False: Celery carries it and does not look at it."""

    __slots__ = ("asked", "at_us", "created_ms", "eta_ms")
    at_us: int
    eta_ms: int
    created_ms: int
    asked: CallOptions

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # wherever it may be pickled, the reader need not have celery-wheel


def hold(due: etas.Due, created_ms: int, asked: CallOptions) -> HeldEta:
    held = HeldEta(due.text)
    held.at_us, held.eta_ms = due.at_us, due.eta_ms
    held.created_ms, held.asked = created_ms, asked
    return held


class WheelAMQP:
    """Mixed into an app's AMQP class: the sender that it makes diverts what is held.

    As in Celery, the sender is an attribute: whoever sets another, or patches it, has exactly that one until it is
    deleted.
    """

    app: Any

    @cached_property
    def send_task_message(self) -> Any:
        return diverting(self.app, super().send_task_message)  # type: ignore[misc]  # Celery's, also cached


def diverting(app: Any, sender: Any) -> Any:
    """A sender that diverts what is held, and otherwise does what the given one does."""
    return partial(_send_task_message, app, sender)


def undiverted(sender: Any) -> Any:
    """What ``diverting`` was given; any other sender as it is."""
    return sender.args[1] if isinstance(sender, partial) and sender.func is _send_task_message else sender


def _send_task_message(app: Any, original: Any, producer: Any, name: str, message: Any, **options: Any) -> Any:
    asked = parse(options.pop("wheel", None))  # from a route: calls have theirs taken out by send_task
    for place in (options.get("queue"), options.get("exchange")):
        _check_place(app, str(getattr(place, "name", place)), producer)
    held = _held(message)
    if asked.transactional is not None:
        raise TypeError(
            "wheel option transactional must be a call's (or the setting wheel_transactional), not a route's"
        )
    if held is not None:
        held = _put_off(held, held.asked.over(asked))
        _reveal(message, held)
    if held is None or asked.native:
        return original(producer, name, message, **options)
    return original(DivertingProducer(app, producer, message, held, options), name, message, **options)


def _check_place(app: Any, name: str, producer: Any) -> None:
    """Raise DestinationError for a wheel queue, or the exchange that Celery would make for one.

    The scheduler would reject such a message, with or without a delay.
    """
    if "." not in name:
        return
    conf = Conf(app)
    if conf.enabled and is_own_name(conf.namespace, name) and reaches(app, None, producer):
        raise DestinationError(
            f"queue must be one that workers consume, got {name!r}, which is the wheel's own: only the scheduler reads "
            "it; nothing was sent; name the task's own queue (a delayed task comes to the wheel by itself), or give "
            f"the wheel other names by wheel_namespace, which is {conf.namespace!r}"
        )


def _places(message: Any) -> list[dict[str, Any]]:
    """Where a message has its HeldEta: protocol 2 in the headers, protocol 1 in the body; and the event."""
    headers, _, body, sent_event = message
    parts = (headers, body, sent_event)
    return [one for one in parts if isinstance(one, dict) and isinstance(one.get("eta"), HeldEta)]


def _held(message: Any) -> HeldEta | None:
    return next((place["eta"] for place in _places(message)), None)


def _reveal(message: Any, held: HeldEta) -> None:
    """Plain text, wherever a signal handler could see it."""
    for place in _places(message):
        place["eta"] = str(held)


def _put_off(held: HeldEta, asked: CallOptions) -> HeldEta:
    """With what a route asks for too; and later by a part of the jitter, if there is any."""
    due = etas.Due(str(held), held.at_us)
    if asked.jitter_ms:
        due = etas.later(due, random.randint(0, asked.jitter_ms))  # noqa: S311 - no secret
    return hold(due, held.created_ms, asked)


class DivertingProducer:
    """Celery's producer, but for the one message."""

    def __init__(self, app: Any, producer: Any, message: Any, held: HeldEta, options: dict[str, Any]) -> None:
        self._app = app
        self._producer = producer
        self._headers = message[0]
        self._held = held
        self._options = options
        self._envelope_id = uuid7()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        own: Any = publish.get("headers")
        if own is not self._headers:
            return self._producer.publish(body, *args, **publish)
        says: Any = body if isinstance(body, dict) else own  # protocol 1, protocol 2
        eta_ms = self._eta_ms(says.get("eta"))
        if eta_ms is None:  # a receiver of before_task_publish took the eta away
            return self._producer.publish(body, *args, **publish)
        conf = Conf(self._app)
        envelope = self._envelope(says, eta_ms, publish)
        shard = shard_of(envelope.key, envelope.task_id, conf.shards)
        queue = wheel_queue(conf.namespace, shard)
        # A copy: the memory transport keeps the dict itself, and receivers of after_task_publish see the original.
        headers = {**own, HEADER: encode(envelope, _own(own.get(HEADER)))}
        publish.update(exchange=ANONYMOUS, routing_key=queue.name, headers=headers)
        result: Any = None
        if self._is_transactional(envelope.task_id):
            inbox_of(self._app).ask(shard, "message", written(raw(body, publish)))
        else:
            publish["declare"] = [*(publish.get("declare") or ()), queue]
            result = self._producer.publish(body, **publish)
        if "compression" in headers:  # kombu writes it while publishing, and receivers would see it there
            own["compression"] = headers["compression"]
        return result

    def _is_transactional(self, task_id: str) -> bool:
        asked = self._held.asked.transactional
        if asked is not None or not wanted(self._app, None):
            return bool(asked)
        running = self._app.current_worker_task
        return running is None or running.request.id != task_id

    def _eta_ms(self, text: Any) -> int | None:
        if text == str(self._held):
            return self._held.eta_ms
        return etas.due_of_header(self._app, text).eta_ms if text else None

    def _envelope(self, says: dict[str, Any], eta_ms: int, publish: dict[str, Any]) -> Envelope:
        """What is taken out of ``publish`` here would delay or drop the message in the wheel queue."""
        asked = self._held.asked
        target = resolve(self._app.amqp, self._producer, publish, self._options)
        publish.pop("expiration", None)
        return Envelope(
            id=self._envelope_id,
            task=str(says["task"]),
            task_id=str(says["id"]),
            eta_ms=eta_ms,
            created_ms=self._held.created_ms,
            exchange=target.exchange,
            exchange_type=target.exchange_type,
            routing_key=target.routing_key,
            queue=target.queue,
            priority=_priority(publish.pop("priority", None)),
            expires_ms=etas.expires_ms(self._app, says.get("expires")),
            queue_expires_ms=target.queue_expires_ms,
            key=asked.key or asked.unique,  # the only one of its shard is the only one
            misfire_ms=asked.misfire_ms,
            watch=None if asked.watch is None else list(asked.watch),
            unique=asked.unique,
            on_conflict=asked.on_conflict,
        )


def _priority(value: Any) -> int | None:
    """As kombu's virtual transports read it: what is no number is none."""
    try:
        return None if value is None else max(0, min(int(value), 255))
    except (TypeError, ValueError):
        return None


def _own(value: Any) -> Any:
    """A header called ``wheel`` of the task's own; but an envelope that a misdirected worker resends is not one."""
    return None if isinstance(value, dict) and "eta_ms" in value else value
