"""Requests to several shards, of which one is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import StoreError, WheelUnavailable
from celery_wheel.request import ForGates, ForVerdicts, Verdict
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
            names = given.get("gates") or given["task_ids"]
            answer = Answer(given["id"], dict.fromkeys(names, verdict), 0)
            store.apply(shard, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=2)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_gate_is_one_in_every_shard(store: SqlStore, kind: str) -> None:
    """What is paused in one shard leaves from the other."""
    request = ForGates(lambda: store, kind, {}, "gates", answering(store, 0, "done"))
    with pytest.raises(WheelUnavailable, match="nobody answered for shard 1") as raised:
        request.ask(["queue:mail"], 0.05)
    assert raised.value.verdicts == {}
    assert store.read_inbox(1, 10) == []


def test_a_task_that_is_done_in_one_shard_is_done(store: SqlStore) -> None:
    request = ForVerdicts(lambda: store, "cancel", {}, "task_ids", answering(store, 0, "done"))
    assert request.ask(["a"], 0.05) == {"a": Verdict.DONE}


def test_who_is_interrupted_while_it_waits_has_taken_it_back(store: SqlStore) -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ForVerdicts(lambda: store, "cancel", {}, "task_ids", turn).ask(["a"], 5)
    assert store.read_inbox(0, 10) == store.read_inbox(1, 10) == []


def test_what_came_into_one_shard_only_is_taken_back(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = SqlStore.ask

    def failing(self: SqlStore, shard: int, kind: str, payload: bytes) -> int:
        if shard == 1:
            raise StoreError("the disk is full")
        return ask(self, shard, kind, payload)

    monkeypatch.setattr(SqlStore, "ask", failing)
    with pytest.raises(StoreError, match="the disk is full"):
        ForVerdicts(lambda: store, "cancel", {}).ask(["a"], 5)
    assert store.read_inbox(0, 10) == []
    monkeypatch.setattr(SqlStore, "take_back", lambda self, item: failing(self, 1, "", b""))
    with pytest.raises(StoreError) as raised:
        ForVerdicts(lambda: store, "cancel", {}).ask(["a"], 5)
    assert raised.value.__notes__ == [
        "the request (cancel) could not be taken back, and may be carried out: the disk is full"
    ]
