"""Cancelling, rescheduling, revoking and pausing of pending tasks.

Queries of a test: pending tasks, executions, and the texts of failed assertions. Recurring schedules in virtual time.
"""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import group
from celery.exceptions import TimeoutError as NotReady
from kombu import Queue

from celery_wheel import Celery
from celery_wheel.control import Wheel
from celery_wheel.errors import ArgumentError, RecurrenceError, WheelError
from celery_wheel.recurring import Crontab
from celery_wheel.testing import PendingTask, VirtualWheel
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
    with pytest.raises(TypeError, match="an eta or a countdown, and not both"):
        wheel.reschedule("x")
    with pytest.raises(TypeError, match="an eta or a countdown, and not both"):
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


@pytest.mark.slow
def test_tasks_of_a_paused_group_wait_until_resume(wheel: VirtualWheel, add: Any) -> None:
    control, group_ = add.app.wheel, {"group": "tenant:42"}
    first, second = (add.apply_async((n, 2), countdown=60, wheel=group_).id for n in range(2))
    other = add.apply_async((3, 4), countdown=120, wheel={"group": "tenant:7"}).id
    control.pause(group="tenant:42", reason="storm", actor="anna")
    assert [ran.id for ran in wheel.advance(minutes=5)] == [other]
    late = add.apply_async((5, 6), countdown=1, wheel=group_).id
    assert wheel.advance(minutes=5) == []
    assert control.get(first).blocked_by == "group tenant:42 (paused), queue celery"
    (gate,) = control.gates()
    assert (gate.what, gate.reason, gate.actor) == ("group tenant:42", "storm", "anna")
    assert control.resume(group="tenant:42", over=600)
    assert control.gates()[0].state != "paused"
    assert [ran.id for ran in wheel.advance(minutes=10)] == [first, second, late]
    resumed, paused = control.audit().items
    assert (paused.action, paused.results) == ("pause", {"group:tenant:42": "done"})
    assert (resumed.action, resumed.details) == ("resume", {"per_ms": 600_000})
    assert control.resume(group="tenant:42")
    assert not control.resume(group="tenant:42")


def test_a_pause_of_a_group_without_tasks_says_so(
    wheel: VirtualWheel, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    add.apply_async((1, 1), countdown=60, wheel={"group": "tenant:1"})
    add.app.wheel.limits.set("tenant:2", weight=2)
    for number in (1, 2, 3):
        add.app.wheel.pause(group=f"tenant:{number}")
    assert [vars(line)["gate"] for line in caplog.records if "gate" in vars(line)] == ["group:tenant:3"]


def test_all_tasks_of_a_group_are_cancelled(wheel: VirtualWheel, add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.engine.bulk_action.ROWS_AT_ONCE", 2)
    control = add.app.wheel
    for n in range(5):
        add.apply_async((n, 0), countdown=60 * n + 60, wheel={"group": "tenant:1"})
    other = add.apply_async((9, 9), countdown=60, wheel={"group": "tenant:2"}).id
    control.pause(group="tenant:1")
    wheel.advance(minutes=2)  # some wait in the line of the group
    assert control.cancel_all(group="tenant:1", actor="anna", reason="gone") == {"done": 5}
    assert control.cancel_all(group="tenant:1") == {}
    assert [one.action for one in control.audit(actor="anna").items] == ["bulk_end", *["cancel"] * 3, "bulk_begin"]
    assert len({one.bulk for one in control.audit(actor="anna").items}) == 1
    assert [one.task_id for one in control.history().items] == [other]
    with pytest.raises(TypeError, match="cancel_all must have a filter"):
        control.cancel_all(reason="all of them")
    with pytest.raises(TypeError, match="groop"):
        control.cancel_all(groop="tenant:1")
    with pytest.raises(ArgumentError, match="forecast must have no key and no group"):
        control.forecast(group="tenant:1")


def test_pending_lists_all_pending_tasks_the_next_first(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    second = add.apply_async((1,), {"y": 2}, countdown=7200, queue="mail", wheel={"key": "order:42"})
    first = tasks["proj.flaky"].apply_async((1,), countdown=60)
    at_once = add.delay(5, 6)
    assert [one.id for one in wheel.pending] == [at_once.id, first.id, second.id]
    far = wheel.pending[-1]
    assert far.eta is not None
    assert abs(far.eta - wheel.now - timedelta(hours=2)) < timedelta(minutes=5)
    assert far == PendingTask("proj.add", (1,), {"y": 2}, second.id, "mail", far.eta, "order:42")
    assert wheel.pending_of(add) == wheel.pending_of("proj.add") == [wheel.pending[0], far]


def test_executions_are_recorded_with_key_and_eta(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 2), countdown=60, queue="mail", wheel={"key": "order:42"})
    (waiting,) = wheel.pending
    (ran,) = wheel.run_all()
    assert (ran.key, ran.queue, ran.eta) == ("order:42", "mail", waiting.eta)
    assert wheel.ran_of(add) == wheel.ran_of("proj.add") == [ran]
    assert wheel.ran_of("proj.fail") == []


def test_a_pending_retry_has_its_number(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.flaky"].delay(2)
    wheel.run_due()
    assert [one.retries for one in wheel.pending] == [1]


def test_is_pending_takes_a_result_or_an_id_and_shows_the_fate_of_the_task(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    assert wheel.is_pending(result)
    assert wheel.is_pending(result.id) == True  # noqa: E712
    assert f"proj.add(1, 2) due {wheel.pending[0].eta:%Y-%m-%d}" in repr(wheel.is_pending(result))
    wheel.run_all()
    assert not wheel.is_pending(result)
    assert "not pending: <proj.add(1, 2) ran at" in repr(wheel.is_pending(result))
    assert "-> 3" in repr(wheel.is_pending(result))
    assert "no task was sent with id x" in repr(wheel.is_pending("x"))
    gone = add.apply_async((1, 2), countdown=60, expires=1)
    wheel.run_all()
    assert "expired" in repr(wheel.is_pending(gone))


def test_the_repr_of_the_wheel_is_one_line(wheel: VirtualWheel, add: Any) -> None:
    assert repr(wheel).endswith(": 0 pending, 0 ran>")
    for _ in range(7):
        add.apply_async((1, 2), countdown=7200)
    add.delay(1, 1)
    assert "8 pending, 0 ran: proj.add" in repr(wheel)
    assert " now; proj.add" in repr(wheel)
    assert repr(wheel).endswith("; and 3 more>")


def test_the_error_of_a_missing_result_has_the_tasks_due_time(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=60)
    with pytest.raises(NotReady, match=r"proj\.add\(1, 2\) due .*wheel\.advance"):
        result.get()
    wheel.advance(minutes=1)
    assert result.get() == 3


def test_waiting_for_a_result_runs_due_tasks(wheel: VirtualWheel, add: Any) -> None:
    assert add.delay(1, 2).get() == 3
    assert group(add.s(n, n) for n in range(3)).apply_async().get() == [0, 2, 4]
    assert len(wheel.ran) == 4


def test_tested_code_may_query_pending_tasks_as_in_production(wheel: VirtualWheel, wheel_app: Any, add: Any) -> None:
    with closing(Wheel(wheel_app)) as asked:
        assert asked.pending().items == []
        result = add.apply_async((1, 2), countdown=60)
        assert (asked.get(result.id).state, asked.counts().tasks) == ("pending", {"proj.add": 1})  # type: ignore[union-attr]
        wheel.run_all()
        assert asked.get(result.id).state == "dispatched"  # type: ignore[union-attr]


@pytest.mark.timeout(20)
def test_inspect_returns_at_once_without_an_answer(wheel: VirtualWheel, wheel_app: Any) -> None:
    assert wheel_app.control.inspect().scheduled() is None
    assert wheel_app.control.ping() == []
    with wheel_app.connection_for_read() as connection, pytest.raises(TimeoutError, match="no worker answers"):
        connection.drain_events(timeout=3600)


BEGIN = datetime(2030, 3, 30, tzinfo=UTC)


@pytest.fixture
def app() -> Any:
    app: Any = Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)

    @app.task(name="app.report", bind=True, shared=False)
    def report(self: Any, fail: bool = False) -> Any:
        if fail and not self.request.retries:
            raise self.retry(countdown=90)
        found = self.request.wheel
        return found and (found.schedule, found.scheduled_for, found.previous, found.attempt)

    return app


def test_a_schedule_runs_at_each_of_its_instants(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        wheel.freeze()
        app.wheel.schedules.create("nightly", Crontab("0", "3"), "app.report")
        app.tasks["app.report"].apply_async(countdown=3_600)
        ran = wheel.advance(days=3)
        hours = [round((one.at - BEGIN) / timedelta(hours=1), 3) for one in ran]
        assert hours == [1, 2, 25, 49], "on the second day clocks go forward"
        first, second = ran[1].at, ran[2].at
        found = [one.result for one in ran[:3]]
        assert found == [None, ("nightly", first, None, 1), ("nightly", second, first, 1)]
        app.wheel.schedules.pause("nightly")
        assert wheel.advance(days=2) == []
        assert app.wheel.schedules.resume("nightly")
        assert len(wheel.advance(days=1)) == 1
        history = app.wheel.schedules.history("nightly")
        assert [(one.count, one.reason) for one in history.skips] == [(2, "paused")]
        with pytest.raises(WheelError, match="10 tasks ran and there are more"):
            wheel.run_all(limit=10)


def test_a_trigger_and_a_backfill_run_at_once(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        schedules = app.wheel.schedules
        schedules.create("nightly", Crontab("0", "3"), "app.report", overlap="skip")
        triggered = schedules.trigger("nightly")
        [ran] = wheel.run_due()
        assert triggered.task_ids == (ran.id,)
        first, last = BEGIN - timedelta(days=2), BEGIN
        answer = schedules.backfill("nightly", first, last, overlap="allow")
        ran_ = wheel.run_due()
        assert [one.id for one in ran_] == list(answer.task_ids)
        assert [one.result[1] for one in ran_] == [BEGIN - timedelta(hours=46), BEGIN - timedelta(hours=22)]
        with pytest.raises(RecurrenceError, match="every needs the overlap \"allow\", and this backfill has 'skip'"):
            schedules.backfill("nightly", first, last, every=60)
        assert schedules.backfill("nightly", first, last, overlap="allow", every=timedelta(minutes=10)).task_ids
        assert [one.at - BEGIN for one in wheel.advance(minutes=30)] == pytest.approx(
            [timedelta(0), timedelta(minutes=10)], abs=timedelta(seconds=30)
        )


def test_an_instant_during_a_run_is_skipped_until_the_run_has_ended(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        schedules = app.wheel.schedules
        schedules.create("minutely", 60, "app.report", (True,), overlap="skip")
        ran = wheel.advance(minutes=4, seconds=30)
        found = [(one.state, (one.at - BEGIN).total_seconds()) for one in ran]
        assert found == [("RETRY", 60.0), ("SUCCESS", 150.0), ("RETRY", 180.0), ("SUCCESS", 270.0)]
        assert ran[1].result[3] == 2
        assert {one.reason for one in schedules.history("minutely").skips} == {"overlapped"}
