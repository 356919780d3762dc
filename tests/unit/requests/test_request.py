"""Requests to several shards, one of which does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import RequestInDoubt, StoreError, WheelUnavailable
from celery_wheel.requests import request as requests
from celery_wheel.requests.answers import Answers, OpenStore
from celery_wheel.requests.request import TASKS_AT_ONCE, Request
from celery_wheel.requests.results import (
    BestResult,
    CommandResult,
    EveryShard,
    Merge,
    MostUrgentAnswer,
    SummedCounts,
)
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql.store import SqlStore
from tests.kit.patience import patience


def answering(store: SqlStore, shard: int, result: str) -> Callable[[], None]:
    """Return a turn of a holder that answers every command of its shard with ``result``."""
    epoch = store.acquire(shard, "one", 0, 10_000)
    assert epoch is not None

    def turn() -> None:
        for item in store.read_inbox(shard, 10):
            command: dict[str, Any] = json.loads(item.payload)
            names = command.get("gates") or command.get("clocks") or command["task_ids"]
            answer = Answer(command["id"], dict.fromkeys(names, result), 0)
            store.apply(shard, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=2)
    yield opened
    opened.close()


def wait() -> None:
    """The turn of an asker without a holder."""


def request_to(
    store: SqlStore, merge: Merge[Any], kind: str, list_name: str, turn: Callable[[], None] | None
) -> Request[Any]:
    opened = OpenStore("", store, Answers(store), 0)
    return Request(lambda: opened, merge, kind, {}, list_name, turn)


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_gate_is_in_doubt_until_every_shard_has_answered(store: SqlStore, kind: str) -> None:
    """A queue that only one shard pauses is still served by the other."""
    request = request_to(store, EveryShard(), kind, "gates", answering(store, 0, "done"))
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 1") as raised:
        request.ask(["queue:mail"], 0.05)
    assert raised.value.results == {}
    assert store.read_inbox(1, 10) == []


def test_the_most_urgent_answer_of_several_clocks_counts(store: SqlStore) -> None:
    turns = [answering(store, 0, "accepted"), answering(store, 1, "refused")]
    request = request_to(
        store, MostUrgentAnswer(), "accept_clock", "clocks", lambda: [turn() for turn in turns] and None
    )
    assert request.ask(["wall"], patience()) == {"wall": "refused"}
    silent = request_to(store, MostUrgentAnswer(), "accept_clock", "clocks", turns[0])
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 1"):
        silent.ask(["wall"], 0.05)


def test_a_task_that_is_done_in_one_shard_is_done(store: SqlStore) -> None:
    request = request_to(store, BestResult(), "cancel", "task_ids", answering(store, 0, "done"))
    assert request.ask(["a"], patience(0.5)) == {"a": CommandResult.DONE}


def test_the_time_in_which_a_request_is_sent_is_part_of_its_time_out(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender waits for the lock of a SQLite file, for example."""
    put, waited = SqlStore.put_commands, []
    now = [0.0]
    monkeypatch.setattr(requests.time, "monotonic", lambda: now[0])

    def slow(self: SqlStore, *commands: Any) -> list[int]:
        now[0] += 7
        return put(self, *commands)

    def wait(self: Answers, numbers: list[str], timeout_s: float, turn: object) -> dict[str, Any]:
        waited.append(timeout_s)
        now[0] += timeout_s + 0.001
        return {}

    monkeypatch.setattr(SqlStore, "put_commands", slow)
    monkeypatch.setattr(Answers, "wait", wait)
    with pytest.raises(WheelUnavailable, match="within 10 s"):
        request_to(store, BestResult(), "cancel", "task_ids", None).ask(["a"], 10)
    assert waited == [3.0]


def test_a_request_is_withdrawn_when_its_asker_is_interrupted(store: SqlStore) -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        request_to(store, BestResult(), "cancel", "task_ids", turn).ask(["a"], 5)
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_a_request_of_which_only_a_part_was_sent_is_withdrawn(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, names = SqlStore.put_commands, [str(n) for n in range(TASKS_AT_ONCE + 1)]

    def failing(self: SqlStore, *commands: Any) -> list[int]:
        if store.read_inbox(0, 10):
            raise StoreError("the disk is full")
        return ask(self, *commands)

    monkeypatch.setattr(SqlStore, "put_commands", failing)
    with pytest.raises(StoreError, match="the disk is full") as raised:
        request_to(store, BestResult(), "cancel", "task_ids", wait).ask(names, 5)
    assert raised.value.__notes__ == ["nothing of the request (cancel) will happen"]
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []
    monkeypatch.setattr(SqlStore, "withdraw", failing)
    with pytest.raises(RequestInDoubt) as doubt:
        request_to(store, BestResult(), "cancel", "task_ids", wait).ask(names, 0.05)
    assert str(doubt.value) == (
        "the request (cancel) may still be carried out in shard 0, 1, where it could not be withdrawn: the disk is "
        "full; check there before you send it again"
    )
    assert doubt.value.results == {}


# -- a store that goes away ---------------------------------------------------------------------------


class Losing:
    """Loses the answers to commits of commands: some of ``committed`` reached the store all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *committed: bool) -> None:
        self.left, self.puts = list(committed), 0
        real = SqlStore.put_commands

        def put(store: SqlStore, commands: Any, items: list[int]) -> list[int]:
            self.puts += 1
            if not self.left:
                return real(store, commands, items)
            real(store, commands, items)
            if not self.left.pop(0):  # as the server that rolled it back
                for command, item in zip(commands, items, strict=True):
                    assert store.withdraw(item, command)
            raise StoreError("the server closed the connection; the last change may be committed or not")

        monkeypatch.setattr(SqlStore, "put_commands", put)


@pytest.mark.parametrize("committed", [True, False])
def test_a_request_whose_commit_had_no_answer_has_a_result_all_the_same(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    losing = Losing(monkeypatch, committed, committed)
    turns = [answering(store, shard, result) for shard, result in enumerate(("unknown", "done"))]
    request = request_to(store, BestResult(), "cancel", "task_ids", lambda: [turn() for turn in turns] and None)
    assert request.ask(["a"], patience()) == {"a": CommandResult.DONE}
    assert losing.puts == 3
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_a_request_that_was_carried_out_before_its_sender_looked_is_not_sent_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing, withdraw = Losing(monkeypatch, True), SqlStore.withdraw
    turns = [answering(store, shard, result) for shard, result in enumerate(("unknown", "done"))]

    def late(self: SqlStore, *item: Any) -> bool:
        for turn in turns:
            turn()
        return withdraw(self, *item)

    monkeypatch.setattr(SqlStore, "withdraw", late)
    request = request_to(store, BestResult(), "cancel", "task_ids", wait)
    assert request.ask(["a"], patience()) == {"a": CommandResult.DONE}
    assert losing.puts == 1


def test_a_request_whose_commit_had_no_answer_until_its_time_out_is_not_carried_out(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Losing(monkeypatch, True)
    with pytest.raises(StoreError, match="the server closed the connection") as raised:
        request_to(store, BestResult(), "cancel", "task_ids", wait).ask(["a"], 0)
    assert raised.value.__notes__ == ["nothing of the request (cancel) will happen"]
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_a_commit_that_a_signal_interrupts_is_withdrawn(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SqlStore.put_commands

    def put(self: SqlStore, *commands: Any) -> None:
        real(self, *commands)
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlStore, "put_commands", put)
    with pytest.raises(KeyboardInterrupt):
        request_to(store, BestResult(), "cancel", "task_ids", wait).ask(["a"], 5)
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_the_certain_results_stay_where_a_shard_cannot_be_withdrawn_from(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdraw = SqlStore.withdraw

    def failing(self: SqlStore, item: int, command: tuple[int, str, bytes]) -> bool:
        if command[0] == 1:
            raise StoreError("the server is away")
        return withdraw(self, item, command)

    monkeypatch.setattr(SqlStore, "withdraw", failing)
    request = request_to(store, SummedCounts(), "complete", "task_ids", wait)
    with pytest.raises(RequestInDoubt, match=r"carried out in shard 1, where .*: the server is away") as raised:
        request.ask(["a", "b"], 0.05)
    assert raised.value.results == {}
    assert store.read_inbox(0, 10) == []
    done = request_to(store, BestResult(), "cancel", "task_ids", answering(store, 0, "done"))
    assert done.ask(["a"], 0.05) == {"a": CommandResult.DONE}, "no answer of shard 1 can change it"
    epoch = store.acquire(0, "two", 10**15, 10_000)
    assert epoch is not None

    def one_of_two() -> None:
        for item in store.read_inbox(0, 10):
            answer = Answer(json.loads(item.payload)["id"], {"a": "done", "b": "unknown"}, 0)
            store.apply(0, epoch, Change(inbox=[item.id], answers=[answer]))

    some = request_to(store, BestResult(), "cancel", "task_ids", one_of_two)
    with pytest.raises(RequestInDoubt) as raised:
        some.ask(["a", "b"], 0.05)
    assert raised.value.results == {"a": CommandResult.DONE}


def test_a_withdrawal_is_tried_again_while_the_store_is_away(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has taken effect: only its answer was lost."""
    withdraw, tries = SqlStore.withdraw, []

    def failing(self: SqlStore, item: int, command: tuple[int, str, bytes]) -> bool:
        tries.append(item)
        if tries.count(item) == 2:
            assert withdraw(self, item, command)
        if tries.count(item) < 3:
            raise StoreError("the server is away")
        return withdraw(self, item, command)

    monkeypatch.setattr(SqlStore, "withdraw", failing)
    request = request_to(store, BestResult(), "cancel", "task_ids", wait)
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 0, 1 within"):
        request.ask(["a"], patience(1))
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_a_store_that_is_away_while_the_answer_is_awaited_changes_nothing(store: SqlStore) -> None:
    opened, calls = OpenStore("", store, Answers(store), 0), []

    def open_store_late() -> OpenStore:
        calls.append(1)
        if len(calls) in (2, 3):
            raise StoreError("the server is away")
        return opened

    turns = [answering(store, shard, "done") for shard in range(2)]
    request = Request(open_store_late, BestResult(), "cancel", {}, turn=lambda: [turn() for turn in turns] and None)
    assert request.ask(["a"], patience()) == {"a": CommandResult.DONE}


def test_a_command_that_the_holder_could_not_read_is_named(store: SqlStore) -> None:
    epoch = store.acquire(0, "one", 0, 10_000)
    assert epoch is not None

    def reject() -> None:
        store.apply(0, epoch, Change(inbox=[item.id for item in store.read_inbox(0, 10)]))

    request = request_to(store, EveryShard(), "pause", "gates", reject)
    with pytest.raises(RequestInDoubt, match="shard 0 has accepted the command pause and has not answered it"):
        request.ask(["queue:mail"], 0.05)
