"""Revokes on their way into the store; and the scan for stamps, on a real store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_wheel.engine.state.stamps import RevokedStamps
from celery_wheel.errors import StoreError
from celery_wheel.node import revoking
from celery_wheel.node.commands import Commands
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
    assert revokes.revoke(["b", "a", "b"]) == (["a", "b"], [])
    for shard in (0, 1):
        [command] = commands(store, shard)
        assert (command["task_ids"], command["for_good"]) == (["a", "b"], True)


def test_many_go_in_parts_and_what_is_no_id_does_not_go(store: SqlStore, revokes: Revoking) -> None:
    ids = [f"{n:04}" for n in range(1_200)]
    bad = ["", "a\0b", "x" * 600, "\ud800", 7, None, ["a"]]
    assert revokes.revoke([*ids, *bad]) == (ids, bad)
    assert [len(command["task_ids"]) for command in commands(store, 0)] == [500, 500, 200]


def test_a_store_that_does_not_answer_gets_it_later(
    store: SqlStore, revokes: Revoking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise StoreError("away")

        patch.setattr(store, "put_inboxes", fail)
        with pytest.raises(StoreError, match="away"):
            revokes.revoke(["a"])
        revokes.look()
    assert commands(store, 0) == []
    revokes.look()
    assert [command["task_ids"] for command in commands(store, 0)] == [["a"]]
    assert [command["task_ids"] for command in commands(store, 1)] == [["a"]]


@pytest.fixture
def away(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The store does not take anything, until this is called."""

    def fail(*_: Any) -> None:
        raise StoreError("away")

    put = store.put_inboxes
    monkeypatch.setattr(store, "put_inboxes", fail)
    return lambda: monkeypatch.setattr(store, "put_inboxes", put)


def test_what_waits_for_the_store_is_merged(store: SqlStore, revokes: Revoking, away: Callable[[], None]) -> None:
    """A thousand revokes of a task each are a few commands, and one that comes again is there once."""
    for n in range(1_200):
        with pytest.raises(StoreError, match=f"away; {n + 1:,} revoked ids wait in the memory of wheel@h"):
            revokes.revoke([f"{n:04}"])
    with pytest.raises(StoreError, match="1,201 revoked ids wait"):
        revokes.revoke(["0007", "stamped"], "by stamp")
    away()
    revokes.look()
    for shard in (0, 1):
        found = commands(store, shard)
        assert [(one["reason"], len(one["task_ids"])) for one in found] == [
            ("revoked", 500),
            ("revoked", 500),
            ("revoked", 200),
            ("by stamp", 1),
        ]


def test_more_than_can_be_kept_is_refused_in_words(
    store: SqlStore,
    revokes: Revoking,
    away: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(revoking, "MOST_KEPT", 3)
    with pytest.raises(StoreError, match="2 revoked ids wait"):
        revokes.revoke(["a", "b"])
    said = r"away; 2 of 2 ids were refused and are not revoked: 2 wait in the memory of wheel@h, which keeps 3"
    with pytest.raises(StoreError, match=said):
        revokes.revoke(["a", "c", "d"])
    assert "2 of 2 ids were refused" in caplog.text
    away()
    assert revokes.revoke(["e"]) == (["e"], [])
    assert [command["task_ids"] for command in commands(store, 0)] == [["a", "b", "e"]]


def test_a_store_that_answers_takes_more_than_can_be_kept(
    store: SqlStore, revokes: Revoking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoking, "MOST_KEPT", 3)
    assert len(revokes.revoke([str(n) for n in range(9)])[0]) == 9


@pytest.mark.parametrize("back", [True, False])
def test_a_scheduler_that_ends_writes_what_it_kept_or_says_what_is_lost(
    store: SqlStore, revokes: Revoking, away: Callable[[], None], caplog: pytest.LogCaptureFixture, back: bool
) -> None:
    with pytest.raises(StoreError):
        revokes.revoke(["a", "b"])
    if back:
        away()
    revokes.close()
    assert ("2 revoked ids could not be written and are lost" in caplog.text) is not back
    if back:
        assert [command["task_ids"] for command in commands(store, 1)] == [["a", "b"]]


def test_the_answer_to_a_revoke_names_what_was_ignored(store: SqlStore, revokes: Revoking) -> None:
    view = View("wheel@h", store, lambda: [0], RevokedStamps())
    answering = Commands(Celery("revoking", set_as_current=False), view, revokes)
    assert answering.revoke(None, task_id="a") == {"ok": "tasks a flagged as revoked"}
    said = answering.revoke(None, task_id=["a", "\ud800", "", *range(5)])["ok"]
    assert said == r"tasks a flagged as revoked; 7 ignored, which can be no task ids: '\ud800', '', 0, 1, 2 …"


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
