"""The chains of the audit log in every SQL store: each change is found, and what retention leaves is whole."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from celery_wheel.broker import shard_of
from celery_wheel.errors import ArgumentError, RequestWithdrawn
from celery_wheel.requests.audit import ChainReport, export, verify
from celery_wheel.store.audit_model import (
    STORE,
    AuditCriteria,
    Link,
    Operator,
    links_in,
    process_name,
    store_entry,
)
from celery_wheel.store.sql.schema import audit, audit_chain
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import PartChunk, PartResult
from celery_wheel.values.mask import NO_MASK, Mask
from tests.contract.stores.conftest import MakeSqlStore
from tests.contract.stores.test_audit import entry
from tests.kit.holder import NOW, Holder
from tests.kit.manual import ROOT

#: The program with which a third party checks an export.
PROGRAM = ROOT / "example_project/check_audit_log.py"


def write(holder: Holder, count: int, **parts: Any) -> None:
    for number in range(count):
        holder.apply(
            audits=[entry({f"task-{number}": "done"}, reason="für Anna\n", **{"at_ms": NOW + number, **parts})]
        )


def report(store: SqlStore, chain: int = 0, heads: str = "") -> ChainReport:
    return next(one for one in verify(store, links_in(heads) if heads else ()) if one.chain == chain)


def execute(store: SqlStore, statement: Any) -> None:
    with store.database.writing() as connection:
        connection.execute(statement)


HERE = audit.c.chain == 0


def test_a_chain_goes_on_after_a_takeover(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    write(sql_holder, 2)
    write(second, 1)
    sql_holder.acquire()
    sql_holder.apply(audits=[entry({"a": "done"}), entry({"b": "done"})])
    found = sql_store.browse.audit_entries(0, 0, 10)
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert [(one.chain, one.first, one.last, one.problem) for one in verify(sql_store)] == [
        (0, 1, 4, ""),
        (1, 1, 1, ""),
    ]
    assert report(sql_store).head == str(found[-1].link)
    assert report(sql_store, heads=f"noted: {found[1].link}, {found[-1].link}").problem == ""
    (request,) = sql_store.browse.audit(AuditCriteria(name="b")).items
    assert request.entries == [str(found[-1].link)]


def test_a_commit_that_fails_leaves_neither_a_change_nor_an_entry(sql_store: SqlStore, sql_holder: Holder) -> None:
    write(sql_holder, 1)
    with pytest.raises(RequestWithdrawn):
        sql_holder.apply(audits=[entry({"a": "done"})], inbox=[77])
    assert report(sql_store).last == 1
    write(sql_holder, 1)
    assert report(sql_store).problem == ""


def test_writers_of_the_store_wait_for_each_other(make_sql_store: MakeSqlStore) -> None:
    stores = [make_sql_store() for _ in range(4)]
    holders = [Holder(stores[shard], shard) for shard in range(2)]

    def act(number: int) -> None:
        stores[number].maintenance.record(store_entry("migrate", Operator("cli", "anna"), NOW, {"store": "done"}))
        if number < 2:
            write(holders[number], 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(4)))
    found = [(one.chain, one.last, one.problem) for one in verify(stores[0])]
    assert found == [(STORE, 4, ""), (0, 3, ""), (1, 3, "")]


TEXTS = ("request", "origin", "actor", "action", "reason", "details", "results", "salt", "content", "digest", "bulk")


@pytest.mark.parametrize("name", [*TEXTS, "at_ms"])
def test_a_changed_value_is_found(sql_store: SqlStore, sql_holder: Holder, name: str) -> None:
    write(sql_holder, 3)
    execute(sql_store, update(audit).where(HERE, audit.c.number == 2).values({name: 5 if name == "at_ms" else "x"}))
    assert report(sql_store).problem == "entry 2 was changed"


def test_a_missing_entry_is_found(sql_store: SqlStore, sql_holder: Holder) -> None:
    write(sql_holder, 5)
    for number in (5, 3, 1):
        execute(sql_store, delete(audit).where(HERE, audit.c.number == number))
        assert report(sql_store).problem == f"entry {number} is missing"


def test_entries_in_each_others_places_are_found(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    write(sql_holder, 3)
    for number, other in ((1, 9), (2, 1), (9, 2)):
        execute(sql_store, update(audit).where(HERE, audit.c.number == number).values(number=other))
    assert report(sql_store).problem == "entry 1 was changed"
    write(second, 1)
    execute(sql_store, update(audit).where(audit.c.chain == 1).values(chain=7))
    assert [one.problem for one in verify(sql_store)][1:] == [
        "entry 1 is missing",
        "entry 1 is out of place: the chain ends before it",
    ]


def test_a_whole_chain_that_is_not_the_noted_one_is_found(sql_store: SqlStore, sql_holder: Holder) -> None:
    """So are a cut chain, one that was made anew by a writer of the tables, and a restored backup."""
    write(sql_holder, 4)
    noted = report(sql_store).head
    third = sql_store.browse.audit_entries(0, 2, 1)[0]
    execute(sql_store, delete(audit).where(HERE, audit.c.number > 3))
    execute(sql_store, update(audit_chain).where(audit_chain.c.chain == 0).values(number=3, digest=third.digest))
    assert report(sql_store).problem == ""
    assert "entry 4 of the noted head is missing" in report(sql_store, heads=noted).problem
    write(sql_holder, 3)
    assert report(sql_store).problem == ""
    assert "entry 4 is not that of the noted head" in report(sql_store, heads=noted).problem
    assert "missing" in report(sql_store, 5, f"5:1:{'a' * 64}").problem


def test_the_rest_after_retention_is_whole(sql_store: SqlStore, sql_holder: Holder) -> None:
    write(sql_holder, 2)
    noted = report(sql_store).head
    write(sql_holder, 4)
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 1)
    sql_store.maintenance.record(store_entry("migrate", Operator("cli", "anna"), NOW, {"store": "done"}))
    assert (report(sql_store).first, report(sql_store).problem) == (2, ""), "entry 3 is old, and comes after entry 2"
    assert report(sql_store, heads=noted).problem == ""
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 2)
    assert (report(sql_store).first, report(sql_store).problem) == (5, "")
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 100)
    found = report(sql_store)
    assert (found.first, found.last, found.problem) == (7, 6, "")
    assert "removed by retention" in report(sql_store, heads=noted).problem
    assert report(sql_store, heads=found.head).problem == ""
    assert report(sql_store, STORE).first == 2
    write(sql_holder, 1)
    assert (report(sql_store).first, report(sql_store).last, report(sql_store).problem) == (7, 7, "")


def test_an_entry_of_a_clock_that_was_ahead_keeps_nothing(sql_store: SqlStore, sql_holder: Holder) -> None:
    write(sql_holder, 1, at_ms=NOW + 10**10)
    write(sql_holder, 2)
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 1)
    assert report(sql_store).first == 3


def test_an_entry_without_its_texts_is_whole(sql_store: SqlStore, sql_holder: Holder) -> None:
    write(sql_holder, 3)
    second = update(audit).where(HERE, audit.c.number == 2)
    execute(sql_store, second.values(salt=None, reason="", details="{}", results="{}"))
    assert (report(sql_store).problem, report(sql_store).erased) == ("", 1)
    execute(sql_store, second.values(results='{"a": "done"}'))
    assert report(sql_store).problem == "entry 2 was changed"


def test_the_end_of_a_load_is_recorded_once(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    load = sql_store.loads.begin("flights", NOW)
    claim, _ = sql_store.loads.claim(load.id, load.run, 0)
    sql_store.loads.put(claim, [PartChunk(0, shard, 2, "d", b"x") for shard in (0, 1)])
    done = {0: PartResult(claim.attempt, 4)}
    sql_store.loads.commit(load.id, load.run, done, NOW + 1)
    for holder in (second, sql_holder):
        holder.apply(loaded=[one.id for one in sql_store.read_loads(holder.shard, 10)])
        sql_store.expire(holder.shard, holder.epoch, NOW, NOW, 0)
    (one,) = sql_store.browse.audit(AuditCriteria()).items
    assert (one.action, one.actor, one.results) == ("load", process_name(), {"flights": {"result": "done", "rows": 4}})
    other = sql_store.loads.begin("trains", NOW)
    sql_store.loads.abort(other.id, NOW + 2)
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, 0)
    assert [one.action for one in sql_store.browse.audit(AuditCriteria()).items] == ["abort_load", "load"]


def test_a_chain_outlives_its_shard(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    for holder in (sql_holder, second):
        write(holder, 2)
        sql_store.release(holder.shard, holder.epoch)
    for shards in (1, 2):
        sql_store.maintenance.reshard(shards, shard_of, NOW, by=Operator("cli", "anna"))
    write(Holder(sql_store, 1), 1)
    assert [(one.chain, one.last, one.problem) for one in verify(sql_store)] == [(STORE, 2, ""), (0, 2, ""), (1, 3, "")]
    assert [one.details for one in sql_store.browse.audit(AuditCriteria(action="reshard")).items] == [
        {"before": 1, "after": 2},
        {"before": 2, "after": 1},
    ]


def test_a_head_has_one_form() -> None:
    link = Link(STORE, 12, "ab" * 32)
    assert links_in(f"the store: head {link}\n") == [link]
    for wrong in ("", "0:1", f"0:1:{'a' * 63}", f"0:1:{'a' * 65}"):
        with pytest.raises(ArgumentError, match="CHAIN:NUMBER:DIGEST"):
            links_in(wrong)


# -- the export, as a third party checks it -----------------------------------------------------------------


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs the program on the lines of an export, and returns its error."""
    program, file = compile(PROGRAM.read_text(encoding="utf-8"), "check_audit.py", "exec"), tmp_path / "audit.jsonl"

    def run(content: bytes) -> str:
        file.write_bytes(content)
        try:
            exec(program, {"sys": sys, "__name__": "check"})  # noqa: S102 - our own program
        except (AssertionError, ValueError, LookupError, TypeError, StopIteration, UnicodeError) as error:
            return repr(error)
        return ""

    argv, sys.argv = sys.argv, ["check_audit.py", str(file)]
    yield run
    sys.argv = argv


def exported(store: SqlStore, **options: Any) -> bytes:
    return "".join(export(store, AuditCriteria(), NO_MASK, **options)).encode()


@pytest.mark.slow
def test_each_change_of_an_export_is_found(sql_store: SqlStore, sql_holder: Holder, second: Holder, check: Any) -> None:
    write(sql_holder, 3)
    write(second, 2)
    sql_store.expire(0, sql_holder.epoch, NOW, NOW, NOW + 1)
    content = exported(sql_store)
    lines = content.splitlines(keepends=True)
    assert (len(lines), check(content)) == (5, "")
    for at, byte in enumerate(content):
        assert check(content[:at] + bytes([byte ^ 1]) + content[at + 1 :]), f"byte {at} was changed"
    for number in range(len(lines)):
        assert check(b"".join(lines[:number] + lines[number + 1 :])), "a line is missing"
        assert check(b"".join([*lines[: number + 1], *lines[number:]])), "a line is there twice"
        for other in range(number):
            swapped = [*lines]
            swapped[number], swapped[other] = lines[other], lines[number]
            assert check(b"".join(swapped))


def test_an_export_without_values_has_a_whole_chain(sql_store: SqlStore, sql_holder: Holder, check: Any) -> None:
    refused = {"result": "refused", "reason": 'args must be a list, got "secret"'}
    sql_holder.apply(audits=[entry({"a": "done"}), entry({"nightly": refused})])
    content = exported(sql_store, without_values=True)
    assert b"secret" not in content
    assert check(content) == ""
    salts = [json.loads(line)["salt"] is None for line in content.splitlines()[1:]]
    assert salts == [False, True]


def test_a_mask_hides_in_an_export(sql_store: SqlStore, sql_holder: Holder) -> None:
    refused = {"result": "refused", "reason": "{'token': 'hunter2'} is wrong"}
    sql_holder.apply(audits=[entry({"nightly": refused})])
    assert "hunter2" not in "".join(export(sql_store, AuditCriteria(), Mask(["token"])))


def test_the_program_runs_alone(sql_store: SqlStore, sql_holder: Holder, tmp_path: Path) -> None:
    write(sql_holder, 2)
    (tmp_path / "audit.jsonl").write_bytes(exported(sql_store))
    command = [sys.executable, "-I", str(PROGRAM), str(tmp_path / "audit.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [report(sql_store).head]


def test_a_filtered_export_says_so(sql_store: SqlStore, sql_holder: Holder, check: Any) -> None:
    write(sql_holder, 3)
    content = "".join(export(sql_store, AuditCriteria(name="task-1"), NO_MASK)).encode()
    assert [json.loads(line)["number"] for line in content.splitlines()[1:]] == [2]
    assert check(content)
