"""Revokes are written to the store, and pending tasks are scanned for stamps, on a real store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.errors import StoreError
from celery_wheel.scheduler.remote_control import SchedulerView, revocation
from celery_wheel.scheduler.remote_control.node import Commands
from celery_wheel.scheduler.remote_control.revocation import RevokeListener
from celery_wheel.scheduler.service import node_name
from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder
from tests.kit.patience import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=2)
    yield found
    found.close()


@pytest.fixture
def revokes(store: SqlStore) -> RevokeListener:
    return RevokeListener(SchedulerView("wheel@h", store, lambda: [0], RevokedStamps()))


def commands(store: SqlStore, shard: int) -> list[dict[str, Any]]:
    return [json.loads(item.payload) for item in store.read_inbox(shard, 100)]


def revoked(store: SqlStore, shard: int) -> list[list[str]]:
    """Return the task ids of each command."""
    return [command["task_ids"] for command in commands(store, shard)]


@pytest.fixture
def back(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the store fail, until the returned function is called."""

    def fail(*_: Any) -> None:
        raise StoreError("away")

    put = store.put_inboxes
    monkeypatch.setattr(store, "put_inboxes", fail)
    return lambda: monkeypatch.setattr(store, "put_inboxes", put)


def test_a_revoke_goes_to_every_shard_held_or_not(store: SqlStore, revokes: RevokeListener) -> None:
    assert revokes.revoke(["b", "a", "b"]) == (["a", "b"], [])
    for shard in (0, 1):
        [command] = commands(store, shard)
        assert (command["task_ids"], command["for_good"]) == (["a", "b"], True)


def test_many_ids_are_written_in_parts_without_values_that_are_no_ids(store: SqlStore, revokes: RevokeListener) -> None:
    ids = [f"{n:04}" for n in range(1_200)]
    bad = ["", "a\0b", "x" * 600, "\ud800", 7, None, ["a"]]
    assert revokes.revoke([*ids, *bad]) == (ids, bad)
    assert list(map(len, revoked(store, 0))) == [500, 500, 200]


def test_a_revoke_is_written_later_where_the_store_does_not_answer(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None]
) -> None:
    with pytest.raises(StoreError, match="away"):
        revokes.revoke(["a"])
    revokes.tend()
    assert commands(store, 0) == []
    back()
    revokes.tend()
    assert [revoked(store, shard) for shard in (0, 1)] == [[["a"]], [["a"]]]


def test_kept_ids_are_merged_into_few_commands(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None]
) -> None:
    """A thousand revokes of a task each are a few commands, and a repeated id is in them once."""
    for n in range(1_200):
        with pytest.raises(StoreError, match=f"away; {n + 1:,} revoked ids are kept in the memory of wheel@h"):
            revokes.revoke([f"{n:04}"])
    with pytest.raises(StoreError, match="1,201 revoked ids are kept"):
        revokes.revoke(["0007", "stamped"], "by stamp")
    back()
    revokes.tend()
    for shard in (0, 1):
        found = [(one["reason"], len(one["task_ids"])) for one in commands(store, shard)]
        assert found == [("revoked", 500), ("revoked", 500), ("revoked", 200), ("by stamp", 1)]


def test_ids_beyond_the_limit_are_refused_by_an_error(
    store: SqlStore,
    revokes: RevokeListener,
    back: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(revocation, "MAX_KEPT", 3)
    with pytest.raises(StoreError, match="2 revoked ids are kept"):
        revokes.revoke(["a", "b"])
    refused = r"away; 2 of 2 ids were refused and are not revoked: 2 are kept in the memory of wheel@h, which keeps 3"
    with pytest.raises(StoreError, match=refused):
        revokes.revoke(["a", "c", "d"])
    assert "2 of 2 ids were refused" in caplog.text
    back()
    assert revokes.revoke(["e"]) == (["e"], [])
    assert revoked(store, 0) == [["a", "b", "e"]]


def test_the_limit_does_not_count_while_the_store_answers(
    store: SqlStore, revokes: RevokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "MAX_KEPT", 3)
    assert len(revokes.revoke([str(n) for n in range(9)])[0]) == 9


@pytest.mark.parametrize("answers", [True, False])
def test_a_scheduler_that_ends_writes_the_kept_ids_or_logs_their_loss(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None], caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    with pytest.raises(StoreError):
        revokes.revoke(["a", "b"])
    if answers:
        back()
    revokes.close()
    assert ("2 revoked ids could not be written and are lost" in caplog.text) is not answers
    assert revoked(store, 1) == ([["a", "b"]] if answers else [])


def test_the_answer_to_a_revoke_names_the_ignored_values(store: SqlStore, revokes: RevokeListener) -> None:
    view = SchedulerView("wheel@h", store, lambda: [0], RevokedStamps())
    answering = Commands(Celery("revokes", set_as_current=False), view, revokes)
    assert answering.revoke(None, task_id="a") == {"ok": "tasks a flagged as revoked"}
    text = answering.revoke(None, task_id=["a", "\ud800", "", *range(5)])["ok"]
    assert text == r"tasks a flagged as revoked; 7 ignored, which cannot be task ids: '\ud800', '', 0, 1, 2 …"


def test_a_scan_cancels_stamped_tasks_up_to_its_limit(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revocation, "PAGE", 10)
    monkeypatch.setattr(revocation, "MAX_SCANNED", 30)
    holder, rows = Holder(store), []
    for n in range(50):
        row = holder.row(NOW + n)
        stamps = {"n": [str(n)]} if n % 2 else None
        rows.append(replace(row, message=replace(row.message, headers=json.dumps({"stamps": stamps}).encode())))
    holder.apply(rows=rows)
    stamps = RevokedStamps()
    revokes = RevokeListener(SchedulerView("n", store, lambda: [0], stamps))
    stamps.add({"n": ["3", "4", "29", "31"]})
    assert revokes.scan(0) == 30
    found = [task_id for ids in revoked(store, 0) for task_id in ids]
    assert found == [rows[3].message.task_id, rows[29].message.task_id]
    assert "later tasks stay pending" in caplog.text


def test_each_of_several_schedulers_on_a_host_has_its_own_name() -> None:
    assert node_name("h/aa/1", ["h/aa/1", "other/bb/2"]) == "wheel@beat.h"
    assert node_name("h/aa/1", ["h/aa/1", "h/bb/2"]) == "wheel-1@beat.h"


def test_an_unexpected_error_of_a_scan_ends_no_later_scan(
    revokes: RevokeListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revocation, "RETRY_FIRST_S", 0.01)
    scanned: list[int] = []

    def scan(shard: int) -> int:
        scanned.append(shard)
        if len(scanned) == 1:
            raise LookupError("a defect")
        return 0

    monkeypatch.setattr(revokes, "scan", scan)
    revokes.revoke_stamps({"campaign": ["spring"]})
    wait_until(lambda: scanned == [0, 0], "the shard is scanned again")
    revokes.stop()
    assert "LookupError: a defect" in caplog.text
