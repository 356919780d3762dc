"""Revokes on their way into the store; and the scan for stamps, on a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.engine.stamps import RevokedStamps
from celery_wheel.errors import StoreError
from celery_wheel.node import revoking
from celery_wheel.node.revoking import Revoking
from celery_wheel.node.view import View
from celery_wheel.service import node_name
from celery_wheel.store import open_store
from celery_wheel.store.sql import SqlStore
from tests.stores.samples import NOW, Holder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=2)
    yield found
    found.close()


@pytest.fixture
def revokes(store: SqlStore) -> Revoking:
    return Revoking(View("wheel@h", store, lambda: [0], RevokedStamps()))


def commands(store: SqlStore, shard: int) -> list[dict[str, Any]]:
    return [json.loads(item.payload) for item in store.read_inbox(shard, 100)]


def test_a_revoke_goes_to_every_shard_held_or_not(store: SqlStore, revokes: Revoking) -> None:
    assert revokes.revoke(["b", "a", "b"]) == ["a", "b"]
    for shard in (0, 1):
        [command] = commands(store, shard)
        assert (command["task_ids"], command["for_good"]) == (["a", "b"], True)


def test_many_go_in_parts_and_what_is_no_id_does_not_go(store: SqlStore, revokes: Revoking) -> None:
    ids = [f"{n:04}" for n in range(1_200)]
    assert revokes.revoke([*ids, "", "a\0b", "x" * 600, "\ud800", 7, None]) == ids
    assert [len(command["task_ids"]) for command in commands(store, 0)] == [500, 500, 200]


def test_a_store_that_does_not_answer_gets_it_later(
    store: SqlStore, revokes: Revoking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise StoreError("away")

        patch.setattr(store, "put_inbox", fail)
        with pytest.raises(StoreError, match="away"):
            revokes.revoke(["a"])
        revokes.look()
    assert commands(store, 0) == []
    revokes.look()
    assert [command["task_ids"] for command in commands(store, 0)] == [["a"]]
    assert [command["task_ids"] for command in commands(store, 1)] == [["a"]]


def test_a_scan_finds_what_waits_as_far_as_it_looks(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revoking, "PAGE", 10)
    monkeypatch.setattr(revoking, "SCANNED", 30)
    holder, rows = Holder(store), []
    for n in range(50):
        row = holder.row(NOW + n)
        stamps = {"n": [str(n)]} if n % 2 else None
        rows.append(replace(row, message=replace(row.message, headers=json.dumps({"stamps": stamps}).encode())))
    holder.apply(rows=rows)
    stamps = RevokedStamps()
    revokes = Revoking(View("n", store, lambda: [0], stamps))
    stamps.add({"n": ["3", "4", "29", "31"]})
    assert revokes.scan(0) == 30
    found = [task_id for command in commands(store, 0) for task_id in command["task_ids"]]
    assert found == [rows[3].message.task_id, rows[29].message.task_id]
    assert "the later ones wait on" in caplog.text


def test_of_several_schedulers_on_a_host_each_has_its_name() -> None:
    assert node_name("h/aa/1", ["h/aa/1", "other/bb/2"]) == "wheel@h"
    assert node_name("h/aa/1", ["h/aa/1", "h/bb/2"]) == "wheel-1@h"
