"""Operations that wait for a key or for their time-out. The tests advance the clock."""

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest

from celery_wheel.timing import DelayedOperation, ManualClock, Purgatory, SystemTimer
from tests.kit.patience import patience
from tests.unit.timing.conftest import WaitingOperation, WatchedClock


@pytest.fixture
def purgatory(timer: SystemTimer) -> Iterator[Purgatory]:
    with Purgatory("orders", timer, reaper=False) as purgatory:
        yield purgatory


@pytest.fixture
def pass_time(clock: ManualClock, timer: SystemTimer) -> Callable[[int], object]:
    return lambda ms: (clock.advance(ms), timer.advance_clock(0))


def watched(purgatory: Purgatory, delay_ms: int = 1_000, keys: Sequence[str] = ("a",)) -> WaitingOperation:
    operation = WaitingOperation(delay_ms)
    purgatory.try_complete_else_watch(operation, keys)
    return operation


def test_a_check_during_try_complete_requests_a_recheck_and_returns(purgatory: Purgatory) -> None:
    looked, changed = threading.Event(), threading.Event()
    operation = watched(purgatory)
    operation._after_the_first_read = lambda: (looked.set(), changed.wait(patience(10)))
    counts: list[int] = []
    slow = threading.Thread(target=lambda: counts.append(purgatory.check_and_complete("a")))
    slow.start()
    assert looked.wait(patience(10))
    operation.ready = True
    assert purgatory.check_and_complete("a") == 0, "it is at work and does not come back before we do"
    changed.set()
    slow.join(patience(10))
    assert counts == [1]
    assert operation.thread is slow


def test_a_thread_that_holds_a_lock_of_try_complete_may_check(purgatory: Purgatory) -> None:
    state, looking = threading.Lock(), threading.Event()

    def look() -> None:
        looking.set()
        with state:
            pass

    operation = watched(purgatory)
    operation._after_the_first_read = look
    with state:
        other = threading.Thread(target=purgatory.check_and_complete, args=["a"], daemon=True)
        other.start()
        assert looking.wait(patience(10))
        operation.ready = True
        purgatory.check_and_complete("a")
    other.join(patience(10))
    assert operation.called == ["complete"]


def test_try_complete_may_complete_by_itself_and_is_counted_once(purgatory: Purgatory) -> None:
    class AsInKafka(WaitingOperation):
        def try_complete(self) -> bool:
            return self.ready and self.force_complete()

    operation = AsInKafka()
    purgatory.try_complete_else_watch(operation, ["a"])
    operation.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert operation.called == ["complete"]


def test_a_hook_may_check_other_keys_and_watch_new_operations(purgatory: Purgatory) -> None:
    second, third = WaitingOperation(), WaitingOperation()
    second.ready = third.ready = False

    def then() -> None:
        second.ready = third.ready = True
        assert purgatory.check_and_complete("b") == 1
        assert purgatory.try_complete_else_watch(third, ["a"]) is True
        assert purgatory.try_complete_else_watch(WaitingOperation(), ["a"]) is False

    first = WaitingOperation(then=then)
    purgatory.try_complete_else_watch(first, ["a"])
    purgatory.try_complete_else_watch(second, ["b"])
    first.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert [first.called, second.called, third.called] == [["complete"]] * 3
    assert (purgatory.watched, purgatory.delayed) == (1, 1)


def test_a_long_chain_is_no_deep_one(purgatory: Purgatory) -> None:
    def link(number: int) -> WaitingOperation:
        operation = WaitingOperation(then=lambda: purgatory.check_and_complete(number + 1))
        purgatory.try_complete_else_watch(operation, [number])
        operation.ready = True
        return operation

    links = [link(number) for number in range(5_000)]
    assert purgatory.check_and_complete(0) == 1
    assert all(operation.called == ["complete"] for operation in links)


@pytest.mark.parametrize(
    ("hook", "called"),
    [("try_complete", ["complete", "expiration"]), ("on_complete", ["expiration"]), ("on_expiration", ["complete"])],
)
def test_a_failing_hook_is_logged_and_stops_no_other(
    purgatory: Purgatory,
    pass_time: Callable[[int], object],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    hook: str,
    called: list[str],
) -> None:
    bad, checked, timed = WaitingOperation(30), WaitingOperation(30), WaitingOperation(30)
    monkeypatch.setattr(bad, hook, lambda: 1 // 0)
    for operation in (bad, checked, timed):
        purgatory.try_complete_else_watch(operation, ["a"])
    checked.ready = True
    with caplog.at_level(logging.ERROR):
        assert purgatory.check_and_complete("a") == 1
        pass_time(30)
    assert [bad.called, checked.called, timed.called] == [called, ["complete"], ["complete", "expiration"]]
    assert f"{hook} of <WaitingOperation" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert purgatory.delayed == 0


def test_the_reaper_of_the_purgatory_expires_and_survives_failing_hooks(caplog: pytest.LogCaptureFixture) -> None:
    clock, expired = WatchedClock(), threading.Event()
    with Purgatory("orders", SystemTimer(clock)) as purgatory:
        clock.wait_for_waiter()
        failing = mock.Mock(side_effect=OSError("the printer is on fire"))
        purgatory.try_complete_else_watch(WaitingOperation(5, then=failing), ["a"])
        last = WaitingOperation(10, then=expired.set)
        purgatory.try_complete_else_watch(last, ["a"])
        clock.advance(5)
        clock.advance(5)
        assert expired.wait(patience(10))
        assert last.thread is not None
        assert last.thread.name == "celery-wheel-purgatory-orders"
    assert not last.thread.is_alive()
    assert "the printer is on fire" in caplog.text


def test_a_check_removes_completed_operations_from_its_list(purgatory: Purgatory) -> None:
    for keys in (["a"], ["a", "b"], ["a", "b", "c"]):
        operation = WaitingOperation()
        purgatory.try_complete_else_watch(operation, keys)
        if len(keys) > 1:
            operation.force_complete()
    found = []
    for key in "abc":
        purgatory.check_and_complete(key)
        found.append(purgatory.watched)
    assert found == [4, 2, 1]


def test_an_operation_completed_while_its_entries_are_made_leaves_none(
    timer: SystemTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    purgatory = Purgatory("orders", timer, purge_interval=0, reaper=False)
    operation = WaitingOperation()
    add = purgatory._lists.add
    monkeypatch.setattr(purgatory._lists, "add", lambda watch: (operation.force_complete(), add(watch)))
    assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is False
    assert (purgatory.watched, purgatory.delayed, timer.size()) == (0, 0, 0)


def test_a_completed_operation_is_freed_without_the_collector(timer: SystemTimer) -> None:
    purgatory = Purgatory("orders", timer, purge_interval=0, reaper=False)
    operation = watched(purgatory)
    gone = weakref.ref(operation)
    operation.force_complete()
    gc.disable()
    try:
        del operation
        assert gone() is None
    finally:
        gc.enable()


def test_operations_that_are_equal_are_still_two(purgatory: Purgatory) -> None:
    class Equal(WaitingOperation):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    both = [Equal(), Equal()]
    for operation in both:
        purgatory.try_complete_else_watch(operation, ["a", "a"])
    assert purgatory.watched == purgatory.delayed == 2
    for operation in both:
        operation.ready = True
    assert purgatory.check_and_complete("a") == 2


def test_after_shutdown_nothing_expires_or_is_watched(
    timer: SystemTimer, pass_time: Callable[[int], object], caplog: pytest.LogCaptureFixture
) -> None:
    purgatory = Purgatory("orders", timer, reaper=False)
    waiting, neighbour = WaitingOperation(30), WaitingOperation(30)
    purgatory.try_complete_else_watch(waiting, ["a", "b"])
    with Purgatory("neighbours", timer, reaper=False) as other:
        other.try_complete_else_watch(neighbour, ["a"])
        with caplog.at_level(logging.INFO):
            purgatory.shutdown()
            purgatory.shutdown()
        assert "purgatory orders is shut down; 1 operations wait in it" in caplog.text
        pass_time(30)
    assert not waiting.completed
    assert neighbour.called == ["complete", "expiration"]
    with pytest.raises(RuntimeError, match=r"^purgatory orders is shut down; <WaitingOperation waiting"):
        purgatory.try_complete_else_watch(WaitingOperation(), ["a"])
    waiting.ready = True
    assert purgatory.check_and_complete("a") == 1


def test_a_purgatory_without_a_timer_has_one_and_ends_it() -> None:
    expired = threading.Event()
    purgatory = Purgatory("orders")
    assert purgatory.try_complete_else_watch(WaitingOperation(1, then=expired.set), ["a"]) is False
    assert expired.wait(patience(10))
    purgatory.shutdown()
    assert purgatory._timer.is_shut_down


def test_an_operation_is_watched_once(purgatory: Purgatory) -> None:
    operation = watched(purgatory)
    with pytest.raises(RuntimeError, match="is watched already, here or elsewhere; make a new operation"):
        purgatory.try_complete_else_watch(operation, ["b"])
    assert (purgatory.watched, purgatory.delayed) == (1, 1)
    operation.force_complete()
    assert purgatory.try_complete_else_watch(operation, ["b"]) is False


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ([], ValueError, "keys must hold at least one key, got none"),
        ("order:42", TypeError, r"one key alone is \['order:42'\]"),
        ([["a"]], TypeError, "unhashable"),
    ],
)
def test_invalid_keys_are_refused(purgatory: Purgatory, keys: list[str], error: type[Exception], says: str) -> None:
    operation = WaitingOperation()
    operation.ready = True
    with pytest.raises(error, match=says):
        purgatory.try_complete_else_watch(operation, keys)
    assert not operation.completed


def test_invalid_numbers_and_an_operation_without_the_two_hooks_are_refused(timer: SystemTimer) -> None:
    with pytest.raises(ValueError, match="delay_ms must be at least 0, got -1"):
        WaitingOperation(-1)
    with pytest.raises(TypeError, match=r"delay_ms must be an integer, got 1\.5"):
        WaitingOperation(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shards must be at least 1, got 0"):
        Purgatory("orders", timer, shards=0, reaper=False)
    with pytest.raises(ValueError, match="purge_interval must be at least 0, got -1"):
        Purgatory("orders", timer, purge_interval=-1, reaper=False)
    with pytest.raises(TypeError, match="abstract"):
        DelayedOperation(1)  # type: ignore[abstract]


def test_a_hook_that_calls_exit_ends_neither_the_reaper_nor_operations_due_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, expired = WatchedClock(), threading.Event()
    with Purgatory("orders", SystemTimer(clock)) as purgatory, caplog.at_level(logging.ERROR):
        clock.wait_for_waiter()
        leaving, same_time = WaitingOperation(5, then=sys.exit), WaitingOperation(5)
        later = WaitingOperation(6, then=expired.set)
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
    operation = watched(purgatory)
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
    closed = Purgatory("closed", over, reaper=False)
    with pytest.raises(RuntimeError, match=r"^timer is shut down"):
        closed.try_complete_else_watch(operation, ["a"])
    assert (closed.watched, closed.delayed) == (0, 0)
    purgatory = Purgatory("orders", timer, reaper=False)
    assert purgatory.try_complete_else_watch(operation, ["a"]) is False
    operation.ready = True
    assert purgatory.check_and_complete("a") == 1
