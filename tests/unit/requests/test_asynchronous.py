"""Async twins: each public method of ``app.wheel`` has one, and a cancelled awaiter leaves no request behind."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery, CommandResult, WheelUnavailable
from celery_wheel.control import Wheel
from celery_wheel.errors import StoreError
from celery_wheel.requests.asynchronous import THREADS
from celery_wheel.requests.request import TransactionalRequest
from celery_wheel.requests.schedules import Schedules
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import patience, wait_until

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
    def away(self: SqlStore, *item: Any) -> bool:
        raise StoreError("the store is away")

    async def ask() -> BaseException:
        asked = asyncio.create_task(app.wheel.acancel("a", timeout=600))
        await is_sent(store)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await asked
        assert raised.value.__cause__ is not None
        return raised.value.__cause__

    assert not hasattr(asyncio.run(ask()), "__notes__")
    monkeypatch.setattr(SqlStore, "withdraw", away)
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
