"""Hooks that exit or shut down, and keys that fail, affect no other operation."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import pytest

from celery_wheel.timing import ManualClock, Purgatory, SystemTimer
from tests.kit.patience import patience
from tests.unit.timing.waiting_operation import WaitingOperation
from tests.unit.timing.watched_clock import WatchedClock


@pytest.fixture
def timer() -> SystemTimer:
    return SystemTimer(ManualClock())


def test_a_hook_that_calls_exit_ends_neither_the_reaper_nor_operations_due_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, expired = WatchedClock(), threading.Event()
    with Purgatory("orders", SystemTimer(clock)) as purgatory, caplog.at_level(logging.ERROR):
        clock.wait_for_waiter()
        leaving, same_time, later = (
            WaitingOperation(5, then=sys.exit),
            WaitingOperation(5),
            WaitingOperation(6, then=expired.set),
        )
        for operation in (leaving, same_time, later):
            purgatory.try_complete_else_watch(operation, ["a"])
        clock.advance(5)
        clock.advance(1)
        assert expired.wait(patience(10))
    assert [leaving.called, same_time.called] == [["complete"], ["complete", "expiration"]]
    assert later.called == ["complete", "expiration"]
    assert "callback of timer Watch(<WaitingOperation completed" in caplog.text
    assert "tried to end the thread of reaper celery-wheel-purgatory-orders" in caplog.text
    assert purgatory.delayed == 0


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_propagates_after_the_hooks_of_completed_operations(
    timer: SystemTimer, interrupt: type[BaseException]
) -> None:
    def then() -> None:
        assert purgatory.check_and_complete("b") == 2
        raise interrupt("enough")

    purgatory = Purgatory("orders", timer, reaper=False)
    first, second, third = WaitingOperation(then=then), WaitingOperation(), WaitingOperation()
    for operation, key in ((first, "a"), (second, "b"), (third, "b")):
        purgatory.try_complete_else_watch(operation, [key])
        operation.ready = True
    with pytest.raises(interrupt, match="enough"):
        purgatory.check_and_complete("a")
    assert [first.called, second.called, third.called] == [["complete"]] * 3
    assert purgatory.delayed == 0
    # The thread runs no other hooks any more.
    fourth = WaitingOperation()
    assert fourth.force_complete() is True
    assert fourth.called == ["complete"]


def test_an_interrupted_check_leaves_the_operation_to_the_next_check(timer: SystemTimer) -> None:
    purgatory = Purgatory("orders", timer, reaper=False)
    operation = WaitingOperation()
    purgatory.try_complete_else_watch(operation, ["a"])
    operation._after_the_first_read = sys.exit
    with pytest.raises(SystemExit):
        purgatory.check_and_complete("a")
    operation.ready = True
    assert purgatory.check_and_complete("a") == 1


def test_an_operation_due_with_a_hook_that_shuts_down_does_not_expire() -> None:
    clock, over = WatchedClock(), threading.Event()
    purgatory = Purgatory("orders", SystemTimer(clock))
    clock.wait_for_waiter()
    last, due_with_it = WaitingOperation(5, then=lambda: (purgatory.shutdown(), over.set())), WaitingOperation(5)
    for operation in (last, due_with_it):
        purgatory.try_complete_else_watch(operation, ["a"])
    clock.advance(5)
    assert over.wait(patience(10))
    purgatory.shutdown()  # waits for the thread, which the hook could not
    assert last.called == ["complete", "expiration"]
    assert (due_with_it.called, purgatory.delayed) == ([], 1)


def test_a_purge_that_fails_by_a_key_does_not_stop_the_hook_of_the_operation(timer: SystemTimer) -> None:
    class Key:
        compare: Callable[[], bool] = staticmethod(lambda: False)

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return self.compare()

    purgatory = Purgatory("orders", timer, purge_interval=0, reaper=False)
    operation = WaitingOperation()
    for each in (WaitingOperation(), operation):  # the second key is compared with the first
        purgatory.try_complete_else_watch(each, [Key()])
    Key.compare = staticmethod(lambda: bool(1 // 0))
    with pytest.raises(ZeroDivisionError):
        operation.force_complete()
    assert operation.called == ["complete"]


def test_an_operation_that_a_timer_refused_may_be_watched_elsewhere(timer: SystemTimer) -> None:
    over = SystemTimer(ManualClock())
    over.shutdown()
    operation = WaitingOperation()
    with pytest.raises(RuntimeError, match="timer is shut down"):
        Purgatory("closed", over, reaper=False).try_complete_else_watch(operation, ["a"])
    purgatory = Purgatory("orders", timer, reaper=False)
    assert purgatory.try_complete_else_watch(operation, ["a"]) is False
    operation.ready = True
    assert purgatory.check_and_complete("a") == 1
