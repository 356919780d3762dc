"""A Hypothesis state machine: the wheel against a plain dict. It must fail when the cascade is switched off."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from celery_wheel.timing import TimingWheel
from celery_wheel.timing.wheel import Contents

YEAR_MS = 365 * 86_400_000

TIMER_IDS = st.integers(0, 25)
# Spans of every size, from less than a tick to years, and just beside the powers at which levels meet.
SPANS = st.one_of(
    st.integers(0, 50),
    st.integers(0, 20_000),
    st.integers(0, 3_600_000),
    st.integers(0, 5 * YEAR_MS),
    st.builds(lambda tick, size, power, off: tick * size**power + off,
              st.sampled_from([1, 10, 1000]), st.sampled_from([2, 3, 20, 60]), st.integers(1, 4), st.integers(-2, 2)),
)  # fmt: skip

SETTINGS = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class WheelMachine(RuleBasedStateMachine):
    """The model: id → (due_at_ms, order). Every answer of the wheel must follow from it, the tick and the time."""

    wheel_type = TimingWheel

    @initialize(
        tick=st.sampled_from([1, 7, 10, 1000]),
        size=st.sampled_from([2, 3, 20, 60, 64, 512]),
        start=st.sampled_from([0, 17, 1_767_225_601_234, -5_005]),
    )
    def make(self, tick: int, size: int, start: int) -> None:
        self.tick, self.size, self.now = tick, size, start
        self.time = start // tick * tick
        self.wheel = self.wheel_type(tick, size, start)
        self.model: dict[int, tuple[int, int]] = {}
        self.orders = 0

    def rounded_up(self, due_at: int) -> int:
        return (due_at + self.tick - 1) // self.tick * self.tick

    @rule(timer_id=TIMER_IDS, span=SPANS, backwards=st.sampled_from([False] * 9 + [True]))
    def schedule_or_move(self, timer_id: int, span: int, backwards: bool) -> None:
        self.schedule_at(timer_id, self.now - span if backwards else self.now + span)

    @rule(timer_id=TIMER_IDS, beside=TIMER_IDS)
    def schedule_at_the_instant_of_another(self, timer_id: int, beside: int) -> None:
        if beside in self.model:
            self.schedule_at(timer_id, self.model[beside][0])

    @rule(timer_id=TIMER_IDS, beside=TIMER_IDS, tenths=st.integers(0, 9))
    def schedule_beside_another_that_comes_near_by_cascades(self, timer_id: int, beside: int, tenths: int) -> None:
        due_at, _ = self.model.get(beside, (self.now, 0))
        self.advance_to(self.now + max(0, due_at - self.now) * tenths // 10)
        self.schedule_at(timer_id, due_at)
        while (expiration := self.wheel.next_expiration_ms()) is not None and expiration <= due_at:
            self.advance_to(expiration)

    def schedule_at(self, timer_id: int, due_at: int) -> None:
        self.model.pop(timer_id, None)
        waits = self.rounded_up(due_at) > self.time
        if waits:
            self.orders += 1
            self.model[timer_id] = (due_at, self.orders)
        assert self.wheel.schedule(timer_id, due_at, self.orders) is waits

    @rule(timer_id=TIMER_IDS)
    def cancel(self, timer_id: int) -> None:
        expected = self.model.pop(timer_id, None)
        timer = self.wheel.cancel(timer_id)
        assert (None if timer is None else (timer.due_at_ms, timer.payload)) == expected

    @rule(span=SPANS)
    def advance(self, span: int) -> None:
        self.advance_to(self.now + span)

    @rule()
    def advance_to_the_next_bucket(self) -> None:
        expiration = self.wheel.next_expiration_ms()
        if expiration is not None:
            self.advance_to(expiration)

    @rule(span=SPANS)
    def advance_backwards(self, span: int) -> None:
        assert self.wheel.advance(self.time - span) == []

    def advance_to(self, now: int) -> None:
        left = self.wheel.advance(now)
        self.now = now
        self.time = max(self.time, now // self.tick * self.tick)
        assert all(timer.due_at_ms <= now for timer in left), "early"
        expected = sorted((place, i) for i, place in self.model.items() if self.rounded_up(place[0]) <= self.time)
        assert [((timer.due_at_ms, timer.payload), timer.timer_id) for timer in left] == expected
        for _, timer_id in expected:
            del self.model[timer_id]
        assert all(due_at > now - self.tick for due_at, _ in self.model.values()), "more than a tick late"

    @invariant()
    def counts_are_exact(self) -> None:
        levels = self.wheel.levels()
        assert len(self.wheel) == len(self.model)
        assert sum(level.pending for level in levels) == len(self.model)
        for level in levels:
            assert level.pending == sum(bucket.pending for bucket in level.buckets)
            assert all(bucket.pending == len(bucket.timer_ids()) > 0 for bucket in level.buckets)
        everywhere = [i for level in levels for bucket in level.buckets for i in bucket.timer_ids()]
        assert sorted(everywhere) == sorted(self.model)
        assert [timer.timer_id for timer in self.wheel.timers()] == sorted(self.model, key=lambda i: self.model[i][1])
        for timer_id in range(26):
            assert (timer_id in self.wheel) is (timer_id in self.model)
            timer = self.wheel.get(timer_id)
            assert (None if timer is None else (timer.due_at_ms, timer.payload)) == self.model.get(timer_id)

    @invariant()
    def the_next_expiration_is_that_of_the_earliest_bucket_with_timers(self) -> None:
        expirations = [bucket.expiration_ms for level in self.wheel.levels() for bucket in level.buckets]
        assert self.wheel.next_expiration_ms() == min(expirations, default=None)
        assert all(expiration > self.time for expiration in expirations)

    @invariant()
    def every_bucket_holds_its_own_span_and_every_level_its_own_time(self) -> None:
        step = self.tick
        for number, level in enumerate(self.wheel.levels()):
            assert (level.number, level.tick_ms, level.interval_ms) == (number, step, step * self.size)
            assert level.current_time_ms == self.time // step * step
            indexes = [bucket.index for bucket in level.buckets]
            assert indexes == sorted(set(indexes))
            assert len(indexes) < self.size
            for bucket in level.buckets:
                assert bucket.expiration_ms % step == 0
                assert bucket.index == bucket.expiration_ms // step % self.size
                dues = [self.rounded_up(self.model[i][0]) for i in bucket.timer_ids()]
                assert all(bucket.expiration_ms <= due < bucket.expiration_ms + step for due in dues)
            step *= self.size


class CascadeOff(TimingWheel):
    """The timers of a coarse bucket expire when the bucket begins."""

    __slots__ = ()

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        due.update(contents)


class CascadeLoses(TimingWheel):
    """The timers of a coarse bucket are lost when the bucket begins."""

    __slots__ = ()

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        for timer_id in contents:
            del self._dues[timer_id]


class CoarseTimesStandStill(TimingWheel):
    """Only the finest level's time advances, so that coarse levels use an old lap."""

    __slots__ = ()

    def _turn(self) -> None:
        self._lasts[0] = self._last_ms(self._tick_ms)


class CascadeGoesLast(TimingWheel):
    """The timers of a coarse bucket go behind those that were scheduled later, on the level below."""

    __slots__ = ()

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        before = {expiration_ms: dict(later) for expiration_ms, later in self._opened[level].items()}
        super()._spread(contents, level, target_ms, due)
        for expiration_ms, later in before.items():
            self._opened[level][expiration_ms] = later | self._opened[level][expiration_ms]


def test_the_wheel_agrees_with_a_plain_dict() -> None:
    run_state_machine_as_test(WheelMachine, settings=SETTINGS)


@pytest.mark.parametrize("broken", [CascadeOff, CascadeLoses, CascadeGoesLast, CoarseTimesStandStill])
def test_the_machine_fails_when_the_cascade_is_switched_off(broken: type[TimingWheel]) -> None:
    machine = type("BrokenMachine", (WheelMachine,), {"wheel_type": broken})
    find = settings(SETTINGS, max_examples=200, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=find)
