"""Cancelling, rescheduling, revoking and pausing of pending tasks."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from kombu import Queue

from celery_wheel.testing import VirtualWheel
from tests.unit.testing.conftest import with_settings


def test_a_cancelled_task_does_not_run(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert wheel.cancel(result) == "done"
    assert wheel.cancel(result) == "already"
    assert not wheel.is_pending(result)
    assert wheel.run_all() == []


@pytest.mark.wheel(freeze=True)
def test_a_task_may_cancel_another_due_at_the_same_instant(wheel: VirtualWheel, wheel_app: Any, add: Any) -> None:
    @wheel_app.task(name="proj.stop", shared=False)
    def stop() -> str:
        return wheel.cancel(later)

    stop.apply_async(countdown=60)
    later = add.apply_async((1, 2), countdown=60)
    assert [one.result for one in wheel.run_all()] == ["done"]


def test_a_command_for_a_dispatched_task_is_too_late_and_for_another_unknown(wheel: VirtualWheel, add: Any) -> None:
    ran = add.apply_async((1, 2), countdown=60)
    wheel.run_all()
    native = add.apply_async((1, 2), countdown=60, wheel=False)
    for verdict, result in {"too_late": ran, "unknown": native}.items():
        assert wheel.cancel(result.id) == verdict
        assert wheel.reschedule(result.id, countdown=5) == verdict
        assert wheel.run_now(result.id) == verdict
    assert wheel.cancel("never sent") == "unknown"
    assert wheel.is_pending(native)


def test_a_rescheduled_task_runs_at_its_new_time_only(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60, expires=10_000, wheel={"key": "order:42"})
    assert wheel.reschedule(result, countdown=3600) == "done"
    assert [(one.id, one.key) for one in wheel.pending] == [(result.id, "order:42")]
    assert wheel.advance(minutes=59) == []
    assert wheel.reschedule(result.id, eta=wheel.now + timedelta(minutes=10)) == "done"
    assert wheel.advance(minutes=9) == []
    assert len(wheel.advance(minutes=1)) == 1
    assert result.get() == 3


def test_reschedule_needs_exactly_one_time(wheel: VirtualWheel) -> None:
    with pytest.raises(TypeError, match="either eta or countdown"):
        wheel.reschedule("x")
    with pytest.raises(TypeError, match="either eta or countdown"):
        wheel.reschedule("x", eta=datetime(2030, 1, 1), countdown=1)  # noqa: DTZ001


def test_run_now_makes_a_task_the_next_to_run(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 1), countdown=60)
    assert wheel.run_now(add.apply_async((2, 2), countdown=7200)) == "done"
    assert [one.args for one in wheel.run_due()] == [(2, 2)]


@with_settings(
    task_queues=[Queue("celery"), Queue("emails")],
    task_routes={"a": "routed", "b.*": {"queue": Queue("matched")}},
    wheel_rate_limits={"limited": "5/s"},
)
@pytest.mark.usefixtures("wheel")
def test_a_pause_of_a_name_that_nothing_has_says_so(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    requests = add.app.wheel
    add.apply_async((1, 1), countdown=60, queue="by hand")
    requests.schedules.create("nightly", 60, "proj.add", args=(1, 1), queue="reports")
    for known in ("celery", "emails", "routed", "matched", "limited", "by hand", "reports"):
        requests.pause(queue=known)
    requests.pause(task="proj.add")
    requests.pause(everything=True)
    assert [vars(line).get("gate") for line in caplog.records] == []
    requests.pause(queue="emials")
    requests.pause(task="0")
    assert [vars(line).get("gate") for line in caplog.records] == ["queue:emials", "task:0"]
    first, second = (line.getMessage() for line in caplog.records)
    assert first.startswith("queue 'emials' is paused, but no pending task")
    assert "did you mean emails?" in first
    assert "is the name misspelt?" in second
    assert {one.name for one in requests.gates()} >= {"emials", "0"}


def test_paused_tasks_wait_until_resume(wheel: VirtualWheel, add: Any) -> None:
    mail = add.apply_async((1, 2), countdown=60, queue="mail")
    other = add.apply_async((3, 4), countdown=120)
    add.app.wheel.pause(queue="mail")
    assert [ran.id for ran in wheel.advance(minutes=5)] == [other.id]
    add.app.wheel.pause(everything=True)
    later = add.apply_async((5, 6), countdown=1)
    assert wheel.advance(minutes=5) == []
    add.app.wheel.resume(everything=True)
    assert [ran.id for ran in wheel.run_due()] == [later.id]
    add.app.wheel.resume(queue="mail", over=600)
    assert [ran.id for ran in wheel.advance(minutes=10)] == [mail.id]
