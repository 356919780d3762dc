"""The bootstep that reports the ends of runs, from a worker's main process.

::

    task_received ─ an occurrence to report ──► FollowedRun   wraps on_success, on_failure and on_timeout of the request
    task_revoked, task_unknown, task_rejected ─► reported at once: these messages have no run, or it was ended

    the run goes on   after a retry, a message that returned to its queue (reject with requeue, a lost worker with
                      reject_on_worker_lost, a cancel by a lost connection): another request is its next part

A message without the header costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps, signals

from celery_wheel.conf import Conf
from celery_wheel.producer.destination import is_eligible
from celery_wheel.store.schedule_model import OCCURRENCE
from celery_wheel.worker.reporter import Reporter


class RunReports(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """The step of a worker's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._app = consumer.app
        self._reporter: Reporter | None = None

    def include_if(self, consumer: Any) -> bool:
        """Whether the wheel serves the app: otherwise no schedule sends it messages."""
        return Conf(consumer.app).enabled and is_eligible(consumer.app, None, None)

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
        header = request.request_dict.get(OCCURRENCE)
        if _is_reported(header):
            FollowedRun(request, lambda: self._report(header))

    def _refused(self, message: Any, **_: Any) -> None:
        self._report((message.headers or {}).get(OCCURRENCE))

    def _revoked(self, sender: Any, request: Any, **_: Any) -> None:
        if getattr(sender, "app", None) is self._app:
            self._report(request.get(OCCURRENCE))

    def _report(self, header: Any) -> None:
        if _is_reported(header) and self._reporter is not None:
            self._reporter.put(header)

    def _shut_down(self, **_: Any) -> None:
        if self._reporter is not None:
            self._reporter.flush()


def _is_reported(header: Any) -> bool:
    return isinstance(header, dict) and header.get("report") is True


class FollowedRun:
    """Follows a request, and calls ``report`` once when the run is over."""

    def __init__(self, request: Any, report: Callable[[], None]) -> None:
        self._request = request
        self._report = report
        self._goes_on = False
        self._is_over = False
        for name in ("on_success", "on_failure", "on_timeout"):
            setattr(request, name, self._ending(getattr(request, name), name == "on_timeout"))
        request.on_retry = self._noting(request.on_retry, lambda *_, **__: True)
        request.reject = self._noting(request.reject, lambda requeue=False: requeue)
        if hasattr(request, "_retry_worker_lost"):
            request._retry_worker_lost = self._retrying(request._retry_worker_lost)

    def _ending(self, method: Any, may_be_soft: bool) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            try:
                return method(*args, **named)
            finally:  # also where the result backend failed
                if not may_be_soft or not (args[0] if args else named.get("soft")):
                    self._end()

        return call

    def _noting(self, method: Any, goes_on: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._goes_on |= bool(goes_on(*args, **named))
            return method(*args, **named)

        return call

    def _retrying(self, method: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            retried = method(*args, **named)
            self._goes_on |= bool(retried)
            return retried

        return call

    def _end(self) -> None:
        request = self._request
        if request._already_revoked:  # reported by its signal
            self._is_over = True
        if self._goes_on or self._is_over or getattr(request, "_already_cancelled", False):
            return
        self._is_over = True
        self._report()
