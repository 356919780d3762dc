"""A sample: a message that Celery's own code makes, and that is caught where it would be published to the wheel queue.

::

    task.apply_async ─► send_task ─► as_task_v2 ─► interception ─► Sampler.publish ─► Sample
          router, signals, retry policy, everything                    └─ all else (task-sent): a real producer

The call's eta is a ``HeldEta``, so that a task which is due already waits in the wheel as well, and leaves at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.queues import ANONYMOUS
from celery_wheel.broker.raw import raw, written
from celery_wheel.bulk.row import Call
from celery_wheel.ids import uuid7
from celery_wheel.interception import hold


@dataclass(slots=True)
class Sample:
    """A message as it would lie in the wheel queue, in the form of kombu's virtual transports."""

    message: dict[str, Any]  #: its body is the base64 text
    embed: Any  #: what stands beside args and kwargs in a body of protocol 2; None for protocol 1
    serializer: str | None
    compression: str | None

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["headers"][HEADER]
        return found

    @property
    def raw(self) -> bytes:
        return written(self.message)


class Sampler:
    """Stands in for the producer of a call."""

    exchange = ANONYMOUS
    routing_key = ""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._real: Any = None
        self._found: Sample | None = None

    def send(self, call: Call) -> Sample:
        """The message of a call. Raises what Celery raises, and ValueError for one that would not wait."""
        self._found = None
        task_id = call.task_id or call.envelope_id or uuid7()
        asked = replace(call.asked, key=call.key, transactional=False)  # a load has commits of its own
        held = hold(call.due, time.time_ns() // 1_000_000, asked)
        options = {**call.options, "eta": held, "task_id": task_id, "producer": self, "add_to_parent": False}
        if call.task is None:
            self._app.send_task(call.name, call.args, call.kwargs, **options)
        else:
            call.task.apply_async(call.args, call.kwargs, **options)
        if self._found is None:
            raise ValueError("apply_async did not publish it")
        if call.envelope_id is not None:
            self._found.envelope["id"] = call.envelope_id
        self._forget_result(task_id)
        return self._found

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
            embed = body[2] if isinstance(body, tuple) else None
            self._found = Sample(raw(body, publish), embed, publish.get("serializer"), publish.get("compression"))
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
