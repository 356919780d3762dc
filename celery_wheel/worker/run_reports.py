"""The bootsteps of a worker: one reports the ends of runs, one tells monitoring when a delayed task was dispatched.

A report is kept in memory, and a thread publishes it to the wheel queue of the run's shard, confirmed; without an
answer once more after a pause, up to RETRY_MOST_S. The time of dispatch becomes the eta of the event task-received, and
the time in Sentry's header.

::

    header of the message                          returned to its queue   retried    over
    wheel_run    of a schedule that needs the end  goes on                 goes on    reported
    wheel_slot   of a group with a limit           goes on                 reported   reported

Celery copies both headers to a retry. The first one has the id of the first message of the run. A retry is published
with a ``wheel_slot`` of its own, or without a group, with that of the message before it, which is reported again.

Promises: a run that goes on is never reported; a report that the broker has confirmed is not lost, and may come twice.
Non-promises: a report is lost with its worker. Then the run counts as over when its ``max_runtime`` has passed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celery import bootsteps, signals

from celery_wheel.broker.envelope import HEADER, Envelope, encode
from celery_wheel.conf import Conf
from celery_wheel.producer.destination import is_eligible
from celery_wheel.producer.rescue import Forwarder, ReceivedMessage
from celery_wheel.store.model import SHARD_BITS
from celery_wheel.store.schedule_model import RUN, RUN_ENDED_TASK, SLOT, RunReport, is_run_id
from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.values.ids import dispatched_ms, uuid7
from celery_wheel.values.instants import now_ms, utc
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Reports kept while the broker does not answer.
MAX_KEPT = 10_000

RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0

#: The longest time for which a worker that ends waits for its last reports.
FLUSH_S = 5.0

MEANING = (
    "such a run counts as over when its max_runtime has passed; until then its schedule waits or skips, and its group "
    "has one slot less"
)


class Reporter:
    def __init__(self, app: Any) -> None:
        self._forwarder = Forwarder(app)
        self._shards = Conf(app).shards
        self._kept: deque[RunReport] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._log = RetryLog(logger, time.monotonic)
        self._thread: threading.Thread | None = None

    def put(self, report: RunReport) -> None:
        """Report the end of a run."""
        with self._changed:
            if len(self._kept) >= MAX_KEPT:
                lost = self._kept.popleft()
                self._log.write(
                    logging.ERROR,
                    "report_lost",
                    "the end of run %d cannot be reported: the broker does not answer, and %d reports wait; %s",
                    lost.run,
                    MAX_KEPT,
                    MEANING,
                )
            self._kept.append(report)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wheel-reports", daemon=True)
                self._thread.start()
            self._changed.notify()

    def flush(self) -> None:
        """Send the kept reports, and end the thread; waits for FLUSH_S at most."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(FLUSH_S)
        if self._kept:
            logger.error(
                "the ends of %d runs were not reported before the worker ended; %s",
                len(self._kept),
                MEANING,
                extra={"action": "reports_lost", "count": len(self._kept)},
            )

    def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            with self._changed:
                while not self._kept and not self._ending:
                    self._changed.wait()
                if not self._kept:
                    break
                report = self._kept[0]
            try:
                # After a resharding, any shard does whose queue is read: its holder knows the run's.
                shard = (report.run & (1 << SHARD_BITS) - 1) % self._shards
                self._forwarder.publish(message_of(report), shard)
            except Exception as error:  # each transport has its own classes
                pause_s = backoff.failed()
                self._log.write(
                    logging.WARNING,
                    "report_failed",
                    "the end of run %d is not reported yet (%r); it is tried again in %.1f s",
                    report.run,
                    error,
                    pause_s,
                )
                with self._changed:
                    self._changed.wait(pause_s)
                continue
            backoff.succeeded()
            with self._changed:
                if self._kept and self._kept[0] is report:
                    self._kept.popleft()
        self._forwarder.drop()


def reports_of(headers: Any, *, retried: bool = False) -> list[RunReport]:
    """Return the reports of the end of a message, or of its retry; a header that no scheduler wrote has none."""
    ids = ((name, headers.get(name)) for name in ((SLOT,) if retried else (RUN, SLOT)))
    return [RunReport(id_, name == SLOT) for name, id_ in ids if is_run_id(id_)]


def message_of(report: RunReport) -> ReceivedMessage:
    """Return the message that reports the end of a run; its body is that of an inbox item ``run_ended``."""
    at_ms = now_ms()
    envelope = Envelope(
        id=uuid7(),
        task=RUN_ENDED_TASK,
        task_id=str(report.run),
        eta_ms=at_ms,
        created_ms=at_ms,
        exchange="",
        exchange_type="direct",
        routing_key=RUN_ENDED_TASK,  # a place for a name: no scheduler publishes the message
    )
    headers = {HEADER: encode(envelope)}
    return ReceivedMessage(envelope, headers, {}, report.payload, "application/json", "utf-8", None)


class _Step(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return Conf(consumer.app).enabled and is_eligible(consumer.app, None, None)


class RunReports(_Step):
    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._app = consumer.app
        self._reporter: Reporter | None = None

    def start(self, consumer: Any) -> None:
        if self._reporter is not None:  # the worker has reconnected
            return
        self._reporter = Reporter(consumer.app)
        signals.task_received.connect(self._received, sender=consumer, weak=False)
        signals.task_unknown.connect(self._refused, sender=consumer, weak=False)
        signals.task_rejected.connect(self._refused, sender=consumer, weak=False)
        signals.task_revoked.connect(self._revoked, weak=False)
        # Tasks that run at a warm shutdown end after the consumer.
        signals.worker_shutdown.connect(self._shut_down, sender=consumer.controller, weak=False)

    def _received(self, request: Any, **_: Any) -> None:
        headers = request.request_dict
        if reports_of(headers):
            FollowedRun(request, lambda retried: self._report(reports_of(headers, retried=retried)))

    def _refused(self, message: Any, **_: Any) -> None:
        self._report(reports_of(message.headers or {}))

    def _revoked(self, sender: Any, request: Any, **_: Any) -> None:
        if getattr(sender, "app", None) is self._app:
            self._report(reports_of(request))

    def _report(self, reports: Iterable[RunReport]) -> None:
        if self._reporter is not None:
            for report in reports:
                self._reporter.put(report)

    def _shut_down(self, **_: Any) -> None:
        if self._reporter is not None:
            self._reporter.flush()


class FollowedRun:
    """Follows a request, and calls ``report`` once when it is over, with whether a retry follows it."""

    def __init__(self, request: Any, report: Callable[[bool], None]) -> None:
        self._request = request
        self._report = report
        self._returns = False  #: the message is in its queue again
        self._retried = False
        self._is_over = False
        for name in ("on_success", "on_failure", "on_timeout"):
            setattr(request, name, self._ending(getattr(request, name), name == "on_timeout"))
        request.reject = self._rejecting(request.reject)
        request.on_retry = self._retrying(request.on_retry)
        if hasattr(request, "_retry_worker_lost"):
            request._retry_worker_lost = self._perhaps_retrying(request._retry_worker_lost)

    def _ending(self, method: Any, may_be_soft: bool) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            try:
                return method(*args, **named)
            finally:  # also where the result backend failed
                if not may_be_soft or not (args[0] if args else named.get("soft")):
                    self._end()

        return call

    def _rejecting(self, method: Any) -> Callable[..., Any]:
        def call(requeue: bool = False) -> Any:
            self._returns |= requeue
            return method(requeue=requeue)

        return call

    def _retrying(self, method: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._retried = True
            return method(*args, **named)

        return call

    def _perhaps_retrying(self, method: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            retried = method(*args, **named)
            self._retried |= bool(retried)
            return retried

        return call

    def _end(self) -> None:
        request = self._request
        if request._already_revoked:  # reported by its signal
            self._is_over = True
        if self._returns or self._is_over or getattr(request, "_already_cancelled", False):
            return
        self._is_over = True
        self._report(self._retried)


#: The time in seconds from which sentry_sdk counts the latency of a queue.
SENTRY_ENQUEUED = "sentry-task-enqueued-time"


class PastEta(str):
    """An eta that is shown, and for which no worker waits."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def isoformat(self) -> str:
        return str(self)


class DispatchTimes(_Step):
    def start(self, consumer: Any) -> None:
        """Connect the receiver; a second call, after the worker has reconnected, changes nothing."""
        signals.task_received.connect(pass_dispatch_time, sender=consumer, weak=False)


def pass_dispatch_time(request: Any, **_: Any) -> None:
    """Put the time of dispatch where monitoring looks for it; a message that was not delayed stays as it is."""
    properties = request.message.properties or {}
    found = (dispatched_ms(properties.get(name)) for name in ("message_id", "delivery_tag"))
    at_ms = next((ms for ms in found if ms is not None), None)
    if at_ms is None:
        return
    if request.eta is None:
        request._eta = PastEta(utc(at_ms).isoformat())
    headers = request.request_dict.get("headers")
    if isinstance(headers, dict) and SENTRY_ENQUEUED in headers:
        headers[SENTRY_ENQUEUED] = at_ms / 1_000
