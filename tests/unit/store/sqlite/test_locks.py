"""A fork and the threads that are inside SQLite."""

import ctypes
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from celery_wheel.store.sqlite.locks import FairLock, ForkGate
from tests.kit.patience import patience, wait_until


def test_waiters_get_the_lock_in_the_order_of_their_arrival() -> None:
    turns, order = FairLock(), list[int]()

    def take(n: int) -> None:
        with turns:
            order.append(n)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    with turns:
        for n, thread in enumerate(threads):
            thread.start()
            wait_until(lambda n=n: len(turns._waiting) > n, "a thread that waits")  # type: ignore[misc]
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_the_lock_is_free_after_an_error() -> None:
    turns = FairLock()
    with suppress(ValueError), turns:
        raise ValueError
    with turns:
        pass


def test_one_thread_at_a_time_has_the_lock() -> None:
    turns, inside, most = FairLock(), 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(500):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert (inside, most) == (0, 1)


def assert_free(turns: FairLock) -> None:
    entered = threading.Event()

    def enter() -> None:
        with turns:
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    assert entered.wait(patience(10)), "the turn was handed to a ticket that nobody waits for"


def test_an_interrupted_waiter_removes_its_ticket() -> None:
    """Ctrl-C in the main thread, while another thread writes."""
    turns, entered, may_end = FairLock(), threading.Event(), threading.Event()

    def work() -> None:
        with turns:
            entered.set()
            wait_until(lambda: len(turns._waiting) == 1, "the main thread waits")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            may_end.wait(patience(10))

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(patience(10))
    with pytest.raises(KeyboardInterrupt):
        turns.__enter__()
    may_end.set()
    thread.join()
    assert_free(turns)


def test_a_waiter_that_is_interrupted_with_the_lock_passes_it_on() -> None:
    turns, seen = FairLock(), list[str]()

    def wait() -> None:
        with suppress(KeyboardInterrupt), turns:
            seen.append("it was interrupted before")

    thread = threading.Thread(target=wait)
    with turns:
        thread.start()
        wait_until(lambda: len(turns._waiting) == 1, "a thread that waits")
        # Raised at the thread's next step, after its wait: the thread has the lock, and is not inside the block.
        identity, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, error) == 1
    thread.join()
    assert seen == []
    assert_free(turns)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_lock_is_free_in_a_forked_child() -> None:
    turns, entered, may_end = FairLock(), threading.Event(), threading.Event()

    def work() -> None:
        with turns:
            entered.set()
            may_end.wait(patience(60))

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(patience(10))
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits
        with turns:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    thread.join()
    assert status == 0


def test_a_fork_waits_for_threads_inside_and_later_threads_wait_for_the_fork() -> None:
    gate, leave, order = ForkGate(), threading.Event(), list[str]()

    def inside() -> None:
        with gate.entered():
            leave.wait(patience(30))
            with gate.entered():  # the thread is inside, and has to finish its work
                order.append("left")

    def late() -> None:
        with gate.entered():
            order.append("entered")

    first = threading.Thread(target=inside)
    first.start()
    wait_until(lambda: bool(gate._inside), "it is inside")
    forker = threading.Thread(target=lambda: (gate.before(), order.append("forked")))
    forker.start()
    wait_until(lambda: gate._forking is not None, "a fork waits")
    second = threading.Thread(target=late)
    second.start()
    leave.set()
    first.join(patience(30))
    forker.join(patience(30))
    assert order == ["left", "forked"]
    gate.after_in_parent()
    second.join(patience(30))
    assert order == ["left", "forked", "entered"]


def test_a_thread_that_forks_inside_its_own_transaction_does_not_wait_for_itself() -> None:
    gate = ForkGate()
    with gate.entered():
        gate.before()
        gate.after_in_child()
        with gate.entered():
            pass
    assert gate._inside == {}
