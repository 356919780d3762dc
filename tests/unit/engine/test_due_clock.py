"""Due time against a wall clock that is stepped and a second clock that answers, slowly, wrongly, or not at all."""

from __future__ import annotations

import logging
import threading

import pytest

from celery_wheel.engine.due_clock import ASKS, TOLERANCE_MS, DueClock, SecondClock
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.timing import ManualClock

START_MS = 1_700_000_000_000
NEAR_MS = TOLERANCE_MS + 1


class Host:
    """A wall clock, due time, and a second clock that is right unless a test moves it."""

    def __init__(self, wrong_ms: int = 0, **limits: int) -> None:
        self.clock = ManualClock(START_MS)
        self.origin_ms = START_MS - wrong_ms
        self.trip_ms = 0  #: how long an answer is under way, half of it after the second clock was read
        self.asked = 0
        self.due = DueClock(self.clock, **limits)

    @property
    def true_ms(self) -> int:
        return self.origin_ms + self.clock.monotonic_ms()

    def second_clock(self) -> int:
        self.asked += 1
        self.clock.advance(self.trip_ms // 2)
        answer_ms = self.true_ms
        self.clock.advance(self.trip_ms - self.trip_ms // 2)
        return answer_ms

    def look(self, second_clock: SecondClock | None = None) -> bool:
        return self.due.look(second_clock or self.second_clock)

    @property
    def early_ms(self) -> int:
        return self.due.now_ms() - self.true_ms


def none() -> None:
    return None


def test_due_time_is_the_wall_clock_at_first_and_goes_on_with_the_monotonic_clock() -> None:
    host = Host()
    assert host.due.now_ms() == START_MS
    host.clock.advance(1_500)
    assert host.due.now_ms() == START_MS + 1_500
    assert host.due.monotonic_ms() == 1_500


@pytest.mark.parametrize("step_ms", [4_000, 30_000, -30_000, 3_600_000, -3_600_000, 102, -102])
def test_a_wrong_step_is_not_followed_and_costs_no_shard(step_ms: int) -> None:
    host = Host()
    assert host.look()
    host.clock.step(step_ms)
    assert host.early_ms == 0, "nobody need look for it"
    assert host.look()
    assert (host.early_ms, host.due.disputed_ms, host.due.skew_ms) == (0, step_ms, 0)
    host.clock.advance(10_000)
    host.clock.step(-step_ms)
    assert host.look()
    assert (host.early_ms, host.due.disputed_ms) == (0, 0), "it has come back by itself"


@pytest.mark.parametrize("wrong_ms", [4_000, -4_000, 30_000, -30_000, 60, -60])
def test_a_correction_is_followed(wrong_ms: int) -> None:
    host = Host(wrong_ms)
    host.look()
    host.clock.step(-wrong_ms)
    assert host.look()
    assert (host.early_ms, host.due.disputed_ms, host.due.skew_ms) == (0, 0, 0)


@pytest.mark.parametrize("wrong_ms", [5_001, -5_001, 10**8])
def test_a_host_that_starts_with_a_wrong_clock_is_not_fit_until_it_is_set_right(wrong_ms: int) -> None:
    host = Host(wrong_ms)
    assert not host.look()
    assert host.due.skew_ms == wrong_ms
    host.clock.step(-wrong_ms)
    assert host.look()


@pytest.mark.parametrize("wrong_ms", [5_000, -4_999])
def test_a_host_that_is_wrong_within_the_skew_is_fit(wrong_ms: int) -> None:
    assert Host(wrong_ms, max_skew_ms=5_001).look()


def test_steps_that_are_each_within_the_tolerance_do_not_add_up() -> None:
    host = Host()
    for _ in range(50):
        host.clock.step(TOLERANCE_MS)
        host.clock.advance(500)
        host.look()
        assert host.early_ms <= 0
    assert host.due.disputed_ms == 50 * TOLERANCE_MS


def test_small_steps_back_do_not_add_up_where_a_second_clock_contradicts() -> None:
    host = Host()
    for _ in range(50):
        host.clock.step(-TOLERANCE_MS)
        host.look()
    assert host.early_ms == 0


def test_without_a_second_clock_a_clock_that_runs_behind_is_followed_and_one_ahead_is_not() -> None:
    host = Host()
    assert host.look(none)
    host.clock.step(-60)
    host.look(none)
    assert host.early_ms == -60
    host.clock.step(60)
    host.look(none)
    assert (host.early_ms, host.due.disputed_ms) == (-60, 0)


@pytest.mark.parametrize("step_ms", [30_000, -30_000])
def test_without_a_second_clock_a_step_is_disputed_until_it_is_accepted(step_ms: int) -> None:
    host = Host()
    host.clock.step(step_ms)
    assert host.look(none)
    assert (host.early_ms, host.due.disputed_ms, host.due.skew_ms) == (0, step_ms, None)
    assert host.due.is_acceptable()
    host.due.accept()
    assert (host.due.now_ms(), host.due.disputed_ms) == (host.due.wall_ms(), 0)


def test_a_clock_that_the_second_clock_contradicts_is_not_acceptable() -> None:
    host = Host()
    host.clock.step(3_600_000)
    host.look()
    assert not host.due.is_acceptable()
    host.clock.step(-3_598_000)
    assert host.due.is_acceptable(), "within the skew the operator decides"


def test_an_answer_that_was_long_under_way_is_asked_for_again_while_it_does_not_decide() -> None:
    host = Host()
    host.clock.step(500)
    host.trip_ms = 2_000
    host.look()
    assert host.asked == ASKS
    assert (host.early_ms, host.due.disputed_ms) == (0, 500)
    host.trip_ms, host.asked = 40, 0
    host.look()
    assert host.asked == 1


def test_a_slow_answer_decides_what_it_can() -> None:
    """A round trip of two seconds is no reason to trust a clock that is an hour off, nor to leave due time there."""
    host = Host(3_600_000)
    host.trip_ms = 2_000
    assert not host.look()
    host.clock.step(-3_600_000)
    assert host.look()
    assert host.early_ms == 0


@pytest.mark.parametrize("trip_ms", [20_000, 5 * 10**6])
def test_an_answer_that_was_under_way_for_too_long_is_no_verdict(trip_ms: int) -> None:
    host = Host(6_000)
    host.trip_ms = trip_ms
    assert not host.look(), "due time is 6 s ahead, and nobody knows it yet"
    right = Host()
    assert right.look()
    right.trip_ms = trip_ms
    assert right.look(), "and it is no reason to give a shard up"


@pytest.mark.parametrize("error", [BrokerError, StoreError])
def test_a_second_clock_that_does_not_answer_leaves_the_verdict_as_it_was(error: type[Exception]) -> None:
    def silent() -> int:
        raise error("away")

    host = Host()
    assert not host.look(silent), "nobody has found it right yet"
    assert host.look()
    host.clock.step(30_000)
    assert host.look(silent)
    assert (host.early_ms, host.due.disputed_ms) == (0, 30_000)


def test_a_step_forward_is_not_followed_beyond_the_second_clock() -> None:
    """Due time was 3 s late, and the step is of 5.9 s: the nearer of the two, and still early."""
    host = Host(-3_000)
    host.look()
    host.clock.step(5_900)
    host.look()
    assert (host.early_ms, host.due.disputed_ms) == (-3_000, 5_900)


def test_a_thread_that_is_held_up_while_it_reads_the_clocks_sees_no_step() -> None:
    class HeldUp(ManualClock):
        """The first reading of the wall clock takes four seconds."""

        times = 1

        def now_ms(self) -> int:
            now_ms = super().now_ms()
            if self.times:
                self.times -= 1
                self.advance(4_000)
            return now_ms

    clock = HeldUp(START_MS)
    due = DueClock(clock)
    assert due.now_ms() == START_MS + 4_000
    clock.times = 1
    due.look(none)
    assert (due.now_ms(), due.disputed_ms) == (clock.now_ms(), 0)


def test_a_reading_that_is_always_held_up_is_late_and_not_early() -> None:
    class Slow(ManualClock):
        def now_ms(self) -> int:
            now_ms = super().now_ms()
            self.advance(7)
            return now_ms

    clock = Slow(START_MS)
    due = DueClock(clock)
    assert due.now_ms() == START_MS + clock.monotonic_ms() - 7


def test_waiting_is_the_clocks_own() -> None:
    condition = threading.Condition()
    with condition:
        DueClock(ManualClock()).wait_until(condition, 0)


def test_a_dispute_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    host = Host()
    for step_ms in (30_000, 0, 0, -30_000, 0):
        host.clock.step(step_ms)
        host.look()
    assert [record.action for record in caplog.records] == ["clock_disputed", "clock_agreed"]  # type: ignore[attr-defined]
    assert "+30000 ms" in caplog.text
    assert "wheel clock accept" in caplog.text


def test_a_skew_and_a_correction_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    host = Host(60_000)
    for step_ms in (0, 0, -60_000, 0):
        host.clock.step(step_ms)
        host.look()
    assert [record.action for record in caplog.records] == ["clock_skew", "clock_followed"]  # type: ignore[attr-defined]
