"""The slow way: Celery's own code makes the message, and what it publishes to the wheel queue is caught.

::

    task.apply_async ─► send_task ─► as_task_v2 ─► interception ─► Catcher.publish ─► Caught(payload, envelope)
          router, signals, retry policy, everything                    └─ all else (task-sent): a real producer

The call's eta is a ``HeldEta``, so that what is due already waits in the wheel as well, and leaves from there at once.
"""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Protocol, cast

from kombu.messaging import Producer
from kombu.utils.json import JSONEncoder

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.queues import ANONYMOUS
from celery_wheel.bulk.row import Call
from celery_wheel.ids import uuid7
from celery_wheel.interception import hold


class Preparing(Protocol):
    """What is used of kombu's Producer: nothing that needs a connection."""

    def _prepare(self, body: Any, serializer: Any, *, compression: Any, headers: Any) -> tuple[bytes, str, str]: ...
    def _delivery_details(self, exchange: Any, delivery_mode: Any) -> tuple[str, int]: ...


#: kombu's serialising, compressing and defaults, without a channel.
kombu = cast("Preparing", cast(Any, Producer)(None))

#: What kombu's ``publish`` takes that is no property of the message.
_NO_PROPERTY = frozenset(
    [
        "exchange",
        "routing_key",
        "declare",
        "retry",
        "retry_policy",
        "timeout",
        "confirm_timeout",
        "mandatory",
        "immediate",
        "headers",
        "serializer",
        "compression",
        "content_type",
        "content_encoding",
        "delivery_mode",
        "priority",
        "expiration",
    ]
)


@dataclass(slots=True)
class Caught:
    """A message as it would lie in the wheel queue, in the form of kombu's virtual transports."""

    message: dict[str, Any]  #: its body is the base64 text
    embed: Any  #: what stands beside args and kwargs in a body of protocol 2
    serializer: str | None
    compression: str | None

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["headers"][HEADER]
        return found


class Catcher:
    """Stands in for the producer of a call."""

    exchange = ANONYMOUS
    routing_key = ""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._real: Any = None
        self._caught: Caught | None = None

    def send(self, call: Call) -> Caught:
        """The message of a call. Raises what Celery raises, and ValueError for one that would not wait."""
        self._caught = None
        task_id = call.task_id or uuid7()
        held = hold(call.due, time.time_ns() // 1_000_000, call.asked)
        options = {**call.options, "eta": held, "task_id": task_id, "producer": self, "add_to_parent": False}
        if call.task is None:
            self._app.send_task(call.name, call.args, call.kwargs, **options)
        else:
            call.task.apply_async(call.args, call.kwargs, **options)
        if self._caught is None:
            raise ValueError("apply_async did not publish it")
        self._forget_result(task_id)
        return self._caught

    def _forget_result(self, task_id: str) -> None:
        """Redis's result backend subscribes to each result at the call: for a million, of which few are asked for."""
        consumer: Any = getattr(self._app.backend, "result_consumer", None)
        if type(consumer).__module__ == "celery.backends.redis":
            consumer.cancel_for(task_id)

    @property
    def connection(self) -> Any:
        """The app's own, not connected: it is asked what broker it is for."""
        return self._app.amqp.producer_pool.connections.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer(), name)

    def _producer(self) -> Any:
        if self._real is None:
            self._real = self._app.amqp.producer_pool.acquire(block=True)
        return self._real

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        headers = publish.get("headers") or {}
        if isinstance(headers.get(HEADER), dict) and "eta_ms" in headers[HEADER]:
            self._caught = _caught(body, publish)
        elif "task" in headers or (isinstance(body, dict) and "task" in body):
            raise ValueError(
                "it would not wait in the wheel: its route says wheel=False, or a receiver of before_task_publish "
                "took its eta away"
            )
        else:
            return self._producer().publish(body, *args, **publish)

    def close(self) -> None:
        if self._real is not None:
            self._real.release()
            self._real = None


def _caught(body: Any, publish: dict[str, Any]) -> Caught:
    headers, compression = publish["headers"], publish.get("compression")
    encoded, content_type, content_encoding = kombu._prepare(
        body, publish.get("serializer"), compression=compression, headers=headers
    )
    _, mode = kombu._delivery_details(publish["exchange"], publish.get("delivery_mode"))
    properties = {name: value for name, value in publish.items() if name not in _NO_PROPERTY}
    message = {
        "body": base64(encoded),
        "content-encoding": content_encoding,
        "content-type": content_type,
        "headers": headers,
        "properties": {**properties, "delivery_mode": mode, "body_encoding": "base64"},
    }
    return Caught(message, body[2] if isinstance(body, tuple) else None, publish.get("serializer"), compression)


def base64(body: Any) -> str:
    """A body as it stands in a message; serialisers give text or bytes."""
    return b64encode(body.encode() if isinstance(body, str) else body).decode()


def written(caught: Caught) -> bytes:
    return JSONEncoder().encode(caught.message).encode()
