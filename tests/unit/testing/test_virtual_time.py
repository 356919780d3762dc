"""Executions: their instants and their order.

Virtual time, beside the time of the test's other code.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
import time_machine
from celery import chain, chord, group, signals
from freezegun import freeze_time
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_wheel.errors import WheelError
from celery_wheel.testing import VirtualWheel
from celery_wheel.testing.clock import VirtualClock
from tests.unit.testing.conftest import names, with_settings


@pytest.mark.wheel(freeze=True)  # a second of the real time may pass between two calls
def test_a_delayed_task_runs_when_it_is_due_and_not_before(wheel: VirtualWheel, add: Any) -> None:
    result = add.apply_async((1, 2), countdown=1800)
    assert wheel.advance(minutes=29, seconds=59) == []
    assert result.state == "PENDING"
    (ran,) = wheel.advance(seconds=1)
    assert (ran.task, ran.args, ran.state, ran.result, ran.id) == ("proj.add", (1, 2), "SUCCESS", 3, result.id)
    assert result.get() == 3
    assert wheel.ran == [ran]


@pytest.mark.wheel(freeze=True)
def test_tasks_run_by_due_time_and_then_by_arrival_each_at_its_own_instant(wheel: VirtualWheel, add: Any) -> None:
    for n, delay in enumerate((30, 10, 20, 10)):
        add.apply_async((n, 0), countdown=delay)
    began = wheel.now
    ran = wheel.advance(minutes=1)
    assert [one.args[0] for one in ran] == [1, 3, 2, 0]
    assert [one.at - began for one in ran] == [timedelta(seconds=s) for s in (10, 10, 20, 30)]
    assert [one.at for one in ran] == [one.eta for one in ran]


def test_time_stands_still_while_a_task_runs(wheel: VirtualWheel, tasks: Any) -> None:
    result = tasks["proj.now"].apply_async(countdown=90)
    (waiting,) = wheel.pending
    wheel.advance(minutes=2)
    assert waiting.eta is not None
    assert result.get() == waiting.eta.isoformat()


def test_tasks_that_are_scheduled_meanwhile_run_in_the_same_advance(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.again"].apply_async((5,), countdown=600)
    assert [one.args for one in wheel.advance(minutes=35)] == [(5,), (4,), (3,)]
    assert [one.args for one in wheel.pending] == [(2,)]


def test_retries_wait_with_their_own_delay_under_the_same_id(wheel: VirtualWheel, tasks: Any) -> None:
    result = tasks["proj.flaky"].apply_async((2,), countdown=60)
    ran = wheel.run_all()
    assert [(one.state, one.retries) for one in ran] == [("RETRY", 0), ("RETRY", 1), ("SUCCESS", 2)]
    assert {one.id for one in ran} == {result.id}
    assert [after.at - before.at for before, after in pairwise(ran)] == [timedelta(minutes=1), timedelta(minutes=2)]
    assert result.get() == 2


def test_a_retry_and_a_task_sent_within_a_group_wait_in_the_group(wheel: VirtualWheel, tasks: Any) -> None:
    for name in ("proj.flaky", "proj.again"):
        tasks[name].apply_async((2,), wheel={"group": "tenant:42"})
    tasks["proj.again"].apply_async((2,), countdown=1)
    wheel.advance(seconds=1)
    assert [(one.task, one.group, one.key) for one in wheel.pending] == [
        ("proj.flaky", "tenant:42", "tenant:42"),
        ("proj.again", "tenant:42", "tenant:42"),
        ("proj.again", None, None),
    ]
    assert [one.state for one in wheel.run_all()][-1] == "SUCCESS"


def test_the_last_failed_retry_raises_the_tasks_own_error(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.flaky"].delay(9)
    with pytest.raises(OSError, match="away"):
        wheel.run_all()
    assert [one.state for one in wheel.ran] == ["RETRY", "RETRY", "FAILURE"]


def test_after_a_failure_the_next_call_continues(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    failed = tasks["proj.fail"].apply_async(countdown=10)
    add.apply_async((1, 1), countdown=50)
    with pytest.raises(KeyError, match="no"):
        wheel.advance(minutes=1)
    assert failed.state == "FAILURE"
    assert isinstance(failed.result, KeyError)
    assert names(wheel.run_due()) == []
    assert names(wheel.advance(minutes=1)) == [("proj.add", (1, 1))]


@pytest.mark.wheel(propagate=False)
def test_failures_may_be_recorded_instead_of_raised(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    tasks["proj.fail"].apply_async(("gone",), countdown=10)
    add.apply_async((1, 1), countdown=10)
    first, second = wheel.advance(minutes=1)
    assert isinstance(first.exception, KeyError)
    assert (first.state, second.state) == ("FAILURE", "SUCCESS")


def test_links_errbacks_and_signals_work_as_in_a_worker(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    seen: list[str] = []

    def note(signal: Any = None, **_: Any) -> None:
        seen.append(signal.name)

    for signal in (signals.task_received, signals.task_postrun, signals.task_failure):
        signal.connect(note)  # weakly: it is disconnected when this test is over
    add.apply_async((1, 1), countdown=5, link=add.s(10).set(countdown=5))
    failed = tasks["proj.fail"].apply_async(countdown=20, link_error=tasks["proj.sorry"].s())
    wheel.advance(minutes=1, propagate=False)
    ran = [("proj.add", (1, 1)), ("proj.add", (2, 10)), ("proj.fail", ()), ("proj.sorry", (failed.id,))]
    assert names(wheel.ran) == ran
    assert seen.count("task_received") == seen.count("task_postrun") == 4
    assert seen.count("task_failure") == 1


@pytest.mark.wheel(freeze=True)
def test_chains_groups_and_chords_keep_their_delays(wheel: VirtualWheel, add: Any) -> None:
    began = wheel.now
    last = chain(add.s(1, 2).set(countdown=60), add.s(10).set(countdown=60)).apply_async()
    both = group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=30)
    total = chord([add.si(1, 1).set(countdown=10), add.si(1, 1).set(countdown=200)], add.si(3, 3)).apply_async()
    wheel.run_all()
    assert (last.get(), both.get(), total.get()) == (13, [2, 4], 6)
    assert wheel.now - began == timedelta(seconds=200)


def test_tasks_without_a_delay_run_before_time_passes(wheel: VirtualWheel, add: Any) -> None:
    result = add.delay(1, 2)
    assert result.state == "PENDING"
    assert names(wheel.run_due()) == [("proj.add", (1, 2))]
    assert result.get() == 3


@with_settings(task_always_eager=True)
def test_in_an_eager_app_only_delays_wait(wheel: VirtualWheel, tasks: Any, add: Any) -> None:
    assert add.delay(1, 2).get() == 3
    waits = add.apply_async((2, 2), countdown=60)
    tries = tasks["proj.flaky"].delay(1)
    assert [one.id for one in wheel.pending] == [waits.id, tries.id]
    assert tasks["proj.fail"].delay().state == "FAILURE"
    wheel.advance(minutes=1)
    assert (waits.get(), tries.get()) == (4, 1)


@with_settings(task_always_eager=True)
def test_in_an_eager_app_a_retry_without_a_delay_follows_the_try_before_it(wheel: VirtualWheel, wheel_app: Any) -> None:
    @wheel_app.task(name="proj.twice", bind=True, shared=False)
    def twice(self: Any) -> int:
        if not self.request.retries:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    assert twice.delay().get() == 1
    twice.apply_async(countdown=60)
    wheel.run_all()
    assert [one.state for one in wheel.ran] == ["RETRY", "SUCCESS"] * 2


@with_settings(task_always_eager=True, task_eager_propagates=True)
def test_an_eager_app_that_propagates_raises_out_of_the_call(wheel: VirtualWheel, tasks: Any) -> None:
    with pytest.raises(KeyError, match="no"):
        tasks["proj.fail"].delay()


@pytest.mark.wheel(freeze=True)
def test_run_next_advances_to_one_task_and_runs_it(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 1), countdown=600)
    add.apply_async((2, 2), countdown=300)
    began = wheel.now
    assert wheel.run_next().args == (2, 2)
    assert wheel.now - began == timedelta(seconds=300)
    assert wheel.run_next().args == (1, 1)
    with pytest.raises(LookupError, match="there is none"):
        wheel.run_next()


def test_a_task_that_schedules_itself_for_ever_reaches_the_limit(wheel: VirtualWheel, tasks: Any) -> None:
    tasks["proj.again"].apply_async((10**9,), countdown=1)
    with pytest.raises(WheelError, match=r"20 tasks ran and there are more, a proj\.again"):
        wheel.run_all(limit=20)
    assert len(wheel.ran) == 20
    assert wheel.run_next().args == (10**9 - 20,)


def test_a_task_that_sends_itself_at_once_reaches_the_limit(wheel: VirtualWheel, wheel_app: Any) -> None:
    @wheel_app.task(name="proj.ever", bind=True, shared=False)
    def ever(self: Any) -> None:
        self.delay()

    ever.delay()
    with pytest.raises(WheelError, match="20 tasks ran"):
        wheel.run_due(limit=20)


def test_a_task_must_not_advance_the_wheel(wheel: VirtualWheel, wheel_app: Any) -> None:
    @wheel_app.task(name="proj.turn", shared=False)
    def turn() -> None:
        wheel.advance(minutes=1)

    turn.delay()
    with pytest.raises(RuntimeError, match="must not advance"):
        wheel.run_due()


def test_tasks_that_celery_holds_itself_are_pending_too(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 1), countdown=60, wheel=False)
    add.apply_async((2, 2), countdown=30)
    assert [(one.args, one.where) for one in wheel.pending] == [((2, 2), "wheel"), ((1, 1), "worker")]
    assert [one.args for one in wheel.advance(minutes=1)] == [(2, 2), (1, 1)]


@with_settings(wheel_min_delay=30)
def test_a_delay_below_the_minimum_waits_in_the_worker(wheel: VirtualWheel, add: Any) -> None:
    for n in (20, 40):
        add.apply_async((n, n), countdown=n)
    assert [one.where for one in wheel.pending] == ["worker", "wheel"]
    assert [one.result for one in wheel.run_all()] == [40, 80]


TO_NO_QUEUE = {"exchange": "nowhere", "exchange_type": "topic", "routing_key": "x"}


def revoked_by_its_stamp(add: Any) -> Any:
    stamped = add.si(1, 2)
    stamped.stamp(order="42")
    result = stamped.apply_async(countdown=60)
    add.app.control.revoke_by_stamped_headers({"order": "42"})
    return result


def revoked(add: Any) -> Any:
    result = add.apply_async((1, 2), countdown=60)
    result.revoke(terminate=True)
    return result


@pytest.mark.parametrize(
    ("send", "reason", "state"),
    [
        (revoked, "revoked", "REVOKED"),
        (revoked_by_its_stamp, "revoked", "REVOKED"),
        (lambda add: add.apply_async((1, 1), countdown=60, expires=30), "expired", "REVOKED"),
        (lambda add: add.app.send_task("other.task", countdown=5), "not a task of this app", "PENDING"),
        (lambda add: add.apply_async((1, 1), countdown=5, **TO_NO_QUEUE), "no queue is bound", "PENDING"),
        # The message is larger with its headers.
        (lambda add: add.apply_async(("x" * 9_000, 1), countdown=5), "at most 10,000 bytes", "PENDING"),
    ],
    ids=["revoked", "revoked by its stamp", "expired", "of another project", "no queue", "too large"],
)
@with_settings(wheel_max_message_bytes=10_000)
def test_a_task_that_cannot_run_is_skipped_with_the_reason(
    wheel: VirtualWheel, add: Any, send: Callable[[Any], Any], reason: str, state: str
) -> None:
    result = send(add)
    in_time = add.apply_async((2, 2), countdown=60, expires=90)
    assert [one.id for one in wheel.advance(minutes=1)] == [in_time.id]
    (skipped,) = wheel.skipped
    assert (skipped.id, result.state) == (result.id, state)
    assert reason in skipped.reason


def test_messages_of_other_threads_are_captured_too(wheel: VirtualWheel, add: Any) -> None:
    sending = [Thread(target=add.apply_async, args=((n, n),), kwargs={"countdown": 60}) for n in range(5)]
    for thread in sending:
        thread.start()
    for thread in sending:
        thread.join()
    assert sorted(one.result for one in wheel.run_all()) == [0, 2, 4, 6, 8]


@with_settings(
    task_queues=[Queue("celery"), Queue("all", Exchange("orders", "topic"), "order.#"), Broadcast("everybody")]
)
def test_messages_find_their_queues_by_topic_and_by_fanout(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 1), countdown=5, exchange="orders", routing_key="order.new")
    add.apply_async((2, 2), countdown=6, queue="everybody")
    assert [(one.args, one.queue) for one in wheel.run_all()] == [((1, 1), "all"), ((2, 2), "everybody")]


@pytest.mark.parametrize("options", [{"serializer": "pickle"}, {"compression": "zlib"}, {"priority": 9}])
@with_settings(accept_content=["json", "pickle"])
def test_serializers_and_compression_are_the_real_ones(wheel: VirtualWheel, add: Any, options: dict[str, Any]) -> None:
    add.apply_async((1, 2), countdown=5, **options)
    assert wheel.pending[0].args == (1, 2)
    assert wheel.advance(seconds=5)[0].result == 3


@with_settings(task_protocol=1)
def test_the_old_message_protocol_works_too(wheel: VirtualWheel, add: Any) -> None:
    add.apply_async((1, 2), countdown=5)
    add.apply_async((3, 4), countdown=9, wheel=False)
    assert [one.args for one in wheel.pending] == [(1, 2), (3, 4)]
    assert [one.result for one in wheel.advance(seconds=9)] == [3, 7]


def test_a_task_class_with_its_own_call_keeps_its_request(wheel: VirtualWheel, wheel_app: Any) -> None:
    class Counted(wheel_app.Task):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    @wheel_app.task(name="proj.counted", shared=False, base=Counted, bind=True)
    def counted(self: Any) -> str:
        return str(self.request.id)

    result = counted.apply_async(countdown=1)
    wheel.advance(seconds=1)
    assert result.get() == result.id


@pytest.mark.parametrize(
    ("on_conflict", "now", "later"), [("keep", [], [3]), ("replace", [7], []), ("reject", [], [3])]
)
def test_a_unique_task_that_is_due_now_meets_the_pending_one(
    wheel: VirtualWheel, add: Any, on_conflict: str, now: list[int], later: list[int]
) -> None:
    add.apply_async((1, 2), countdown=60, wheel={"unique": "sync:7"})
    add.apply_async((3, 4), wheel={"unique": "sync:7", "on_conflict": on_conflict})
    assert [one.result for one in wheel.advance(seconds=1)] == now
    assert [one.result for one in wheel.advance(minutes=2)] == later


def test_a_unique_task_without_a_delay_runs_at_once(wheel: VirtualWheel, add: Any) -> None:
    for _ in range(2):
        add.apply_async((1, 2), wheel={"unique": "sync:7"})
        assert [one.result for one in wheel.advance(seconds=1)] == [3]


def test_jitter_spreads_calls_without_a_delay(wheel: VirtualWheel, add: Any) -> None:
    for n in range(50):
        add.apply_async((n, 0), wheel={"jitter": 3_600})
    assert len(wheel.advance(minutes=1)) < 50
    assert len(wheel.pending) > 0
    wheel.advance(hours=1)
    assert wheel.pending == []


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_an_advance_meets_an_eta_of_the_real_clock(wheel: VirtualWheel, add: Any) -> None:
    for _ in range(20):
        result = add.apply_async((1, 1), eta=datetime.now(UTC) + timedelta(minutes=30))
        assert [one.id for one in wheel.advance(minutes=30)] == [result.id]
        wheel._clock._moved = timedelta()


def test_time_goes_on_between_two_calls_and_never_back(wheel: VirtualWheel, wheel_app: Any) -> None:
    instants = [wheel.now]
    for step in ({"minutes": 1}, {}, {"days": 1}):
        wheel.advance(**step)  # type: ignore[arg-type]
        instants.append(wheel.now)
    assert instants == sorted(instants)
    assert instants[-1] - instants[0] >= timedelta(days=1, minutes=1)
    assert wheel.now <= wheel_app.now() <= wheel.now


@pytest.mark.parametrize("by", [timedelta(minutes=2), 120, 120.0])
def test_advance_takes_a_timedelta_or_seconds(wheel: VirtualWheel, add: Any, by: Any) -> None:
    add.apply_async((1, 1), countdown=120)
    assert len(wheel.advance(by)) == 1


def test_time_does_not_go_back(wheel: VirtualWheel) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        wheel.advance(minutes=-1)
    with pytest.raises(ValueError, match="an instant to come"):
        wheel.advance_to(wheel.now - timedelta(days=1))
    with pytest.raises(ValueError, match="aware"):
        wheel.advance_to(datetime(2099, 1, 1))  # noqa: DTZ001


def test_advance_to_an_instant(wheel: VirtualWheel, add: Any) -> None:
    moment = wheel.now + timedelta(days=400)
    add.apply_async((1, 1), eta=moment)
    assert wheel.advance_to(moment - timedelta(milliseconds=2)) == []
    assert len(wheel.advance_to(moment)) == 1


def remember(wheel_app: Any, seen: list[datetime]) -> Any:
    @wheel_app.task(name="proj.remember", shared=False)
    def task() -> None:
        seen.append(datetime.now(UTC))

    return task


@pytest.mark.parametrize("freezer", [freeze_time(NOON), time_machine.travel(NOON, tick=False)])
def test_a_freezer_is_moved_with_the_wheel(wheel: VirtualWheel, wheel_app: Any, freezer: Any) -> None:
    seen: list[datetime] = []
    with freezer:
        remember(wheel_app, seen).apply_async(eta=datetime.now(UTC) + timedelta(hours=1))
        wheel.advance(hours=2)
        assert seen == [NOON + timedelta(hours=1)]
        assert datetime.now(UTC) == wheel.now == NOON + timedelta(hours=2)


def test_a_freezer_may_be_moved_by_the_test_itself(wheel: VirtualWheel, add: Any) -> None:
    with freeze_time(NOON) as frozen:
        add.apply_async((1, 1), countdown=3600)
        frozen.tick(3599)
        assert wheel.run_due() == []
        frozen.tick(1)
        assert len(wheel.run_due()) == 1


def test_a_freezer_that_goes_back_delays_nothing(wheel: VirtualWheel, add: Any) -> None:
    with freeze_time(NOON) as frozen:
        add.apply_async((1, 1), countdown=60)
        wheel.advance(minutes=1)
        frozen.move_to(NOON - timedelta(days=1))
        add.apply_async((2, 2), countdown=60)
        add.apply_async((3, 3), countdown=3 * 86_400)
        assert wheel.advance(seconds=59) == []
        assert [one.args for one in wheel.advance(seconds=1)] == [(2, 2)]
        assert [one.args for one in wheel.run_all()] == [(3, 3)]


def test_a_freezer_that_begins_after_an_advance_leaves_the_wheel_ahead(wheel: VirtualWheel, add: Any) -> None:
    wheel.advance(hours=1)
    with freeze_time(NOON):
        ahead = wheel.now - NOON
        assert timedelta(minutes=59) < ahead < timedelta(minutes=61)  # the host's clock may be set
        add.apply_async((1, 1), countdown=60)
        assert len(wheel.advance(minutes=1)) == 1
        assert wheel.now - datetime.now(UTC) == ahead


def test_the_wheels_monotonic_clock_never_goes_back() -> None:
    clock = VirtualClock()
    with freeze_time(NOON) as frozen:
        began = clock.monotonic_ms()
        frozen.move_to(NOON - timedelta(days=1))
        assert clock.monotonic_ms() == began
        clock.jump(clock.now() + timedelta(seconds=5))
        assert clock.monotonic_ms() == began + 5_000


def test_freeze_makes_datetime_now_the_wheels_time(wheel: VirtualWheel, wheel_app: Any) -> None:
    seen: list[datetime] = []
    wheel.advance(days=1)
    wheel.freeze()
    wheel.freeze()
    task, began = remember(wheel_app, seen), datetime.now(UTC)
    assert began == wheel.now
    task.apply_async(countdown=60)
    wheel.advance(minutes=5)
    assert seen == [began + timedelta(minutes=1)]
    assert datetime.now(UTC) == began + timedelta(minutes=5)


@pytest.mark.wheel(freeze=True)
def test_the_marker_freezes_from_the_beginning(wheel: VirtualWheel) -> None:
    assert datetime.now(UTC) == datetime.now(UTC) == wheel.now


def test_the_error_of_freeze_names_the_package_to_install(wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "time_machine", None)
    monkeypatch.setitem(__import__("sys").modules, "freezegun", None)
    with pytest.raises(RuntimeError, match="pip install time-machine"):
        wheel.freeze()


def test_the_freezer_ends_with_the_wheel(wheel_app: Any) -> None:
    with VirtualWheel(wheel_app) as wheel:
        wheel.freeze()
        wheel.advance(days=1000)
        virtual = wheel.now
    assert abs(datetime.now(UTC).timestamp() - __import__("time").time()) < 3_600
    assert datetime.now(UTC) < virtual
