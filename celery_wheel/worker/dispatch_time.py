"""The bootstep that tells monitoring when a delayed task was dispatched, so that the wait in its queue begins there.

::

    task_received ─ the message has a dispatch id ─┬─► event task-received   eta: the time of dispatch
                                                   └─► Sentry's header       the time of dispatch

celery-exporter and others count the wait from the later of the event ``task-sent`` and the eta. A dispatched message
has no eta, so they would count the whole delay. No worker acts upon the eta of the event: it is a text that is false,
so Celery passes it on and delays nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery import bootsteps, signals

from celery_wheel.conf import Conf
from celery_wheel.producer.destination import is_eligible
from celery_wheel.values.ids import dispatched_ms

#: The properties that may have a dispatch id.
PROPERTIES = ("message_id", "delivery_tag")

#: The time in seconds from which sentry_sdk counts the latency of a queue.
SENTRY_ENQUEUED = "sentry-task-enqueued-time"


class PastEta(str):
    """An eta that is shown, and for which no worker waits."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def isoformat(self) -> str:
        return str(self)


class DispatchTimes(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """The step of a worker's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return Conf(consumer.app).enabled and is_eligible(consumer.app, None, None)

    def start(self, consumer: Any) -> None:
        """Connect the receiver; a second call, after the worker has reconnected, changes nothing."""
        signals.task_received.connect(pass_dispatch_time, sender=consumer, weak=False)


def pass_dispatch_time(request: Any, **_: Any) -> None:
    """Put the time of dispatch where monitoring looks for it; a message that was not delayed stays as it is."""
    properties = request.message.properties or {}
    found = (dispatched_ms(properties.get(name)) for name in PROPERTIES)
    at_ms = next((ms for ms in found if ms is not None), None)
    if at_ms is None:
        return
    if request.eta is None:
        request._eta = PastEta(datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat())
    headers = request.request_dict.get("headers")
    if isinstance(headers, dict) and SENTRY_ENQUEUED in headers:
        headers[SENTRY_ENQUEUED] = at_ms / 1_000
