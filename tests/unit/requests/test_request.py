"""Requests to several shards, one of which does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.requests import request as requests
from celery_wheel.requests.answers import Answers
from celery_wheel.requests.process_store import OpenStore
from celery_wheel.requests.request import TASKS_AT_ONCE, Request
from celery_wheel.requests.results import BestResult, CommandResult, EveryShard, Merge, MostUrgentAnswer
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


def request_to(
    store: SqlStore, merge: Merge[CommandResult], kind: str, list_name: str, turn: Callable[[], None] | None
) -> Request[CommandResult]:
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

    def slow(self: SqlStore, commands: list[tuple[int, str, bytes]]) -> list[int]:
        now[0] += 7
        return put(self, commands)

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

    def failing(self: SqlStore, commands: list[tuple[int, str, bytes]]) -> list[int]:
        if store.read_inbox(0, 10):
            raise StoreError("the disk is full")
        return ask(self, commands)

    monkeypatch.setattr(SqlStore, "put_commands", failing)
    with pytest.raises(StoreError, match="the disk is full"):
        request_to(store, BestResult(), "cancel", "task_ids", None).ask(names, 5)
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []
    monkeypatch.setattr(SqlStore, "withdraw", lambda self, item: failing(self, []))
    with pytest.raises(StoreError) as raised:
        request_to(store, BestResult(), "cancel", "task_ids", None).ask(names, 5)
    assert raised.value.__notes__ == [
        "the request (cancel) could not be withdrawn, and may be carried out: the disk is full"
    ]
