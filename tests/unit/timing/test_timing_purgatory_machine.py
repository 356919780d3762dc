"""A Hypothesis state machine: the purgatory against a list of operations. It must fail without the second attempt."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from celery_wheel.timing import DelayedOperation, ManualClock, Purgatory, SystemTimer
from tests.unit.timing.recorders import WaitingOperation

KEYS = st.integers(0, 4)
SETTINGS = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


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


def test_the_purgatory_agrees_with_a_list() -> None:
    run_machine(PurgatoryMachine, settings=SETTINGS)


@pytest.mark.parametrize("broken", [LooksOnce, NeverPurges, KeepsTimers])
def test_the_machine_fails_without_the_second_attempt_the_purge_or_the_cancel(broken: type[Purgatory]) -> None:
    machine = type("BrokenMachine", (PurgatoryMachine,), {"purgatory_type": broken})
    find = settings(SETTINGS, max_examples=200, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises(AssertionError):
        run_machine(machine, settings=find)
