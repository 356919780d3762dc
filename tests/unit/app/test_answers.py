"""Requests that wait for answers: one reader for all threads, time-outs, a store that is away, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from celery_wheel.errors import StoreError
from celery_wheel.requests import answers as module
from celery_wheel.requests.answers import Answers
from tests.servers import wait_until


class Source:
    """Answers that are there, and how often they were looked for."""

    def __init__(self) -> None:
        self.there: dict[str, dict[str, Any]] = {}
        self.looks: list[list[str]] = []
        self.error: Exception | None = None

    def answers(self, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        self.looks.append(list(command_ids))
        if self.error is not None:
            raise self.error
        return {one: self.there[one] for one in command_ids if one in self.there}


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def answers(source: Source) -> Iterator[Answers]:
    found = Answers(source)
    yield found
    found.close()


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def begin(answers: Answers, numbers: list[str], timeout_s: float, into: dict[str, Any]) -> threading.Thread:
    def wait() -> None:
        into[numbers[0]] = answers.wait(numbers, timeout_s)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_many_threads_share_one_look(answers: Answers, source: Source) -> None:
    found: dict[str, Any] = {}
    numbers = [str(n) for n in range(50)]
    threads = [begin(answers, [one], 30, found) for one in numbers]
    wait_until(lambda: bool(source.looks) and len(source.looks[-1]) == 50, "all are looked for at once")
    assert len(threads_of("wheel-answers")) == 1
    source.there = {one: {one: "done"} for one in numbers}
    for thread in threads:
        thread.join(30)
    assert found == {one: {one: {one: "done"}} for one in numbers}
    wait_until(lambda: not threads_of("wheel-answers"), "the reader ends when nothing waits")


def test_a_request_waits_for_all_of_its_commands(answers: Answers, source: Source) -> None:
    source.there = {"a": {"x": "done"}}
    found: dict[str, Any] = {}
    thread = begin(answers, ["a", "b"], 30, found)
    wait_until(lambda: source.looks[-1:] == [["b"]], "the one that is answered is asked for no more")
    assert thread.is_alive()
    source.there["b"] = {"x": "unknown"}
    thread.join(30)
    assert found["a"] == {"a": {"x": "done"}, "b": {"x": "unknown"}}


def test_at_its_time_out_a_request_has_the_answers_that_came(answers: Answers, source: Source) -> None:
    source.there = {"a": {"x": "done"}}
    began_s = time.monotonic()
    assert answers.wait(["a", "b"], 0.05) == {"a": {"x": "done"}}
    assert time.monotonic() - began_s >= 0.05
    assert answers.wait(["b"], 0) == {}


def test_a_step_of_the_wall_clock_ends_no_wait(
    answers: Answers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    thread = begin(answers, ["a"], 60, found)
    wait_until(lambda: len(source.looks) > 1, "it waits")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    answers._timer.wake()
    answers.wait(["b"], 0.01)
    assert thread.is_alive()
    source.there = {"a": {"x": "done"}}
    thread.join(30)
    assert found["a"] == {"a": {"x": "done"}}


def test_a_store_that_is_away_is_asked_again(
    answers: Answers, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.error = StoreError("away")
    found: dict[str, Any] = {}
    thread = begin(answers, ["a"], 30, found)
    wait_until(lambda: len(source.looks) >= 2, "it is tried again")
    assert answers.wait(["b"], 0.01) == {}, "whoever comes meanwhile has a time-out as ever"
    source.there, source.error = {"a": {"x": "done"}}, None
    thread.join(30)
    assert found["a"] == {"a": {"x": "done"}}
    assert caplog.text.count("answers to requests cannot be read (away)") == 1, "one outage, one line"


def test_an_asker_who_is_interrupted_waits_no_more(answers: Answers, source: Source) -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answers.wait(["a"], 30, turn)
    assert answers._open == {}
    assert answers._purgatory.delayed == answers._purgatory.watched == 0


def test_where_the_asker_is_the_holder_no_thread_is_made(answers: Answers, source: Source) -> None:
    before = set(threading.enumerate())
    assert answers.wait(["a"], 30, lambda: source.there.update(a={"x": "done"})) == {"a": {"x": "done"}}
    assert answers.wait(["b"], 0.01, lambda: None) == {}
    assert set(threading.enumerate()) <= before


def test_closing_ends_every_wait(answers: Answers, source: Source) -> None:
    found: dict[str, Any] = {}
    thread = begin(answers, ["a"], 60, found)
    wait_until(lambda: bool(source.looks), "it waits")
    answers.close()
    thread.join(30)
    assert found == {"a": {}}
    assert answers.wait(["b"], 60) == {}
    wait_until(lambda: not threads_of("wheel-answers") and not threads_of("wheel-requests"), "no thread is left")


def test_nothing_is_left_of_what_is_over(answers: Answers, source: Source) -> None:
    source.there = {str(n): {"x": "done"} for n in range(0, 100, 2)}
    for n in range(100):
        answers.wait([str(n)], 30 if n % 2 == 0 else 0)
    assert answers._open == {}
    assert answers._purgatory.delayed == answers._purgatory.watched == answers._timer.size() == 0


def test_looks_become_rarer_until_another_request_comes(
    answers: Answers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second would wait for an hour, were the first look not its own."""
    monkeypatch.setattr(module, "MOST_S", 3_600)
    answers._pause_s = 3_600
    found: dict[str, Any] = {}
    first = begin(answers, ["a"], 60, found)
    wait_until(lambda: len(source.looks) >= 1, "the first look")
    with answers._changed:
        answers._look_at_s = time.monotonic() + 3_600
    source.there = {"a": {}, "b": {"x": "done"}}
    assert answers.wait(["b"], 30) == {"b": {"x": "done"}}
    first.join(30)
    assert not first.is_alive()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_requests_are_open_asks_on_its_own(answers: Answers, source: Source) -> None:
    """Its parent's reader holds the lock at that moment, and is not there."""
    found: dict[str, Any] = {}
    thread = begin(answers, ["a"], 60, found)
    wait_until(lambda: bool(source.looks), "it waits")
    source.there = {"b": {"x": "done"}}
    with answers._changed:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                own = Answers(source)
                code = 0 if own.wait(["b"], 10) == {"b": {"x": "done"}} else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    source.there["a"] = {"x": "done"}
    thread.join(30)
    assert found["a"] == {"a": {"x": "done"}}
