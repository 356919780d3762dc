"""A sample: a message of Celery's own code, captured where it would be published to the wheel queue.

::

    task.apply_async ─► send_task ─► as_task_v2 ─► interception ─► Sampler.publish ─► Sample
          router, signals, retry policy, everything                    └─ other messages (task-sent): a real producer

The call's eta is a ``WheelEta``, so that a task with a past eta passes through the wheel as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.queued_message import build_message, encode_message
from celery_wheel.broker.queues import DEFAULT_EXCHANGE
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.producer.interception import WheelEta
from celery_wheel.values.ids import uuid7


@dataclass(slots=True)
class Sample:
    """A message of the wheel queue, in the form of kombu's virtual transports."""

    message: dict[str, Any]  #: its body is the base64 text
    embed: Any  #: the third part of a body of protocol 2, after args and kwargs; None for protocol 1
    serializer: str | None
    compression: str | None

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["headers"][HEADER]
        return found

    @property
    def raw(self) -> bytes:
        return encode_message(self.message)


class Sampler:
    """Replaces the producer of a call."""

    exchange = DEFAULT_EXCHANGE
    routing_key = ""

    def __init__(self, app: Any, *, takes_native: bool = False) -> None:
        self._app = app
        #: Read by the interception: a message is for the wheel even if its route has ``wheel=False``.
        self.takes_native = takes_native
        #: Called with the queues that Celery's own producer would declare for a message.
        self.declare: Callable[[Iterable[Any]], None] | None = None
        self._real: Any = None
        self._found: Sample | None = None

    def send(self, call: TaskCall) -> Sample:
        """Return the message of a call. Raises Celery's errors, and ValueError for a message not for the wheel."""
        self._found = None
        task_id = call.task_id or call.envelope_id or uuid7()
        wheel = replace(call.wheel, key=call.key, transactional=False)  # a load commits by itself
        eta = WheelEta(call.due, time.time_ns() // 1_000_000, wheel)
        options = {**call.options, "eta": eta, "task_id": task_id, "producer": self, "add_to_parent": False}
        if call.task is None:
            self._app.send_task(call.name, call.args, call.kwargs, **options)
        else:
            call.task.apply_async(call.args, call.kwargs, **options)
        found = self.take()
        if call.envelope_id is not None:
            found.envelope["id"] = call.envelope_id
        self._forget_result(task_id)
        return found

    def take(self) -> Sample:
        """Return the message that was published last. Raises ValueError where none was."""
        found, self._found = self._found, None
        if found is None:
            raise ValueError("apply_async did not publish it")
        return found

    def _forget_result(self, task_id: str) -> None:
        """Unsubscribe Redis's result backend, which subscribes at the call, from one of perhaps a million results."""
        consumer: Any = getattr(self._app.backend, "result_consumer", None)
        if type(consumer).__module__ == "celery.backends.redis":
            consumer.cancel_for(task_id)

    @property
    def connection(self) -> Any:
        """The app's own connection, unconnected, which names the broker."""
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
            self._found = self.capture(body, publish)
        elif "task" in headers or (isinstance(body, dict) and "task" in body):
            raise ValueError(
                "the message is not for the wheel: its route has wheel=False, or a receiver of before_task_publish "
                "removed its eta"
            )
        else:
            return self._producer().publish(body, *args, **publish)

    def capture(self, body: Any, publish: dict[str, Any]) -> Sample:
        """Return a message as its sample."""
        if self.declare is not None:
            self.declare(one for one in publish.get("declare") or () if one.name != publish["routing_key"])
        embed = body[2] if isinstance(body, tuple) else None
        return Sample(build_message(body, publish), embed, publish.get("serializer"), publish.get("compression"))

    def close(self) -> None:
        if self._real is not None:
            self._real.release()
            self._real = None
