"""Due time with a wall clock that is stepped and a second clock that is slow, wrong or silent.

Due time is never ahead of the second clock, under any sequence of steps, suspensions and readings.

The oracle knows the second clock at every instant. ``ahead`` is due time less the second clock; it grows in a check
only up to the tolerance, and not at all between two checks.
"""

import logging
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_wheel.engine.due_clock import (
    MAX_READINGS,
    MAX_ROUND_TRIP_MS,
    TOLERANCE_MS,
    ClockReadings,
    DueClock,
    SecondClock,
)
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.timing import ManualClock

START_MS = 1_700_000_000_000


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

    def check(self, second_clock: SecondClock | None = None) -> bool:
        return self.due.check(second_clock or self.second_clock)

    @property
    def early_ms(self) -> int:
        return self.due.now_ms() - self.true_ms


def none() -> None:
    return None


def test_small_steps_back_do_not_add_up_where_a_second_clock_contradicts() -> None:
    host = Host()
    for _ in range(50):
        host.clock.step(-TOLERANCE_MS)
        host.check()
    assert host.early_ms == 0


def test_without_a_second_clock_a_clock_that_runs_behind_is_followed_and_one_ahead_is_not() -> None:
    host = Host()
    assert host.check(none)
    host.clock.step(-60)
    host.check(none)
    assert host.early_ms == -60
    host.clock.step(60)
    host.check(none)
    assert (host.early_ms, host.due.disputed_ms) == (-60, 0)


def test_a_slow_reading_is_repeated_while_it_does_not_decide() -> None:
    host = Host()
    host.clock.step(500)
    host.trip_ms = 2_000
    host.check()
    assert host.asked == MAX_READINGS
    assert (host.early_ms, host.due.disputed_ms) == (0, 500)
    host.trip_ms, host.asked = 40, 0
    host.check()
    assert host.asked == 1


def test_a_slow_reading_decides_a_large_difference() -> None:
    """A round trip of two seconds leaves no doubt about a clock that is an hour off."""
    host = Host(3_600_000)
    host.trip_ms = 2_000
    assert not host.check()
    host.clock.step(-3_600_000)
    assert host.check()
    assert host.early_ms == 0


@pytest.mark.parametrize("trip_ms", [20_000, 5 * 10**6])
def test_a_too_slow_reading_decides_nothing(trip_ms: int) -> None:
    host = Host(6_000)
    host.trip_ms = trip_ms
    assert not host.check(), "due time is 6 s ahead, and nobody knows it yet"
    right = Host()
    assert right.check()
    right.trip_ms = trip_ms
    assert right.check(), "and it is no reason to give a shard up"


@pytest.mark.parametrize("error", [BrokerError, StoreError])
def test_a_silent_second_clock_leaves_the_decision_unchanged(error: type[Exception]) -> None:
    host, silent = Host(), mock.Mock(side_effect=error("away"))
    assert not host.check(silent), "nobody has found it right yet"
    assert host.check()
    host.clock.step(30_000)
    assert host.check(silent)
    assert (host.early_ms, host.due.disputed_ms) == (0, 30_000)


def test_a_step_forward_is_not_followed_beyond_the_second_clock() -> None:
    """Due time was 3 s late; after a step of 5.9 s the wall clock is nearer, and still early."""
    host = Host(-3_000)
    host.check()
    host.clock.step(5_900)
    host.check()
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
    due.check(none)
    assert (due.now_ms(), due.disputed_ms) == (clock.now_ms(), 0)


def test_a_reading_that_is_always_held_up_is_late_and_not_early() -> None:
    class Slow(ManualClock):
        def now_ms(self) -> int:
            now_ms = super().now_ms()
            self.advance(7)
            return now_ms

    clock = Slow(START_MS)
    assert DueClock(clock).now_ms() == START_MS + clock.monotonic_ms() - 7


@pytest.mark.parametrize(
    ("wrong_ms", "steps_ms", "clocks", "actions"),
    [
        (0, (30_000, 0, 0, -30_000, 0), 1, ["clock_disputed", "clock_agreed"]),
        (0, (30_000, -30_000), 4, ["clock_disputed", "clock_agreed"]),
        (60_000, (0, 0, -60_000, 0), 1, ["clock_skew", "clock_followed"]),
    ],
    ids=["a dispute", "of all due clocks of a process", "a skew and its correction"],
)
def test_each_change_is_logged_once(
    caplog: pytest.LogCaptureFixture, wrong_ms: int, steps_ms: tuple[int, ...], clocks: int, actions: list[str]
) -> None:
    caplog.set_level(logging.INFO)
    host = Host(wrong_ms)
    readings = ClockReadings(host.clock)
    each = [DueClock(host.clock, readings=readings) for _ in range(clocks)]
    for step_ms in steps_ms:
        host.clock.step(step_ms)
        for due in each:
            due.check(host.second_clock)
    assert [record.action for record in caplog.records] == actions  # type: ignore[attr-defined]
    assert "clock_disputed" not in actions or "+30000 ms" in caplog.text
    assert "clock_disputed" not in actions or "wheel clock accept" in caplog.text


MAX_SKEW_MS = 5_000

#: Around every bound: the tick, the tolerance, the skew; and far beyond.
STEPS_MS = st.one_of(st.integers(-120, 120), st.integers(-6_000, 6_000), st.integers(-(10**8), 10**8))
WAITS_MS = st.one_of(st.integers(0, 5), st.integers(0, 300), st.integers(0, 20_000))


class DueClockMachine(RuleBasedStateMachine):
    @initialize(tick_ms=st.sampled_from([1, 10, 1_000]), wrong_ms=STEPS_MS, has_second=st.booleans())
    def start(self, tick_ms: int, wrong_ms: int, has_second: bool) -> None:
        self.clock = ManualClock(START_MS)
        self.second_offset_ms = START_MS - wrong_ms
        self.has_second = has_second
        self.near_ms = tick_ms + TOLERANCE_MS
        self.due = DueClock(self.clock, tick_ms=tick_ms, max_skew_ms=MAX_SKEW_MS)
        self.offset_ms = START_MS

    @property
    def ahead_ms(self) -> int:
        return self.offset_ms - self.second_offset_ms

    @rule(ms=WAITS_MS)
    def time_passes_also_while_suspended(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=STEPS_MS)
    def the_wall_clock_is_stepped(self, ms: int) -> None:
        self.clock.step(ms)

    @rule()
    def the_wall_clock_is_set_by_the_second(self) -> None:
        self.clock.step(self.second_offset_ms + self.clock.monotonic_ms() - self.clock.now_ms())

    @precondition(lambda self: self.has_second)
    @rule(ms=STEPS_MS)
    def the_second_clock_is_stepped(self, ms: int) -> None:
        """From here on the promise is about the stepped second clock."""
        self.second_offset_ms += ms

    @invariant()
    def due_time_goes_on_with_the_monotonic_clock(self) -> None:
        assert self.due.now_ms() == self.due.monotonic_ms() + self.offset_ms

    @rule(there_ms=WAITS_MS, back_ms=WAITS_MS, silent=st.booleans(), step_ms=st.one_of(st.just(0), STEPS_MS))
    def check(self, there_ms: int, back_ms: int, silent: bool, step_ms: int) -> None:
        def second_clock() -> int | None:
            self.clock.advance(there_ms)
            answer_ms = self.second_offset_ms + self.clock.monotonic_ms()
            self.clock.step(step_ms)
            self.clock.advance(back_ms)
            if silent:
                raise BrokerError("away")
            return answer_ms if self.has_second else None

        before_ms, ahead_ms = self.offset_ms, self.ahead_ms
        fit = self.due.check(second_clock)
        self.offset_ms = self.due.now_ms() - self.clock.monotonic_ms()
        moved_ms = self.offset_ms - before_ms
        wall_ms = self.clock.now_ms() - self.due.now_ms()
        answered, uncertainty_ms = self.has_second and not silent, (there_ms + back_ms + 1) // 2 + 1
        assert moved_ms == 0 or wall_ms == 0, "due time goes nowhere but to the wall clock"
        assert moved_ms <= 0 or (answered and self.ahead_ms <= TOLERANCE_MS), "put forward beyond the second clock"
        assert answered or moved_ms >= -self.near_ms, "put back, and nobody had said so"
        if answered and moved_ms:  # by the second clock, or a little back where it does not decide
            errors = 3 if -self.near_ms <= moved_ms < 0 else 1
            assert abs(self.ahead_ms) <= abs(ahead_ms) + errors * uncertainty_ms, "no nearer"
        assert (self.due.disputed_ms != 0) == (abs(wall_ms) > self.near_ms)
        if answered:
            assert abs((self.due.skew_ms or 0) - self.ahead_ms) <= uncertainty_ms
            assert fit or abs(self.ahead_ms) + 2 * uncertainty_ms > MAX_SKEW_MS, "a shard is lost"
        if answered and fit and 2 * uncertainty_ms <= MAX_ROUND_TRIP_MS:
            assert abs(self.ahead_ms) <= MAX_SKEW_MS + 2 * uncertainty_ms

    @precondition(lambda self: self.has_second)
    @rule()
    def a_right_wall_clock_is_followed(self) -> None:
        self.the_wall_clock_is_set_by_the_second()
        self.check(0, 0, silent=False, step_ms=0)
        assert abs(self.ahead_ms) <= 2
        assert self.due.disputed_ms == 0

    @rule()
    def the_operator_accepts(self) -> None:
        skew_ms, ahead_ms = self.due.skew_ms, self.clock.now_ms() - self.due.now_ms()
        assert self.due.is_acceptable() == (skew_ms is None or abs(skew_ms + ahead_ms) <= MAX_SKEW_MS)
        self.due.accept()
        self.offset_ms += ahead_ms
        assert self.due.disputed_ms == 0


TestDueClockMachine = DueClockMachine.TestCase
TestDueClockMachine.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
