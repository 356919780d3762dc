"""A task reads its occurrence; the end of its run is reported once; monitoring learns the time of dispatch."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import celery
import pytest
from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request, create_request_cls
from kombu.message import Message

from celery_wheel.engine.intake.inbox import RunEnded, run_ended
from celery_wheel.store.model import SHARD_BITS, Unreadable
from celery_wheel.store.schedule_model import OCCURRENCE, RUN, RUN_ENDED_TASK, SLOT, RunReport
from celery_wheel.values.ids import dispatch_ids
from celery_wheel.worker import CurrentOccurrence
from celery_wheel.worker import run_reports as reporter_module
from celery_wheel.worker.run_reports import SENTRY_ENQUEUED, Reporter, RunReports, pass_dispatch_time
from tests.kit.patience import wait_until
from tests.unit.producer.conftest import app, broker, make_app
from tests.unit.producer.memory_broker import Broker

__all__ = ["app", "broker", "make_app"]

HEADER = {"schedule": "report", "id": 7, "shard": 0, "scheduled_for": 1_000, "previous": None}

#: The headers of a message, and the reports of its end, and of its retry.
OF_SCHEDULE = {OCCURRENCE: HEADER, RUN: 7}
OF_GROUP = {SLOT: 8}
OF_BOTH = {**OF_SCHEDULE, SLOT: 7}
RETRIED_IN_A_GROUP = {**OF_SCHEDULE, SLOT: 9}
REPORTS = [
    (OF_SCHEDULE, [RunReport(7)], []),
    (OF_GROUP, [RunReport(8, True)], [RunReport(8, True)]),
    (OF_BOTH, [RunReport(7), RunReport(7, True)], [RunReport(7, True)]),
    (RETRIED_IN_A_GROUP, [RunReport(7), RunReport(9, True)], [RunReport(9, True)]),
]
NAMES = ["a schedule", "a group", "a schedule and a group", "a retry of a schedule in a group"]


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

    def receive(self, own: Any, **task: Any) -> Any:
        """Return a request of the class that a worker's strategy makes."""
        made = self.app.tasks["proj.touch"]
        for name, value in task.items():
            setattr(made, name, value)
        message = SimpleNamespace(
            headers={"id": "t-1", "task": "proj.touch", "retries": 0, **own},
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


@pytest.mark.parametrize(("own", "reports", "_"), REPORTS, ids=NAMES)
@pytest.mark.parametrize("end", ENDS)
def test_each_end_is_reported_once(worker: Worker, end: str, own: Any, reports: Any, _: Any) -> None:
    ENDS[end](worker.receive(own))
    assert worker.reports == reports


@pytest.mark.parametrize(("own", "_", "reports"), REPORTS, ids=NAMES)
def test_a_retry_ends_the_slot_of_a_group_and_no_run_of_a_schedule(
    worker: Worker, own: Any, _: Any, reports: Any
) -> None:
    worker.receive(own).on_success((True, raised(Retry("x")), 0.1))
    assert worker.reports == reports


@pytest.mark.parametrize(("own", "over", "retried"), REPORTS, ids=NAMES)
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_task_whose_process_was_lost_may_be_retried_by_its_worker(
    worker: Worker, own: Any, over: Any, retried: Any, is_sent: bool
) -> None:
    request = worker.receive(own, retry_on_worker_lost=True)
    if not hasattr(request, "_retry_worker_lost"):
        pytest.skip("this Celery does not retry such a task")
    sent = mock.Mock(side_effect=None if is_sent else ConnectionError("the broker is away"))
    with mock.patch.object(request.task, "signature_from_request", return_value=SimpleNamespace(apply_async=sent)):
        request.on_failure(raised(WorkerLostError("x")))
    assert sent.called
    assert worker.reports == (retried if is_sent else over)


def test_a_retry_has_the_headers_of_its_message() -> None:
    """Celery itself copies them: the first run of a schedule is named by all of its retries."""
    options = Context({**RETRIED_IN_A_GROUP, "id": "t-1", "retries": 1}).as_execution_options()
    assert options["headers"] == RETRIED_IN_A_GROUP


GOES_ON: dict[str, Callable[[Any], Any]] = {
    "a message that returns": lambda request: request.on_success((True, raised(Reject("x", requeue=True)), 0.1)),
    "a soft time limit": lambda request: request.on_timeout(True, 5),
    "a lost connection": lambda request: (
        setattr(request, "_already_cancelled", True),
        request.on_failure(raised(WorkerLostError("x"))),
    ),
}


@pytest.mark.parametrize("what", GOES_ON)
def test_a_run_that_goes_on_is_not_reported(worker: Worker, what: str) -> None:
    GOES_ON[what](worker.receive(OF_BOTH))
    assert worker.reports == []


def test_a_message_that_returns_from_a_lost_process_goes_on(worker: Worker) -> None:
    worker.receive(OF_BOTH, acks_late=True, reject_on_worker_lost=True).on_failure(raised(WorkerLostError("x")))
    assert worker.reports == []


def test_an_error_of_the_result_backend_hides_no_end(worker: Worker) -> None:
    request = worker.receive(OF_SCHEDULE)
    away = mock.patch.object(request.task.backend, "mark_as_failure", side_effect=ConnectionError("it is away"))
    with away, pytest.raises(ConnectionError):
        request.on_failure(raised(WorkerLostError("x")))
    assert worker.reports == [RunReport(7)]


@pytest.mark.parametrize("value", [None, "7", True, -1, 7.0, 2**63, [7], {"run": 7}])
@pytest.mark.parametrize("name", [RUN, SLOT])
def test_a_header_that_no_scheduler_wrote_is_ignored(worker: Worker, name: str, value: Any) -> None:
    request = worker.receive({OCCURRENCE: HEADER, name: value})
    assert "on_success" not in vars(request)
    request.on_success((False, None, 0.1))
    assert worker.reports == []


def test_a_message_that_no_task_takes_is_reported(worker: Worker) -> None:
    message = SimpleNamespace(headers=OF_BOTH)
    signals.task_unknown.send(sender=worker, message=message, exc=None, name="x", id="1")
    signals.task_rejected.send(sender=worker, message=message, exc=None)
    signals.task_rejected.send(sender=object(), message=message, exc=None)
    signals.task_rejected.send(sender=worker, message=SimpleNamespace(headers=None), exc=None)
    assert worker.reports == [RunReport(7), RunReport(7, True)] * 2


def test_a_revoke_of_another_app_is_not_reported(worker: Worker, make_app: Any) -> None:
    other = make_app().tasks["proj.touch"]
    signals.task_revoked.send(sender=other, request=OF_BOTH, terminated=False, signum=None, expired=False)
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


@pytest.mark.parametrize("report", [RunReport(5 << SHARD_BITS | 9), RunReport(5 << SHARD_BITS | 9, True)])
@pytest.mark.parametrize(("shards", "shard"), [(16, 9), (4, 1)])
def test_a_report_is_a_message_of_the_runs_shard(
    make_app: Any, broker: Broker, report: RunReport, shards: int, shard: int
) -> None:
    """A shard that a resharding has removed since then has a queue that nobody reads."""
    reporter = Reporter(make_app(wheel_shards=shards))
    reporter.put(report)
    reporter.flush()
    [message] = broker.waiting(shard)
    assert message.task == RUN_ENDED_TASK
    assert run_ended(message) == RunEnded(None, *report)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"schedule": 1}', b'{"run": "1"}', b'{"slot": true}', b"[" * 99_999]
)
def test_a_report_that_was_changed_is_unreadable(app: Any, broker: Broker, body: bytes) -> None:
    reporter = Reporter(app)
    reporter.put(RunReport(7))
    reporter.flush()
    [message] = broker.waiting()
    message.body = body
    found = run_ended(message)
    assert isinstance(found, Unreadable)
    assert (found.envelope_id, found.raw) == (message.envelope_id, body)
    assert found.reason.startswith("the end of a run cannot be read")


@pytest.fixture
def failing(app: Any, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the next publications raise."""
    errors: list[Exception] = []
    publish = reporter_module.Forwarder.publish

    def failing(self: Any, received: Any, shard: int) -> None:
        if errors:
            raise errors.pop()
        publish(self, received, shard)

    monkeypatch.setattr(reporter_module.Forwarder, "publish", failing)
    monkeypatch.setattr(reporter_module, "RETRY_FIRST_S", 0.01)
    return errors


def test_a_report_is_tried_again_until_the_broker_answers(
    app: Any, broker: Broker, failing: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    failing += [ConnectionError("away"), ConnectionError("away")]
    reporter = Reporter(app)
    with caplog.at_level(logging.WARNING):
        reporter.put(RunReport(7))
        wait_until(lambda: not reporter._kept, "the report is sent")
    reporter.flush()
    assert len(broker.waiting()) == 1
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("the end of run 7 is not reported yet"), "once a minute"


def test_the_log_says_what_a_lost_report_means(
    app: Any, failing: list[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "FLUSH_S", 0.05)
    monkeypatch.setattr(reporter_module, "RETRY_FIRST_S", 5)
    monkeypatch.setattr(reporter_module, "MAX_KEPT", 2)
    failing += [ConnectionError("away")] * 100
    reporter = Reporter(app)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            reporter.put(RunReport(7))
        reporter.flush()
    with reporter._changed:  # no later test gets these reports
        reporter._kept.clear()
        reporter._changed.notify()
    assert reporter._thread is not None
    reporter._thread.join()
    assert len(caplog.records) == 2
    assert all("counts as over when its max_runtime has passed" in one.getMessage() for one in caplog.records)


pytestmark = pytest.mark.usefixtures("app")


def test_a_request_has_the_occurrence_of_its_header() -> None:
    request = Context({OCCURRENCE: {**HEADER, "previous": 500}, "retries": 2})
    first, second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert request.wheel == CurrentOccurrence("report", first, second, 3)
    assert Context({OCCURRENCE: HEADER}).wheel == CurrentOccurrence("report", first, None, 1)


@pytest.mark.parametrize(
    "header", ["text", 5, {}, {"schedule": "a"}, {**HEADER, "scheduled_for": "soon"}, {**HEADER, "previous": 10**30}]
)
def test_a_header_that_no_scheduler_wrote_is_no_occurrence(header: Any) -> None:
    assert Context({OCCURRENCE: header}).wheel is None


def test_other_requests_have_none(app: Any) -> None:
    @app.task(bind=True)
    def see(self: Any) -> Any:
        return self.request.wheel

    assert see() is None
    assert see.apply().get() is None
    assert Context().get("wheel", "default") is None


def test_a_request_is_otherwise_as_before() -> None:
    request = Context({OCCURRENCE: HEADER, "tenant": "acme", "wheel": "own"})
    assert request.headers == {OCCURRENCE: HEADER, "tenant": "acme", "wheel": "own"}, "a retry keeps them"
    assert request.wheel == "own"
    with pytest.raises(AttributeError, match="'Context' object has no attribute 'wheels'"):
        _ = request.wheels


DISPATCHED_MS = 1_800_000_000_123
DISPATCHED = datetime.fromtimestamp(DISPATCHED_MS / 1_000, UTC).isoformat()
OWN_TAG = "0e4b6f43-8a1b-4c1c-a7cf-2bb1ec5a2b3e"
TAG = next(dispatch_ids(DISPATCHED_MS)).decode()


@pytest.fixture
def plain() -> Any:
    app = celery.Celery("proj", set_as_current=False)

    @app.task(name="note", shared=False)
    def note() -> None: ...

    return app


def request_of(app: Any, eta: str | None = None, headers: Any = None, **properties: Any) -> Request:
    own = {"id": "a", "task": "note", "eta": eta, "headers": headers, "lang": "py"}
    message = Message(  # type: ignore[no-untyped-call]
        body=json.dumps([[], {}, {}]), headers=own, properties=properties, content_type="application/json"
    )
    return Request(message, app=app, task=app.tasks["note"], headers=own, decoded=True, body=([], {}, {}))


@pytest.mark.parametrize("name", ["delivery_tag", "message_id"])
def test_the_event_shows_the_time_of_dispatch_as_eta_and_the_worker_delays_nothing(plain: Any, name: str) -> None:
    request = request_of(plain, **{"delivery_tag": OWN_TAG, name: TAG})
    pass_dispatch_time(request)
    assert not request.eta
    assert json.loads(json.dumps(request.eta and request.eta.isoformat())) == DISPATCHED
    assert request.eta.isoformat() == DISPATCHED
    assert request.request_dict["eta"] is None


def test_the_latency_of_sentry_begins_at_the_dispatch(plain: Any) -> None:
    headers = {SENTRY_ENQUEUED: 17.5, "own": 1}
    pass_dispatch_time(request_of(plain, headers=headers, delivery_tag=TAG))
    assert headers == {SENTRY_ENQUEUED: DISPATCHED_MS / 1_000, "own": 1}
    without: dict[str, Any] = {"own": 1}
    pass_dispatch_time(request_of(plain, headers=without, delivery_tag=TAG))
    assert without == {"own": 1}


def test_a_message_that_was_not_delayed_stays_as_it_is(plain: Any) -> None:
    headers = {SENTRY_ENQUEUED: 17.5}
    request = request_of(plain, headers=headers, delivery_tag=OWN_TAG)
    pass_dispatch_time(request)
    assert (request.eta, headers) == (None, {SENTRY_ENQUEUED: 17.5})


def test_an_eta_of_the_message_itself_stays(plain: Any) -> None:
    """With ``wheel_keep_eta`` the task reads its own eta."""
    request = request_of(plain, eta="2027-01-15T08:00:00+00:00", delivery_tag=TAG)
    pass_dispatch_time(request)
    assert request.eta.isoformat() == "2027-01-15T08:00:00+00:00"
    assert request.eta
