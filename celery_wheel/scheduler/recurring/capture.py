"""A producer that keeps the message of an occurrence instead of sending it.

::

    apply_entry(entry, producer) ─► apply_async ─► Celery's own sender ─► CapturingProducer.publish ─► bytes
                                                                              └ other messages (task-sent): sent

So code that patches or overrides ``Scheduler.apply_entry`` (tracing, check-ins) runs for each occurrence, and its
headers are in the message.
"""

from __future__ import annotations

import time
from typing import Any

from celery_wheel.broker.envelope import HEADER
from celery_wheel.bulk_load.message_template import Sample, Sampler
from celery_wheel.errors import RecurrenceError
from celery_wheel.producer.eta import DueTime
from celery_wheel.producer.interception import DivertingProducer, WheelEta
from celery_wheel.producer.options import CallOptions

_OPTIONS = CallOptions(transactional=False)


class CapturingProducer:
    """Passed as ``producer`` to ``apply_entry``, for one occurrence.

    Args:
        task_id: an id for the task, which stays the same when the occurrence is rendered once more.
        headers: added to those of the task.
    """

    def __init__(self, app: Any, sampler: Sampler, due: DueTime, task_id: str, headers: dict[str, Any]) -> None:
        self.task_id = task_id
        self.due_us = due.at_us  #: when the task is due, in Unix microseconds
        self._app = app
        self._sampler = sampler
        self._headers = headers
        self._eta = WheelEta(due, time.time_ns() // 1_000_000, _OPTIONS)
        self._found: list[Sample] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        headers = publish.get("headers") or {}
        fields = body if isinstance(body, dict) else headers
        if "task" not in fields:  # an event
            return self._sampler.publish(body, *args, **publish)
        self._found.append(self._captured(body, fields, {**publish, "headers": {**headers, **self._headers}}))

    def _captured(self, body: Any, fields: dict[str, Any], publish: dict[str, Any]) -> Sample:
        headers = publish["headers"]
        envelope = headers.get(HEADER)
        if isinstance(envelope, dict) and "eta_ms" in envelope:  # the entry has a countdown; the instant counts
            return self._sampler.capture(body, publish)
        fields = headers if fields is not body else fields
        eta, fields["eta"] = fields.get("eta"), str(self._eta)
        try:
            DivertingProducer(self._app, self._sampler, (headers,), self._eta, {}).publish(body, **publish)
        finally:
            fields["eta"] = eta
        return self._sampler.take()

    def raw(self) -> bytes:
        """Return the message, in the form that it has in the wheel queue. Raises RecurrenceError."""
        if len(self._found) != 1:
            raise RecurrenceError(f"apply_entry must publish one task by its producer, got {len(self._found)}")
        return self._found[0].raw
