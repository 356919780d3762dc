"""Requests that wait for answers of the one store of a process: time-outs, a store that does not answer, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.control import Wheel
from celery_wheel.errors import StoreError
from celery_wheel.requests import answers as module
from celery_wheel.requests.answers import Answers
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import clock
from tests.kit.patience import patience, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

#: Far more than a child needs; a child that waits for its parent's lock waits for ever.
CHILD_S = 20.0


class Source:
    """A store with answers; it keeps the numbers of each poll."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.polls: list[list[str]] = []
        self.error: Exception | None = None

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        self.polls.append(list(command_ids))
        if self.error is not None:
            raise self.error
        return {one: self.stored[one] for one in command_ids if one in self.stored}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def answers(source: Source) -> Iterator[Answers]:
    with closing(Answers(source.answers)) as found:
        yield found


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


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


class Waiting(threading.Thread):
    """A request that waits for the answers of some commands, for at most a minute, in a thread."""

    def __init__(self, answers: Answers, *numbers: str) -> None:
        super().__init__()
        self._answers, self._numbers, self._found = answers, [*numbers], dict[str, Any]()
        self.start()

    def run(self) -> None:
        self._found = self._answers.wait(self._numbers, 60)

    def result(self) -> dict[str, Any]:
        self.join(patience())
        assert not self.is_alive()
        return self._found


def test_many_threads_share_one_poll(answers: Answers, source: Source) -> None:
    numbers, before = [str(n) for n in range(50)], set(threads_of("wheel-answers"))  # that of a former test may end yet
    threads = [Waiting(answers, one) for one in numbers]
    wait_until(lambda: bool(source.polls) and len(source.polls[-1]) == 50, "one poll reads all")
    assert len(set(threads_of("wheel-answers")) - before) == 1
    source.stored = {one: {one: "done"} for one in numbers}
    assert [thread.result() for thread in threads] == [{one: {one: "done"}} for one in numbers]
    wait_until(lambda: not threads_of("wheel-answers"), "the reader ends when no request waits")


def test_a_request_waits_for_all_of_its_commands(answers: Answers, source: Source) -> None:
    source.stored = {"a": {"x": "done"}}
    thread = Waiting(answers, "a", "b")
    wait_until(lambda: source.polls[-1:] == [["b"]], "the answered command is not polled again")
    assert thread.is_alive()
    source.stored["b"] = {"x": "unknown"}
    assert thread.result() == {"a": {"x": "done"}, "b": {"x": "unknown"}}


def test_at_its_time_out_a_request_has_the_answers_that_arrived(
    answers: Answers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.stored = {"a": {"x": "done"}}
    thread = Waiting(answers, "a", "b")
    wait_until(lambda: source.polls[-1:] == [["b"]], "one of the answers has arrived")
    real = clock._passing_ns
    monkeypatch.setattr(clock, "_passing_ns", lambda: real() + 61 * 10**9)
    answers._timer.wake()
    assert thread.result() == {"a": {"x": "done"}}


def test_a_request_does_not_end_before_its_time_out(answers: Answers) -> None:
    began_s = time.monotonic()
    assert answers.wait(["a", "b"], 0.05) == {}
    assert time.monotonic() - began_s >= 0.05
    assert answers.wait(["b"], 0) == {}


def test_a_step_of_the_wall_clock_ends_no_wait(
    answers: Answers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Waiting(answers, "a")
    wait_until(lambda: len(source.polls) > 1, "the request waits")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    answers._timer.wake()
    answers.wait(["b"], 0.01)
    assert thread.is_alive()
    source.stored = {"a": {"x": "done"}}
    assert thread.result() == {"a": {"x": "done"}}


def test_a_store_that_does_not_answer_is_polled_again(
    answers: Answers, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.error = StoreError("away")
    thread = Waiting(answers, "a")
    wait_until(lambda: len(source.polls) >= 2, "the store is polled again")
    assert answers.wait(["b"], 0.01) == {}, "a request that comes meanwhile keeps its time-out"
    source.stored, source.error = {"a": {"x": "done"}}, None
    assert thread.result() == {"a": {"x": "done"}}
    assert caplog.text.count("answers to requests cannot be read (away)") == 1, "one outage is one line of the log"


def test_a_request_ends_when_its_asker_is_interrupted(answers: Answers, source: Source) -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answers.wait(["a"], 30, turn)
    assert answers._open == {}
    assert answers._purgatory.delayed == answers._purgatory.watched == 0


def test_no_thread_is_made_where_the_asker_is_the_holder(answers: Answers, source: Source) -> None:
    before = set(threading.enumerate())
    assert answers.wait(["a"], 30, lambda: source.stored.update(a={"x": "done"})) == {"a": {"x": "done"}}
    assert answers.wait(["b"], 0.01, lambda: None) == {}
    assert set(threading.enumerate()) <= before


def test_closing_ends_every_wait(answers: Answers, source: Source) -> None:
    thread = Waiting(answers, "a")
    wait_until(lambda: bool(source.polls), "the request waits")
    answers.close()
    assert thread.result() == {}
    assert answers.wait(["b"], 60) == {}
    wait_until(lambda: not threads_of("wheel-answers") and not threads_of("wheel-requests"), "no thread is left")


def test_nothing_is_left_of_a_request_that_is_over(answers: Answers, source: Source) -> None:
    source.stored = {str(n): {"x": "done"} for n in range(0, 100, 2)}
    for n in range(100):
        answers.wait([str(n)], 30 if n % 2 == 0 else 0)
    assert answers._open == {}
    assert answers._purgatory.delayed == answers._purgatory.watched == answers._timer.size() == 0


def test_polls_become_rarer_until_another_request_comes(
    answers: Answers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request would wait for an hour without a first poll of its own."""
    monkeypatch.setattr(module, "MOST_S", 3_600)
    answers._pause_s = 3_600
    first = Waiting(answers, "a")
    wait_until(lambda: len(source.polls) >= 1, "the first poll")
    with answers._changed:
        answers._poll_at_s = time.monotonic() + 3_600
    source.stored = {"a": {}, "b": {"x": "done"}}
    assert answers.wait(["b"], 30) == {"b": {"x": "done"}}
    assert first.result() == {"a": {}}


def test_a_child_forked_while_requests_are_open_reads_its_own_answers(answers: Answers, source: Source) -> None:
    """The parent holds the lock at that moment, and its reader does not exist in the child."""
    thread = Waiting(answers, "a")
    wait_until(lambda: bool(source.polls), "the request waits")
    source.stored = {"b": {"x": "done"}}
    with answers._changed:
        assert in_child(lambda: Answers(source.answers).wait(["b"], patience()) == {"b": {"x": "done"}})
    source.stored["a"] = {"x": "done"}
    assert thread.result() == {"a": {"x": "done"}}


# -- the store of a process --------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Wheel]:
    app = Celery("forked", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.wheel_store = f"sqlite:///{tmp_path}/wheel.sqlite3"
    open_store(app.conf.wheel_store).close()
    with closing(app.wheel) as found:
        yield found


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


def test_a_child_leaves_the_connections_of_its_parent_alone(wheel: Wheel) -> None:
    store = wheel.store

    def work() -> bool:
        other = wheel.store is not store
        wheel.close()
        return other

    assert in_child(work)
    assert wheel.store is store
    assert wheel.pending().items == []


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
