"""Due time is never ahead of the second clock, under any sequence of steps, suspensions and readings.

The oracle knows the second clock at every instant. ``ahead`` is due time less the second clock; it grows in a check
only up to the tolerance, and not at all between two checks.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_wheel.engine.due_clock import MAX_ROUND_TRIP_MS, TOLERANCE_MS, DueClock
from celery_wheel.errors import BrokerError
from celery_wheel.timing import ManualClock

START_MS = 1_700_000_000_000
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
        assert self.due.now_ms() == self.clock.monotonic_ms() + self.offset_ms

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
