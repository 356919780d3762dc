"""Each process opens one store, whatever its parent's threads did at the fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_wheel import Celery
from celery_wheel.control import Wheel
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from tests.kit.patience import patience, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

#: Far more than a child needs; a child that waits for its parent's lock waits for ever.
CHILD_S = 20.0


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    app = Celery("forked", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    open_store(app.conf.wheel_store).close()
    found: Wheel = app.wheel
    return found


def in_child(work: Callable[[], bool]) -> bool:
    """Return whether ``work`` is true in a forked child; a child that hangs is killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(pid)

    try:
        wait_until(has_ended, "the child ends", CHILD_S)
    except AssertionError:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    return ended == [0]


def test_a_child_forked_while_the_lock_is_held_opens_the_store_itself(wheel: Wheel) -> None:
    """Another thread of the parent opens the store at that moment."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with wheel._process_store._state.lock:
            held.set()
            let_go.wait(patience(60))

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(patience(30))
    try:
        assert in_child(lambda: wheel.pending().items == [])
    finally:
        let_go.set()
        thread.join()
    assert wheel.pending().items == []
    wheel.close()


def test_a_child_leaves_the_connections_of_its_parent_alone(wheel: Wheel) -> None:
    store = wheel.store

    def work() -> bool:
        other = wheel.store is not store
        wheel.close()
        return other

    assert in_child(work)
    assert wheel.store is store
    assert wheel.pending().items == []
    wheel.close()


def test_threads_open_one_store(wheel: Wheel) -> None:
    together, found = threading.Barrier(8), []

    def ask() -> None:
        together.wait(patience(30))
        found.append(wheel.store)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(30))
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    wheel.close()


def write_once(store: FullStore) -> bool:
    return store.withdraw(store.put_command(0, "cancel", b"{}"), (0, "cancel", b"{}"))


def test_a_child_forked_while_another_thread_writes_can_write(wheel: Wheel) -> None:
    """SQLite keeps its locks in the memory of the process: a child could find the file locked for ever."""
    store, stop = wheel.store, threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_once(store)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: write_once(wheel.store))
    finally:
        stop.set()
        for thread in threads:
            thread.join(patience(30))
    wheel.close()
