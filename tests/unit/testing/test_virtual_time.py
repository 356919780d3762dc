"""Virtual time, beside the time of the test's other code."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from freezegun import freeze_time

from celery_wheel.testing import VirtualWheel
from celery_wheel.testing.clock import VirtualClock

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
