"""Reports reach the wheel queue of the schedule's shard, in the form that the engine reads."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.engine.intake.inbox import RunEnded, run_ended
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from celery_wheel.worker import run_reports as reporter_module
from celery_wheel.worker.run_reports import Reporter
from tests.kit.patience import wait_until
from tests.unit.producer.conftest import app, broker, make_app
from tests.unit.producer.memory_broker import Broker
from tests.unit.worker.test_run_reports import HEADER

__all__ = ["app", "broker", "make_app"]


def test_a_report_is_a_message_of_the_schedules_shard(make_app: Any, broker: Broker) -> None:
    reporter = Reporter(make_app(wheel_shards=16))
    reporter.put(HEADER)
    reporter.flush()
    [message] = broker.waiting(shard_of(None, "report", 16))
    assert message.task == RUN_ENDED_TASK
    assert run_ended(message) == RunEnded(None, 7, 1_000)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"schedule": 1}', b'{"schedule": "1", "instant_ms": 5}', b"[" * 99_999]
)
def test_a_report_that_was_changed_is_unreadable(app: Any, broker: Broker, body: bytes) -> None:
    reporter = Reporter(app)
    reporter.put(HEADER)
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

    def failing(self: Any, received: Any) -> None:
        if errors:
            raise errors.pop()
        publish(self, received)

    monkeypatch.setattr(reporter_module.Forwarder, "publish", failing)
    monkeypatch.setattr(reporter_module, "RETRY_FIRST_S", 0.01)
    return errors


def sent(broker: Broker) -> list[Message]:
    return broker.waiting()


def test_a_report_is_tried_again_until_the_broker_answers(
    app: Any, broker: Broker, failing: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    failing += [ConnectionError("away"), ConnectionError("away")]
    reporter = Reporter(app)
    with caplog.at_level(logging.WARNING):
        reporter.put(HEADER)
        wait_until(lambda: not reporter._kept, "the report is sent")
    reporter.flush()
    assert len(sent(broker)) == 1
    assert [
        record.getMessage().startswith("the end of a run of schedule report is not reported yet")
        for record in caplog.records
    ] == [True], "once a minute"


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
            reporter.put(HEADER)
        reporter.flush()
    with reporter._changed:  # no later test gets these reports
        reporter._kept.clear()
        reporter._changed.notify()
    assert reporter._thread is not None
    reporter._thread.join()
    assert len(caplog.records) == 2
    assert all("counts as over its max_runtime after it was due" in one.getMessage() for one in caplog.records)


def test_a_header_that_no_scheduler_wrote_holds_up_no_report(app: Any, broker: Broker) -> None:
    reporter = Reporter(app)
    for header in ({"report": True}, {**HEADER, "schedule": 5}, {**HEADER, "schedule": "a\0b"}, HEADER):
        reporter.put(header)
    wait_until(lambda: not reporter._kept, "all are sent or refused")
    reporter.flush()
    [message] = sent(broker)
    assert json.loads(message.body) == {"schedule": 7, "instant_ms": 1_000}
