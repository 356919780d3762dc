"""Threads race for the same operations, and exactly one wins each.

First the critical interleavings, each forced by its test; then crowds of threads, for other interleavings.
"""

import functools
import threading
from collections.abc import Callable

import pytest

from celery_wheel.timing import ManualClock, Purgatory, SystemTimer
from tests.kit.patience import patience
from tests.unit.timing.conftest import WaitingOperation

OPERATIONS = 2_000
KEYS = 20
BOUND = 50


pytestmark = pytest.mark.usefixtures("impatient_threads")


class Race:
    """Threads that begin at the same moment; an error of any thread fails the test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer(self.clock)
        self.purgatory = Purgatory("race", self.timer, shards=4, purge_interval=BOUND, reaper=False)
        self.operations = [WaitingOperation(1 + number % 100) for number in range(OPERATIONS)]
        self.raised: list[BaseException] = []
        self.won: list[int] = []  #: numbers of completed operations, which sum up

    def run(self, *runners: Callable[[], object]) -> None:
        begin = threading.Barrier(len(runners))

        def runs(runner: Callable[[], object]) -> None:
            try:
                begin.wait(patience(10))
                runner()
            except BaseException as error:
                self.raised.append(error)

        threads = [threading.Thread(target=runs, args=[runner], daemon=True) for runner in runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience(60))
        assert not any(thread.is_alive() for thread in threads), "somebody waits for somebody"
        assert self.raised == []

    def keys(self, number: int) -> list[int]:
        return [number % KEYS, KEYS + number]

    def watch(self, number: int) -> bool:
        return self.purgatory.try_complete_else_watch(self.operations[number], self.keys(number))

    def happen(self, numbers: range) -> None:
        """Make operations ready and check them: no time passes and no later check comes, so a wake-up stays lost."""
        for number in numbers:
            self.operations[number].ready = True
            self.won.append(self.purgatory.check_and_complete(KEYS + number))

    def everything_is_completed(self) -> None:
        assert [operation.called for operation in self.operations] == [["complete"]] * OPERATIONS
        assert sum(self.won) == OPERATIONS
        self.everything_is_settled()

    def everything_is_settled(self) -> None:
        assert (self.purgatory.delayed, self.timer.size()) == (0, 0)
        assert self.purgatory.watched <= BOUND
        shards = self.purgatory._lists._shards
        assert sum(len(watches) for shard in shards for watches in shard.lists.values()) == self.purgatory.watched


def elsewhere(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(patience(10))
    assert not thread.is_alive(), "it waits for us"


@pytest.fixture
def purgatory(timer: SystemTimer) -> Purgatory:
    return Purgatory("moments", timer, purge_interval=0, reaper=False)


def test_a_check_that_is_overtaken_before_it_wins_does_nothing(purgatory: Purgatory) -> None:
    class Overtaken:
        def __init__(self) -> None:
            self._lock, self._first = threading.Lock(), True
            self.locked = self._lock.locked

        def acquire(self, blocking: bool) -> bool:
            first, self._first = self._first, False
            if first:
                elsewhere(operation.force_complete)
            return self._lock.acquire(blocking=blocking)

    operation = WaitingOperation()
    purgatory.try_complete_else_watch(operation, ["a"])
    operation._completion = Overtaken()  # type: ignore[assignment]
    assert operation.force_complete() is False
    assert operation.called == ["complete"]
    assert purgatory.delayed == 0


def test_an_operation_completed_by_another_thread_meanwhile_is_not_counted(purgatory: Purgatory) -> None:
    operation = WaitingOperation()
    purgatory.try_complete_else_watch(operation, ["a"])
    operation._after_the_first_read = lambda: elsewhere(operation.force_complete)
    operation.ready = True
    assert purgatory.check_and_complete("a") == 0
    assert operation.called == ["complete"]
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_an_operation_completed_while_it_is_watched_is_settled_once(purgatory: Purgatory, timer: SystemTimer) -> None:
    class Quick(WaitingOperation):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_settle" and value is not None:
                elsewhere(self.force_complete)

    assert purgatory.try_complete_else_watch(Quick(), ["a"]) is False
    assert (purgatory.watched, purgatory.delayed, timer.size()) == (0, 0, 0)


def test_a_shutdown_while_an_operation_is_watched_leaves_no_time_out(
    purgatory: Purgatory, timer: SystemTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = purgatory._lists.add
    monkeypatch.setattr(purgatory._lists, "add", lambda watch: (elsewhere(purgatory.shutdown), add(watch)))
    assert purgatory.try_complete_else_watch(WaitingOperation(), ["a"]) is False
    assert (purgatory.delayed, timer.size()) == (1, 0)


def test_ready_operations_are_completed_in_the_order_of_watching(purgatory: Purgatory) -> None:
    order: list[int] = []
    operations = [WaitingOperation(then=functools.partial(order.append, number)) for number in range(50)]
    for operation in operations[::2] + operations[1::2]:
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.ready = True
    assert purgatory.check_and_complete("a") == 50
    assert order == [*range(0, 50, 2), *range(1, 50, 2)]


def test_one_event_wins_each_operation_among_checks_force_and_time_outs() -> None:
    race = Race()

    def check(keys: range) -> None:
        race.won.append(sum(race.purgatory.check_and_complete(key) for key in keys))

    def force() -> None:
        race.won.append(sum(operation.force_complete() for operation in race.operations[::-1]))

    def pass_time() -> None:
        for _ in range(100):
            race.clock.advance(1)
            race.timer.advance_clock(0)

    for number, operation in enumerate(race.operations):
        race.watch(number)
        operation.ready = True
    each = range(KEYS, KEYS + OPERATIONS)
    race.run(lambda: check(range(KEYS)), lambda: check(each), lambda: check(each[::-1]), force, pass_time)

    assert all(operation.called[:1] == ["complete"] for operation in race.operations)
    assert {tuple(operation.called[1:]) for operation in race.operations} <= {(), ("expiration",)}
    expired = sum("expiration" in operation.called for operation in race.operations)
    assert sum(race.won) + expired == OPERATIONS
    race.everything_is_settled()


def test_a_watch_during_checks_misses_no_wake_up() -> None:
    race = Race()

    def watch(numbers: range) -> None:
        race.won.append(sum(race.watch(number) for number in numbers))

    even, odd = range(0, OPERATIONS, 2), range(1, OPERATIONS, 2)
    race.run(lambda: watch(even), lambda: race.happen(even), lambda: watch(odd), lambda: race.happen(odd))
    race.everything_is_completed()


def test_the_thread_that_runs_try_complete_finds_a_change() -> None:
    race = Race()
    for number in range(OPERATIONS):
        race.watch(number)

    def look() -> None:
        # The shared keys are checked one after the other while no operation is ready; the change comes in between.
        race.won.append(sum(race.purgatory.check_and_complete(key) for key in range(KEYS)))

    race.run(look, look, look, lambda: race.happen(range(OPERATIONS)))
    race.everything_is_completed()


def test_a_shutdown_while_threads_watch_leaves_nothing_to_expire() -> None:
    race = Race()
    refused: list[int] = []

    def watch(numbers: range) -> None:
        for number in numbers:
            try:
                race.watch(number)
            except RuntimeError:
                refused.append(number)

    half = OPERATIONS // 2
    race.run(lambda: watch(range(half)), race.purgatory.shutdown, lambda: watch(range(half, OPERATIONS)))
    assert race.timer.size() == 0
    assert race.purgatory.delayed == OPERATIONS - len(refused)
    race.clock.advance(1_000)
    race.timer.advance_clock(0)
    assert not any(operation.completed for operation in race.operations)
