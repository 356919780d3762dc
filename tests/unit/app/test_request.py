"""Requests to several shards, of which one is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.requests.answers import Answers
from celery_wheel.requests.process_store import OpenStore
from celery_wheel.requests.request import Request
from celery_wheel.requests.verdicts import BestVerdict, EveryShard, Merge, Verdict, WorstSaying
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql import SqlStore


def answering(store: SqlStore, shard: int, verdict: str) -> Callable[[], None]:
    """A holder that answers whatever comes to its shard."""
    epoch = store.acquire(shard, "one", 0, 10_000)
    assert epoch is not None

    def turn() -> None:
        for item in store.read_inbox(shard, 10):
            given: dict[str, Any] = json.loads(item.payload)
            names = given.get("gates") or given.get("clocks") or given["task_ids"]
            answer = Answer(given["id"], dict.fromkeys(names, verdict), 0)
            store.apply(shard, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=2)
    yield opened
    opened.close()


def request_to(
    store: SqlStore, merge: Merge[Verdict], kind: str, list_name: str, turn: Callable[[], None] | None
) -> Request[Verdict]:
    here = OpenStore("", store, Answers(store), 0)
    return Request(lambda: here, merge, kind, {}, list_name, turn)


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_gate_is_one_in_every_shard(store: SqlStore, kind: str) -> None:
    """What is paused in one shard leaves from the other."""
    request = request_to(store, EveryShard(), kind, "gates", answering(store, 0, "done"))
    with pytest.raises(WheelUnavailable, match="nobody answered for shard 1") as raised:
        request.ask(["queue:mail"], 0.05)
    assert raised.value.verdicts == {}
    assert store.read_inbox(1, 10) == []


def test_a_clock_is_each_shards_own_and_the_answer_is_what_the_operator_has_to_know(store: SqlStore) -> None:
    turns = [answering(store, 0, "accepted"), answering(store, 1, "refused")]
    request = request_to(store, WorstSaying(), "accept_clock", "clocks", lambda: [turn() for turn in turns] and None)
    assert request.ask(["wall"], 0.05) == {"wall": "refused"}
    silent = request_to(store, WorstSaying(), "accept_clock", "clocks", turns[0])
    with pytest.raises(WheelUnavailable, match="nobody answered for shard 1"):
        silent.ask(["wall"], 0.05)


def test_a_task_that_is_done_in_one_shard_is_done(store: SqlStore) -> None:
    request = request_to(store, BestVerdict(), "cancel", "task_ids", answering(store, 0, "done"))
    assert request.ask(["a"], 0.05) == {"a": Verdict.DONE}


def test_an_asker_who_is_interrupted_has_withdrawn_the_request(store: SqlStore) -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        request_to(store, BestVerdict(), "cancel", "task_ids", turn).ask(["a"], 5)
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_what_came_into_one_shard_only_is_withdrawn(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = SqlStore.ask

    def failing(self: SqlStore, shard: int, kind: str, payload: bytes) -> int:
        if shard == 1:
            raise StoreError("the disk is full")
        return ask(self, shard, kind, payload)

    monkeypatch.setattr(SqlStore, "ask", failing)
    with pytest.raises(StoreError, match="the disk is full"):
        request_to(store, BestVerdict(), "cancel", "task_ids", None).ask(["a"], 5)
    assert store.read_inbox(0, 10) == []
    monkeypatch.setattr(SqlStore, "withdraw", lambda self, item: failing(self, 1, "", b""))
    with pytest.raises(StoreError) as raised:
        request_to(store, BestVerdict(), "cancel", "task_ids", None).ask(["a"], 5)
    assert raised.value.__notes__ == [
        "the request (cancel) could not be withdrawn, and may be carried out: the disk is full"
    ]
