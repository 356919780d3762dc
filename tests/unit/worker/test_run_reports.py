"""The end of a run is reported once, whatever ends it; a run that goes on is not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import signals
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request, create_request_cls

from celery_wheel.store.schedule_model import OCCURRENCE
from celery_wheel.worker.run_reports import RunReports
from tests.unit.producer.conftest import app, broker, make_app

__all__ = ["app", "broker", "make_app"]

HEADER = {"schedule": "report", "id": 7, "shard": 0, "scheduled_for": 1_000, "previous": None, "report": True}


class Worker:
    """A consumer with the step, whose reports are kept here."""

    def __init__(self, app: Any) -> None:
        self.app, self.controller = app, object()
        self.reports: list[Any] = []
        self.flushed = 0
        self.step = RunReports(self)
        self.step.start(self)
        self.step._reporter = SimpleNamespace(put=self.reports.append, flush=self._flush)  # type: ignore[assignment]

    def _flush(self) -> None:
        self.flushed += 1

    def receive(self, header: Any = HEADER, **task: Any) -> Any:
        """Return a request of the class that a worker's strategy makes."""
        made = self.app.tasks["proj.touch"]
        for name, value in task.items():
            setattr(made, name, value)
        headers = {"id": "t-1", "task": "proj.touch", "retries": 0, OCCURRENCE: header}
        message = SimpleNamespace(
            headers={name: value for name, value in headers.items() if value is not None},
            body=b"[[], {}, {}]",
            payload=[[], {}, {}],
            content_type="application/json",
            content_encoding="utf-8",
            delivery_info={},
            properties={},
        )
        kind = create_request_cls(Request, made, SimpleNamespace(apply_async=None), "host", None, app=self.app)
        request = kind(message, app=self.app, task=made)
        signals.task_received.send(sender=self, request=request)
        return request


@pytest.fixture
def worker(app: Any) -> Any:
    worker = Worker(app)
    yield worker
    signals.task_received.disconnect(worker.step._received, sender=worker)
    for signal in (signals.task_unknown, signals.task_rejected):
        signal.disconnect(worker.step._refused, sender=worker)
    signals.task_revoked.disconnect(worker.step._revoked)
    signals.worker_shutdown.disconnect(worker.step._shut_down, sender=worker.controller)


def raised(error: BaseException) -> ExceptionInfo:
    try:
        raise error
    except BaseException:
        return ExceptionInfo()


ENDS: dict[str, Callable[[Any], Any]] = {
    "success": lambda request: request.on_success((False, None, 0.1)),
    "failure": lambda request: request.on_success((True, raised(ValueError("x")), 0.1)),
    "ignored": lambda request: request.on_success((True, raised(Ignore()), 0.1)),
    "rejected": lambda request: request.on_success((True, raised(Reject("x", requeue=False)), 0.1)),
    "a lost process": lambda request: request.on_failure(raised(WorkerLostError("x"))),
    "the time limit": lambda request: request.on_timeout(False, 5),
    "the time limit, which comes as an error too": lambda request: (
        request.on_timeout(False, 5),
        request.on_failure(raised(TimeLimitExceeded(5))),
    ),
    "a revoke before it runs": lambda request: request._announce_revoked("revoked", False, None, False),
    "a terminated process": lambda request: (
        request._announce_revoked("terminated", True, "15", False),
        request.on_failure(raised(WorkerLostError("x"))),
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_end_is_reported_once(worker: Worker, end: str) -> None:
    ENDS[end](worker.receive())
    assert worker.reports == [HEADER]


GOES_ON: dict[str, Callable[[Any], Any]] = {
    "a retry": lambda request: request.on_success((True, raised(Retry("x")), 0.1)),
    "a message that returns": lambda request: request.on_success((True, raised(Reject("x", requeue=True)), 0.1)),
    "a soft time limit": lambda request: request.on_timeout(True, 5),
    "a lost connection": lambda request: (
        setattr(request, "_already_cancelled", True),
        request.on_failure(raised(WorkerLostError("x"))),
    ),
}


@pytest.mark.parametrize("what", GOES_ON)
def test_a_run_that_goes_on_is_not_reported(worker: Worker, what: str) -> None:
    GOES_ON[what](worker.receive())
    assert worker.reports == []


def test_a_message_that_returns_from_a_lost_process_goes_on(worker: Worker) -> None:
    request = worker.receive(acks_late=True, reject_on_worker_lost=True)
    request.on_failure(raised(WorkerLostError("x")))
    assert worker.reports == []


def test_an_error_of_the_result_backend_hides_no_end(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    request = worker.receive()

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the backend is away")

    monkeypatch.setattr(request.task.backend, "mark_as_failure", away)
    with pytest.raises(ConnectionError):
        request.on_failure(raised(WorkerLostError("x")))
    assert worker.reports == [HEADER]


@pytest.mark.parametrize("header", [None, {**HEADER, "report": False}, "text", {"report": "yes"}])
def test_other_messages_stay_as_they_are(worker: Worker, header: Any) -> None:
    request = worker.receive(header)
    assert "on_success" not in vars(request)
    request.on_success((False, None, 0.1))
    assert worker.reports == []


def test_a_message_that_no_task_takes_is_reported(worker: Worker) -> None:
    message = SimpleNamespace(headers={OCCURRENCE: HEADER})
    signals.task_unknown.send(sender=worker, message=message, exc=None, name="x", id="1")
    signals.task_rejected.send(sender=worker, message=message, exc=None)
    signals.task_rejected.send(sender=object(), message=message, exc=None)
    assert worker.reports == [HEADER, HEADER]


def test_a_revoke_of_another_app_is_not_reported(worker: Worker, make_app: Any) -> None:
    other = make_app().tasks["proj.touch"]
    signals.task_revoked.send(sender=other, request={OCCURRENCE: HEADER}, terminated=False, signum=None, expired=False)
    assert worker.reports == []


def test_a_worker_that_ends_sends_its_last_reports(worker: Worker) -> None:
    signals.worker_shutdown.send(sender=worker.controller)
    assert worker.flushed == 1


def test_the_step_is_of_each_installed_app(app: Any) -> None:
    assert "celery_wheel.worker.run_reports:RunReports" in app.steps["consumer"]
    consumer: Any = SimpleNamespace(app=app)
    step = RunReports(consumer)
    assert step.include_if(consumer)
    app.conf.wheel_enabled = False
    assert not step.include_if(consumer)
