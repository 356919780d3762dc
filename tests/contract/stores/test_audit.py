"""The audit log in every SQL store: parts of shards become one request, and pages and filters are complete."""

import json
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.errors import ArgumentError
from celery_wheel.store.audit_model import AuditCriteria, AuditEntry
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.ids import uuid7
from tests.kit.holder import NOW, Holder


def entry(results: dict[str, Any], request: str | None = None, **parts: Any) -> AuditEntry:
    values = {"at_ms": NOW, "origin": "cli", "actor": "anna", "action": "cancel", "reason": "", "details": "{}"}
    return AuditEntry(request or uuid7(), results=json.dumps(results), **{**values, "bulk": None, **parts})


def names(store: SqlStore, limit: int = 100, **criteria: Any) -> list[str]:
    found, at = [], None
    while True:
        page = store.browse.audit(AuditCriteria(**criteria), at, limit)
        found += [next(iter(one.results)) for one in page.items]
        at = page.next
        if at is None:
            return found


def test_parts_of_a_request_are_one_with_the_best_results(
    sql_store: SqlStore, sql_holder: Holder, second: Holder
) -> None:
    request = uuid7()
    sql_holder.apply(audits=[entry({"a": "unknown", "b": "too_late", "k": {"done": 1, "too_late": 0}}, request)])
    second.apply(audits=[entry({"a": "done", "b": "already", "k": {"done": 2, "too_late": 3}}, request)])
    (one,) = sql_store.browse.audit(AuditCriteria()).items
    assert one.results == {"a": "done", "b": "already", "k": {"done": 3, "too_late": 3}}
    assert (one.request, one.actor, one.details) == (request, "anna", {})


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_parts_with_own_times_are_one_request(
    sql_store: SqlStore, sql_holder: Holder, second: Holder, limit: int
) -> None:
    """Where the asker's clock is wrong, each shard writes its own time."""
    for number in range(3):
        request = uuid7()
        sql_holder.apply(audits=[entry({f"task-{number}": "unknown"}, request, at_ms=NOW + number)])
        second.apply(audits=[entry({f"task-{number}": "done"}, request, at_ms=NOW + number + 2)])
    assert names(sql_store, limit) == ["task-2", "task-1", "task-0"]
    found = sql_store.browse.audit(AuditCriteria()).items
    assert [(one.at_ms, *one.results.values()) for one in found] == [(NOW + 4 - n, "done") for n in range(3)]
    assert names(sql_store, limit, name="task-1") == ["task-1"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_have_each_request_once(sql_store: SqlStore, sql_holder: Holder, second: Holder, limit: int) -> None:
    for number in range(7):
        request = uuid7()
        for holder in (sql_holder, second):  # several requests at one time
            holder.apply(audits=[entry({f"task-{number}": "done"}, request, at_ms=NOW + number // 2)])
    assert names(sql_store, limit) == [f"task-{number}" for number in reversed(range(7))]


def test_each_filter_finds_its_requests(sql_store: SqlStore, sql_holder: Holder) -> None:
    bulk = uuid7()
    sql_holder.apply(
        audits=[
            entry({'a"b%_ä': "done"}, at_ms=NOW, actor="Anna"),
            entry({"b": "done"}, at_ms=NOW + 1, action="pause", origin="admin"),
            entry({"c": "done"}, at_ms=NOW + 2, bulk=bulk, actor="ben_1"),
        ]
    )
    assert names(sql_store, name='a"b%_ä') == ['a"b%_ä']
    assert names(sql_store, name="a") == []
    assert names(sql_store, actor="ANN") == ["b", 'a"b%_ä']
    assert names(sql_store, actor="n_") == ["c"]
    assert names(sql_store, action="pause") == names(sql_store, origin="admin") == ["b"]
    assert names(sql_store, bulk=bulk) == ["c"]
    assert names(sql_store, from_ms=NOW + 1, to_ms=NOW + 2) == ["b"]


@pytest.mark.parametrize("cursor", ["", "1", "x.y", "1.0", "9" * 30 + "." + "0" * 36])
def test_a_wrong_cursor_is_refused(sql_store: SqlStore, sql_holder: Holder, cursor: str) -> None:
    with pytest.raises(ArgumentError, match="a cursor must be"):
        sql_store.browse.audit(AuditCriteria(), cursor)


def test_each_shard_forgets_its_own_old_requests(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    for holder in (sql_holder, second):
        holder.apply(audits=[entry({f"{holder.shard}-{at_ms}": "done"}, at_ms=NOW + at_ms) for at_ms in (0, 1)])
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 1)
    assert names(sql_store) == ["1-1", "0-1", "1-0"]


def test_resharding_keeps_the_log(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    for holder in (sql_holder, second):
        holder.apply(audits=[entry({f"{holder.shard}": "done"}, at_ms=NOW + holder.shard)])
        sql_store.release(holder.shard, holder.epoch)
    sql_store.maintenance.reshard(1, shard_of, NOW)
    assert names(sql_store) == ["1", "store", "0"]
    again = Holder(sql_store)
    sql_store.expire(0, again.epoch, NOW, NOW, NOW + 2)
    assert names(sql_store) == []
