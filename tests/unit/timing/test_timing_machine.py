"""Two Hypothesis state machines: the wheel against a dict and the purgatory against a list; each must find its bugs."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_wheel.timing import DelayedOperation, ManualClock, Purgatory, SystemTimer, TimingWheel
from celery_wheel.timing.wheel import Contents
from tests.unit.timing.conftest import WaitingOperation

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

    @rule(first=TIMER_IDS, second=TIMER_IDS, span=SPANS, tenths=st.integers(0, 9))
    def schedule_two_of_which_one_has_come_near_by_cascades(
        self, first: int, second: int, span: int, tenths: int
    ) -> None:
        due_at = self.now + span
        self.schedule_at(first, due_at)
        self.advance_to(self.now + span * tenths // 10)
        self.schedule_at(second, due_at)
        while (expiration := self.wheel.next_expiration_ms()) is not None and self.time < expiration <= due_at:
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

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        due.update(contents)


class CascadeLoses(TimingWheel):
    """The timers of a coarse bucket are lost when the bucket begins."""

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        for timer_id in contents:
            del self._dues[timer_id]


class CoarseTimesStandStill(TimingWheel):
    """Only the finest level's time advances, so that coarse levels use an old lap."""

    def _turn(self) -> None:
        self._lasts[0] = self._last_ms(self._tick_ms)


class CascadeGoesLast(TimingWheel):
    """The timers of a coarse bucket go behind those that were scheduled later, on the level below."""

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        before = {expiration_ms: dict(later) for expiration_ms, later in self._opened[level].items()}
        super()._spread(contents, level, target_ms, due)
        for expiration_ms, later in before.items():
            self._opened[level][expiration_ms] = later | self._opened[level][expiration_ms]


KEYS = st.integers(0, 4)


@dataclass
class Watched:
    """The model of one operation and of its expected state."""

    operation: WaitingOperation
    keys: set[int]
    due_ms: int
    then: int | None  # the key that its on_complete checks
    ready: bool = False
    called: list[str] = field(default_factory=list)


class PurgatoryMachine(RuleBasedStateMachine):
    """The model has only lists and a time; it answers every question by a walk through all operations."""

    purgatory_type = Purgatory

    @initialize(bound=st.sampled_from([0, 3, 10, 1_000]), shards=st.sampled_from([1, 2, 64]))
    def make(self, bound: int, shards: int) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer(self.clock)
        self.purgatory = self.purgatory_type("machine", self.timer, shards, bound, reaper=False)
        self.bound = bound
        self.model: list[Watched] = []
        self.counted = 0  # what the checks said they completed, those of hooks included
        self.expected = 0

    def check(self, key: int) -> int:
        completed = self.purgatory.check_and_complete(key)
        self.counted += completed
        return completed

    def model_check(self, key: int) -> None:
        for watched in self.model:
            if key in watched.keys and watched.ready and not watched.called:
                self.expected += 1
                self.model_complete(watched)

    def model_complete(self, watched: Watched, *more: str) -> None:
        watched.called = ["complete", *more]
        if watched.then is not None:
            self.model_check(watched.then)

    @rule(
        keys=st.sets(KEYS, min_size=1),
        delay=st.integers(0, 300),
        ready=st.sampled_from(["before", "between", "not yet", "not yet"]),
        then=st.none() | KEYS,
    )
    def watch(self, keys: set[int], delay: int, ready: str, then: int | None) -> None:
        def between() -> None:
            operation.ready = True
            self.check(min(keys))

        operation = WaitingOperation(
            delay,
            then=None if then is None else lambda: self.check(then),
            after_the_first_read=between if ready == "between" else None,
        )
        operation.ready = ready == "before"
        watched = Watched(operation, keys, self.clock.now_ms() + delay, then, ready != "not yet")
        if ready == "between":
            self.model_check(min(keys))
        expires = not delay and ready != "before"
        if expires:
            self.model_complete(watched, "expiration")
        elif watched.ready:
            self.model_complete(watched)
        self.model.append(watched)
        assert self.purgatory.try_complete_else_watch(operation, sorted(keys)) is (watched.ready and not expires)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def make_ready(self, data: st.DataObject) -> None:
        watched = data.draw(st.sampled_from(self.model))
        watched.ready = watched.operation.ready = True

    @rule(key=KEYS)
    def check_a_key(self, key: int) -> None:
        before = sum(bool(watched.called) for watched in self.model)
        self.model_check(key)
        after = sum(bool(watched.called) for watched in self.model)
        assert 0 <= self.check(key) <= after - before

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        watched = data.draw(st.sampled_from(self.model))
        assert watched.operation.force_complete() is (not watched.called)
        if not watched.called:
            self.model_complete(watched)

    @rule(ms=st.integers(0, 200))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timer.advance_clock(0)
        # A hook of one that expires may complete another that is due as well: the sooner one goes first.
        for watched in sorted(self.model, key=lambda watched: watched.due_ms):
            if watched.due_ms <= self.clock.now_ms() and not watched.called:
                self.model_complete(watched, "expiration")

    @invariant()
    def every_operation_was_called_as_it_must_be(self) -> None:
        assert [watched.operation.called for watched in self.model] == [watched.called for watched in self.model]
        assert all(watched.operation.completed is bool(watched.called) for watched in self.model)
        assert self.counted == self.expected

    @invariant()
    def counts_are_exact_and_entries_bounded(self) -> None:
        waiting = [watched for watched in self.model if not watched.called]
        assert self.purgatory.delayed == self.timer.size() == len(waiting)
        entries = sum(len(watched.keys) for watched in waiting)
        assert entries <= self.purgatory.watched <= entries + self.bound
        shards = self.purgatory._lists._shards
        assert sum(len(watches) for shard in shards for watches in shard.lists.values()) == self.purgatory.watched
        assert all(watches for shard in shards for watches in shard.lists.values())


class LooksOnce(Purgatory):
    """It makes no second attempt after it has begun to watch."""

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        looks = iter([operation._attempt])
        operation._attempt = lambda: next(looks, lambda: False)()  # type: ignore[method-assign]
        try:
            return super().try_complete_else_watch(operation, keys)
        finally:
            del operation._attempt


class NeverPurges(Purgatory):
    """A completed operation stays in the lists until its keys are checked."""

    def __init__(self, name: str, timer: SystemTimer, shards: int, purge_interval: int, *, reaper: bool) -> None:
        super().__init__(name, timer, shards, 1_000_000, reaper=reaper)


class KeepsTimers(Purgatory):
    """A completed operation stays in the timer until its time-out."""

    def __init__(self, name: str, timer: SystemTimer, shards: int, purge_interval: int, *, reaper: bool) -> None:
        super().__init__(name, timer, shards, purge_interval, reaper=reaper)
        timer.cancel = lambda timer_id: None  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("machine", [WheelMachine, PurgatoryMachine])
def test_the_wheel_agrees_with_a_dict_and_the_purgatory_with_a_list(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


BUGS: list[tuple[type[RuleBasedStateMachine], str, list[type]]] = [
    (WheelMachine, "wheel_type", [CascadeOff, CascadeLoses, CascadeGoesLast, CoarseTimesStandStill]),
    (PurgatoryMachine, "purgatory_type", [LooksOnce, NeverPurges, KeepsTimers]),
]


@pytest.mark.parametrize(("machine", "part", "broken"), [(*of, bug) for *of, bugs in BUGS for bug in bugs])
def test_a_machine_fails_without_the_cascade_the_second_attempt_the_purge_or_the_cancel(
    machine: type[RuleBasedStateMachine], part: str, broken: type
) -> None:
    find = settings(SETTINGS, max_examples=200, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(type("BrokenMachine", (machine,), {part: broken}), settings=find)
