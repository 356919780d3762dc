"""x"""

import asyncio
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from celery_wheel import Celery, CommandResult, WheelUnavailable
from celery_wheel.control import Wheel
from celery_wheel.errors import StoreError
from celery_wheel.requests import answers as module
from celery_wheel.requests.answers import Answers
from celery_wheel.requests.asynchronous import THREADS
from celery_wheel.requests.request import TransactionalRequest
from celery_wheel.requests.schedules import Schedules
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.ports import FullStore
from celery_wheel.store.sql.store import SqlStore
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
    with pytest.raises(KeyboardInterrupt):
        answers.wait(["a"], 30, mock.Mock(side_effect=KeyboardInterrupt))
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
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: (together.wait(patience(30)), wheel.store)[1], range(8)))
    assert len(set(map(id, found))) == 1


def test_threads_use_the_open_store_while_one_of_them_checks_it(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    store, begun, released = wheel.store, threading.Event(), threading.Event()

    def hang(_: SqlStore) -> bool:
        begun.set()
        return released.wait(patience(60))

    monkeypatch.setattr(module, "CHECK_EVERY_S", 0)
    monkeypatch.setattr(SqlStore, "is_as_opened", hang)
    with ThreadPoolExecutor(2) as pool:
        checks = pool.submit(lambda: wheel.store)
        assert begun.wait(patience(30))
        try:
            assert pool.submit(lambda: wheel.store).result(patience(5)) is store
        finally:
            released.set()
        assert checks.result() is store


def write_once(store: FullStore) -> bool:
    return store.withdraw(store.put_command(0, "cancel", b"{}"), (0, "cancel", b"{}"))


@pytest.mark.slow
def test_a_child_forked_while_another_thread_writes_can_write(wheel: Wheel) -> None:
    """SQLite keeps its locks in the memory of the process: a child could find the file locked for ever."""
    store, stop = wheel.store, threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_once(store)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(write)
        try:
            for _ in range(10):
                assert in_child(lambda: write_once(wheel.store))
        finally:
            stop.set()


#: Public methods that ask neither the store nor a holder, or are for programs that build on the requests.
WITHOUT_TWIN = {"ask", "change", "close", "joins_transaction", "request", "where"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")) as opened:
        yield opened


@pytest.fixture
def app(store: SqlStore, tmp_path: Path) -> Iterator[Any]:
    app: Any = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(wheel_store=f"sqlite:///{tmp_path}/wheel.sqlite3")
    yield app
    app.wheel.close()


def answer_all(store: SqlStore) -> threading.Thread:
    """Start a holder that answers the next command with ``done``."""
    epoch = store.acquire(0, "one", 0, 60_000)
    assert epoch is not None

    def answer() -> None:
        while not (items := store.read_inbox(0, 10)):
            pass
        command = json.loads(items[0].payload)
        results = dict.fromkeys(command["task_ids"], "done")
        store.apply(0, epoch, Change(inbox=[items[0].id], answers=[Answer(command["id"], results, 0)]))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


async def is_sent(store: SqlStore, count: int = 1) -> None:
    while len(store.read_inbox(0, 100)) < count:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("of", [Wheel, Schedules, TransactionalRequest])
def test_each_public_method_has_a_twin_with_its_documentation(of: type) -> None:
    methods = {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}
    twins = {name for name in methods if inspect.iscoroutinefunction(getattr(of, name))}
    assert {f"a{name}" for name in methods - twins - WITHOUT_TWIN} == twins
    for name in twins:
        twin = getattr(of, name)
        assert twin.__name__ == name
        assert twin.__doc__.startswith(f"Async twin of ``{name[1:]}``: ")
        assert inspect.signature(twin) == inspect.signature(getattr(of, name[1:]))


def test_a_twin_returns_as_its_method_does(app: Any, store: SqlStore) -> None:
    async def ask() -> Any:
        return (
            await app.wheel.acancel(["a", "b"], timeout=patience()),
            await app.wheel.apending(),
            await app.wheel.schedules.aget("none"),
        )

    answering = answer_all(store)
    results, page, schedule = asyncio.run(ask())
    answering.join()
    assert results == dict.fromkeys("ab", CommandResult.DONE)
    assert (page.items, schedule) == ([], None)


def test_a_twin_raises_as_its_method_does(app: Any, store: SqlStore) -> None:
    with pytest.raises(WheelUnavailable, match=r"no scheduler answered for shard 0 within 0\.01 s"):
        asyncio.run(app.wheel.acancel("a", timeout=0.01))
    with pytest.raises(TypeError, match="a task must be its id"):
        asyncio.run(app.wheel.acancel(7))
    with pytest.raises(LookupError, match="there is no schedule 'none'"):
        asyncio.run(app.wheel.schedules.apreview("none"))


def test_a_cancelled_awaiter_withdraws_its_requests(app: Any, store: SqlStore) -> None:
    async def give_up() -> None:
        asked = [asyncio.create_task(app.wheel.acancel(f"task {number}", timeout=600)) for number in range(40)]
        await is_sent(store, 30)  # the others wait for a thread
        assert {type(one) for one in await cancel_all(asked)} == {asyncio.CancelledError}

    asyncio.run(give_up())
    assert store.read_inbox(0, 100) == []


def test_a_time_out_of_asyncio_withdraws_the_request(app: Any, store: SqlStore) -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.05):
            await app.wheel.schedules.acreate_many({"report": {"recurrence": 60, "task": "app.report"}}, timeout=600)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    assert store.read_inbox(0, 10) == []


def test_the_event_loop_goes_on_while_a_twin_waits(app: Any, store: SqlStore) -> None:
    async def ask() -> int:
        asked = asyncio.create_task(app.wheel.acancel("a", timeout=patience()))
        await is_sent(store)
        turns = 0
        while turns < 20 and not asked.done():
            await asyncio.sleep(0)
            turns += 1
        asked.cancel()
        with suppress(WheelUnavailable, asyncio.CancelledError):
            await asked
        return turns

    assert asyncio.run(ask()) == 20


async def cancel_all(waiting: list[asyncio.Task[Any]]) -> list[Any]:
    for one in waiting:
        one.cancel()
    return await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("threads", [THREADS, 1], ids=["the package's threads", "Django's thread"])
def test_a_twin_that_waits_for_a_thread_ends_at_once_and_sends_nothing(
    app: Any, store: SqlStore, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    if threads == 1:
        monkeypatch.setattr("celery_wheel.requests.asynchronous._joins", lambda *_: True)

    async def ask() -> int:
        waiting = [asyncio.create_task(app.wheel.acancel(f"task {number}", timeout=600)) for number in range(threads)]
        await is_sent(store, threads)
        queued = asyncio.create_task(app.wheel.acancel("queued", timeout=600))
        await asyncio.sleep(0)  # it waits for a thread
        queued.cancel()
        ended, _ = await asyncio.wait([queued], timeout=patience(5))
        assert ended == {queued}, "it waits for a thread although it was cancelled"
        assert queued.cancelled()
        asked = len(store.read_inbox(0, 100))
        await cancel_all(waiting)
        await app.wheel.apending()  # a thread is free again
        return asked

    assert asyncio.run(ask()) == threads
    assert store.read_inbox(0, 100) == []


def test_a_second_cancel_does_not_leave_before_the_request_is_withdrawn(
    app: Any, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdrawing, go_on, withdraw = threading.Event(), threading.Event(), SqlStore.withdraw

    def slow(self: SqlStore, *item: Any) -> bool:
        withdrawing.set()
        assert go_on.wait(patience())
        return withdraw(self, *item)

    monkeypatch.setattr(SqlStore, "withdraw", slow)

    async def ask() -> None:
        asked = asyncio.create_task(app.wheel.acancel("a", timeout=600))
        await is_sent(store)
        asked.cancel()
        while not withdrawing.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            asked.cancel()
            await asyncio.sleep(0.01)
        assert not asked.done(), "the request is not withdrawn yet"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert store.read_inbox(0, 1) == []

    asyncio.run(ask())


def test_the_error_of_a_cancelled_twin_says_what_became_of_the_request(
    app: Any, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> BaseException:
        asked = asyncio.create_task(app.wheel.acancel("a", timeout=600))
        await is_sent(store)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await asked
        assert raised.value.__cause__ is not None
        return raised.value.__cause__

    assert not hasattr(asyncio.run(ask()), "__notes__")
    monkeypatch.setattr(SqlStore, "withdraw", mock.Mock(side_effect=StoreError("the store is away")))
    [note] = asyncio.run(ask()).__notes__
    assert note.startswith("the request (cancel) may still be carried out in shard 0, where it could not be withdrawn")


def test_a_coroutine_that_is_dropped_leaves_no_request(app: Any, store: SqlStore) -> None:
    """A loop that is stopped drops its coroutines without a cancel."""
    loop = asyncio.new_event_loop()
    asked = app.wheel.acancel("a", timeout=600)

    async def step() -> None:
        asked.send(None)

    loop.run_until_complete(step())
    wait_until(lambda: store.read_inbox(0, 1), "the request is sent")
    asked.close()
    wait_until(lambda: not store.read_inbox(0, 1), "the request is withdrawn")
    loop.close()
