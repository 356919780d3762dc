"""Erasure in every store: the rows that match, page by page, and all that goes with them; the audit log's names."""

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import select

from celery_wheel.store import open_store
from celery_wheel.store.audit_model import AuditCriteria
from celery_wheel.store.erasure_model import By, ErasureCriterion
from celery_wheel.store.model import STOPPED, Move, Watch
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.schedule_model import Revision, Run, Skip
from celery_wheel.store.sql import erasure, schema
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.ids import uuid7
from tests.contract.stores.backends import LEASE_MS
from tests.contract.stores.test_audit import entry
from tests.kit.holder import NOW, Holder
from tests.kit.servers.postgres import PostgresServer

ALL = 2**62


def ids(holder: Holder, by: By, value: str, limit: int = 100, schedules: tuple[int, ...] = ()) -> list[int]:
    """Return the ids of all pages."""
    found, after, which = list[int](), 0, ErasureCriterion(by, value, schedules)
    while True:
        page, end = holder.store.erasable(holder.shard, which, after, ALL, limit)
        assert len(page) <= limit
        found += page
        if end is None:
            return found
        assert end > after
        after = end


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("by", ["task_id", "key", "group"])
def test_matching_rows_are_found_in_the_order_of_their_ids(holder: Holder, by: By, limit: int) -> None:
    for value in ("anna", "bert", "anna", "anna"):
        holder.accept(NOW, **{by: value})
    first, _, third, fourth = holder.ids()
    assert ids(holder, by, "anna", limit) == [first, third, fourth]
    assert ids(holder, by, "nobody", limit) == []
    assert holder.store.erasable(0, ErasureCriterion(by, "anna"), first, third, 100) == ([third], None)


def test_rows_of_other_shards_are_left_to_their_holders(sql_holder: Holder, second: Holder) -> None:
    sql_holder.accept(NOW, key="anna")
    second.accept(NOW, key="anna")
    assert ids(sql_holder, "key", "anna") == sql_holder.ids()
    assert ids(second, "key", "anna") == second.ids()


def test_large_messages_make_small_pages(sql_holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "PAGE_BYTES", 2_500)
    for _ in range(5):
        sql_holder.accept(NOW, key="anna", body=b"x" * 1_000)
    page, end = sql_holder.store.erasable(0, ErasureCriterion("key", "anna"), 0, ALL, 100)
    assert len(page) == 2
    assert end == page[-1]
    assert ids(sql_holder, "key", "anna") == sql_holder.ids()


def test_rows_of_the_runs_of_a_schedule_are_found(sql_holder: Holder) -> None:
    sql_holder.accept(NOW, NOW + 1, NOW + 2)
    first, second, third = sql_holder.ids()
    sql_holder.apply(runs=[Run(third, schedule=7, instant_ms=NOW), Run(first, schedule=7, instant_ms=NOW + 1)])
    sql_holder.apply(runs=[Run(second, schedule=8, instant_ms=NOW)])
    assert ids(sql_holder, "schedule", "daily", 1, (7, 9)) == [first, third]


def test_an_erased_row_goes_with_its_outcomes_claims_and_run(sql_store: SqlStore, sql_holder: Holder) -> None:
    sql_holder.accept(NOW, NOW + 1)
    first, second = sql_holder.ids()
    for row in (first, second):
        sql_holder.apply(watches=[Watch("watch", "k", row)], runs=[Run(row, schedule=7, instant_ms=NOW)])
    sql_holder.apply(erased=[first])
    assert sql_holder.ids() == [second]
    with sql_store.database.reading() as connection:
        for table in (schema.watch, schema.run):
            assert connection.execute(select(table.c.timer_id)).scalars().all() == [second]


def results(store: SqlStore) -> dict[str, Any]:
    return {one.request: (one.results, one.reason, one.details) for one in store.browse.audit(AuditCriteria()).items}


def test_entries_that_name_a_task_of_the_group_lose_names_reason_and_arguments(
    sql_store: SqlStore, sql_holder: Holder, second: Holder
) -> None:
    sql_holder.accept(NOW, group="tenant:1", task_id="mail-anna")
    sql_holder.accept(NOW, group="tenant:2", task_id="mail-bert")
    one, other, third = sorted(uuid7() for _ in range(3))
    texts = {"reason": "Anna asked", "details": json.dumps({"eta_ms": 5})}
    both = {"mail-anna": "done", "mail-bert": {"result": "refused", "reason": "kept"}}
    sql_holder.apply(audits=[entry(both, one, **texts), entry({"mail-bert": "done"}, other, **texts)])
    second.apply(audits=[entry({"mail-anna": "too_late"}, one, **texts)])
    sql_holder.apply(audits=[entry({"group:tenant:1": {"result": "done", "reason": "x"}}, third, **texts)])
    which = ErasureCriterion("group", "tenant:1")
    found, end = sql_store.audited(0, which, 0)
    assert end is None
    assert [each.request for each in found] == [one, third]
    sql_holder.apply(erased_audits=found)
    assert results(sql_store) == {one: ({}, "", {}), other: ({"mail-bert": "done"}, "Anna asked", {"eta_ms": 5})} | {
        third: ({}, "", {})
    }


def test_the_log_is_read_page_by_page(sql_store: SqlStore, sql_holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    count = erasure.ENTRIES_AT_ONCE
    sql_holder.apply(audits=[entry({"a": "done"}, at_ms=NOW + n) for n in range(count + 1)])
    which = ErasureCriterion("task_id", "a")
    found, end = sql_store.audited(0, which, 0)
    assert len(found) == count
    assert end is not None
    found, end = sql_store.audited(0, which, end)
    assert (len(found), end) == (1, None)


def test_revisions_and_skips_of_a_schedule_are_counted_and_erased(sql_store: SqlStore, sql_holder: Holder) -> None:
    made = [Revision(7, n, "daily", "changed", "anna", "Anna asked", NOW, "{}") for n in (1, 2)]
    sql_holder.apply(revisions=[*made, Revision(8, 1, "other", "created", "anna", "", NOW, "")])
    sql_holder.apply(skips=[Skip(7, NOW, NOW, 1, "missed", NOW)])
    assert sql_store.browse.schedule_ids("daily") == [7]
    assert sql_store.schedule_traces([7]) == (2, 1)
    sql_holder.apply(erased_schedules=[7])
    assert sql_store.schedule_traces([7]) == (0, 0)
    assert sql_store.schedule_traces([8]) == (1, 0)


MARK = b"Anna-Mueller-4711"


def fill(store: SqlStore) -> None:
    """Accept rows of many sizes, and move and erase some, so that pages are split and used anew; erase the others."""
    random, holder, ids = Random(7), Holder(store), list[int]()
    for _ in range(20):
        parts: dict[str, Any] = {"key": "anna", "task_id": f"{MARK.decode()}-{len(ids)}"}
        for size in random.choices((5, 80, 300, 1_500, 6_000), k=40):
            body = random.randbytes(size) + MARK + random.randbytes(20)
            ids += [row.id for row in holder.accept(NOW + random.randrange(10**6), body=body, **parts)]
            parts["task_id"] = f"{MARK.decode()}-{len(ids)}"
        places = [(random.choice((0, STOPPED)), NOW + random.randrange(10**6)) for _ in range(10)]
        moved = zip(random.sample(ids, 10), places, strict=True)
        holder.apply(moves=[Move(row, *at, random.randrange(2**50) << 8) for row, at in moved])
        holder.apply(erased=random.sample(ids, 5))
    holder.accept(NOW, body=b"kept")
    page, _ = store.erasable(0, ErasureCriterion("key", "anna"), 0, ALL, 10**6)
    while page:
        holder.apply(erased=page)
        page, _ = store.erasable(0, ErasureCriterion("key", "anna"), 0, ALL, 10**6)
    store.scrub()


def with_mark(files: Iterable[Path]) -> dict[str, int]:
    counts = {file.name: file.read_bytes().count(MARK) for file in files if file.is_file()}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.slow
def test_files_of_sqlite_have_nothing_of_erased_rows(tmp_path: Path) -> None:
    """Nearly nothing: a page that was split may keep a copy of bytes that went to the other page, until a rewrite."""
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=1)) as store:
        fill(store)
        assert sum(with_mark(tmp_path.iterdir()).values()) < 10
        assert (tmp_path / "wheel.sqlite3-wal").stat().st_size == 0
        store.maintenance.rewrite()
        assert with_mark(tmp_path.iterdir()) == {}
        assert store.browse.pending(Criteria()).items[0].size == len(b"{}{}kept")


@pytest.mark.slow
def test_files_of_postgresql_have_nothing_of_erased_rows_after_a_rewrite(postgres: PostgresServer) -> None:
    with closing(open_store(postgres.new_database(), shards=1, lease_ms=LEASE_MS)) as store:
        fill(store)
        base = postgres.folder / "data" / "base"
        postgres.sql("CHECKPOINT")
        assert with_mark(base.rglob("*"))
        store.maintenance.rewrite()
        postgres.sql("CHECKPOINT")
        assert with_mark(base.rglob("*")) == {}
        assert store.browse.pending(Criteria()).items[0].size == len(b"{}{}kept")
