"""A store moves to another database with everything that it has, and the old one refuses every use."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.requests.audit import verify
from celery_wheel.store import move_store, open_store
from celery_wheel.store.audit_model import STORE, AuditCriteria, Operator, store_entry
from celery_wheel.store.model import GroupLimit, Position
from celery_wheel.store.sql.schema import metadata
from celery_wheel.store.store_model import EPOCH_LEAP
from tests.contract.stores.conftest import KINDS, MakeUrl
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import NOW, Holder
from tests.kit.processes import Process

pytestmark = pytest.mark.slow

#: Not moved, or written by each opening; and the log that has the move itself.
LEFT = ("wheel_scheduler", "wheel_meta", "wheel_audit", "wheel_audit_chain")


def fill(url: str) -> None:
    """Make a store with two shards, each with tasks that are pending, dispatched and stopped, and with an inbox."""
    with closing(open_store(url, shards=2)) as store:
        for number in range(2):
            holder = Holder(store, number)
            rows = holder.accept(*(NOW + n for n in range(1_300)), body=bytes(range(256)), task="shop.remind")
            holder.settle(Position(0, 0), Position(rows[99].due_ms, rows[99].seq), at_ms=NOW + 100)
            holder.apply(limits=[GroupLimit("tenant:1", 5, None, None, 2, None, "anna", NOW)])
            holder.apply(outcomes=[holder.outcome(rows[200].id)], moves=[holder.stop(rows[200])])
            store.release(number, holder.epoch)
        store.put_inbox(0, [("message", b"{}")])
        store.put_command(1, "cancel", b"{}")


def content(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return every row of the store, its epochs without the leap by which a move fences the old place."""
    tables = [table for table in metadata.sorted_tables if table.name not in LEFT]
    with closing(open_store(url, shards=None, create=False)) as store:
        found = {table.name: rows_of(store, table) for table in tables}
    for row in found["wheel_shard"]:
        row["epoch"] %= EPOCH_LEAP
    return found


def go_on(url: str) -> None:
    with closing(open_store(url, shards=2)) as store:
        holder = Holder(store)
        holder.accept(NOW + 9_000)
        store.put_inbox(1, [("message", b"{}")])
        store.release(0, holder.epoch)


def is_usable(url: str) -> bool:
    try:
        open_store(url, shards=None, create=False).close()
    except StoreUnusable:
        return False
    return True


def ignore(step: str, done: int, total: int) -> None: ...


@pytest.mark.parametrize("old", KINDS)
@pytest.mark.parametrize("new", KINDS)
def test_every_row_moves_and_the_old_store_refuses_every_use(make_url: MakeUrl, old: str, new: str) -> None:
    old_url, new_url = make_url(old), make_url(new)
    fill(old_url)
    before = content(old_url)
    with closing(open_store(old_url, shards=2)) as opened:
        opened.add_brokers({"redis://a:6379/0"})
        opened.add_brokers({"redis://b:6379/0"})
        opened.maintenance.record(store_entry("claim_broker", None, NOW, {"store": "done"}))
        done = move_store(old_url, new_url, NOW, ignore, Operator("cli", "anna"))
        assert not opened.is_as_opened()
        uses: list[Callable[[], object]] = [
            lambda: opened.acquire(0, "woken", NOW, 2_000),
            lambda: opened.put_command(0, "cancel", b"{}"),
            lambda: opened.put_inbox(0, [("message", b"{}")]),
        ]
        for use in uses:
            with pytest.raises(StoreError, match=r"it was moved to .* set wheel_store to the new place"):
                use()
        uuid, derived_id = opened.uuid, opened.derived_id("occurrence 1")
    own = {name: count for name, count in done.rows.items() if name not in LEFT}
    assert sum(own.values()) == sum(map(len, before.values()))
    assert content(new_url) == before
    for create in (True, False):
        with pytest.raises(StoreUnusable, match=r"was moved to .*; nothing runs from it any more; set wheel_store"):
            open_store(old_url, shards=None, create=create)
    with closing(open_store(new_url, shards=2)) as store:
        moved, claimed = store.browse.audit(AuditCriteria()).items
        assert (moved.action, moved.actor, claimed.action) == ("move_store", "anna", "claim_broker")
        assert [(one.chain, one.last, one.problem) for one in verify(store)] == [(STORE, 2, "")]
        assert (store.uuid, store.brokers()) == (uuid, {"redis://a:6379/0", "redis://b:6379/0"})
        assert store.derived_id("occurrence 1") == derived_id  # nothing is made twice, in the old place and in the new
        assert store.handover.count_pending(0) == 1_300 - 100 - 1
        assert store.state(0).epoch > EPOCH_LEAP
    go_on(new_url)
    after = content(new_url)
    assert after["wheel_shard"][0]["epoch"] == before["wheel_shard"][0]["epoch"] + 1
    assert len(after["wheel_timer"]) == len(before["wheel_timer"]) + 1
    assert len(after["wheel_inbox"]) == len(before["wheel_inbox"]) + 1


@pytest.mark.parametrize("step", ["copied", "arrived", "sealed"])
@pytest.mark.parametrize("new", KINDS)
def test_a_killed_move_loses_nothing_and_leaves_one_store(
    make_url: MakeUrl, tmp_path: Path, step: str, new: str
) -> None:
    old_url, new_url = make_url("sqlite"), make_url(new)
    fill(old_url)
    before = content(old_url)
    program = (
        "import os, signal, sys; from celery_wheel.store import move_store\n"
        "def stop(step, *_):\n    if step == sys.argv[3]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "move_store(sys.argv[1], sys.argv[2], 0, stop)"
    )
    killed = Process([sys.executable, "-c", program, old_url, new_url, step], tmp_path / "move.log")
    assert killed.end()[0] == -9, killed.said()
    usable = [url for url in (old_url, new_url) if is_usable(url)]
    assert usable == ([] if step == "sealed" else [old_url])
    if usable:
        go_on(old_url)
        before = content(old_url)
    assert move_store(old_url, new_url, NOW, ignore).resumed == (step == "sealed")
    assert content(new_url) == before
    assert not is_usable(old_url)
    assert move_store(old_url, new_url, NOW, ignore).resumed, "another call changes nothing"
    assert content(new_url) == before
    with pytest.raises(StoreUnusable, match="was moved to"):
        move_store(old_url, make_url("sqlite"), NOW, ignore)


def test_a_move_is_refused_where_it_would_lose_something(make_url: MakeUrl) -> None:
    old_url, used_url = make_url("sqlite"), make_url("sqlite")
    fill(old_url)
    fill(used_url)
    before, used = content(old_url), content(used_url)
    with pytest.raises(StoreUnusable, match="has a store already; nothing was changed"):
        move_store(old_url, used_url, NOW, ignore)
    with closing(open_store(old_url, shards=2)) as store:
        store.register_scheduler("host/1/2", NOW, 5_000)
        with pytest.raises(StoreUnusable, match=r"a scheduler is at work on the store .* stop all schedulers"):
            move_store(old_url, make_url("sqlite"), NOW, ignore)
        assert (content(old_url), content(used_url)) == (before, used)
        holder = Holder(store)
        with pytest.raises(StoreUnusable, match=r"shard 0 .* is held by"):
            move_store(old_url, make_url("sqlite"), NOW + 60_000, ignore)
        store.release(0, holder.epoch)
        store.loads.begin("flights", NOW)
        with pytest.raises(StoreUnusable, match="the load 'flights' is open"):
            move_store(old_url, make_url("sqlite"), NOW + 60_000, ignore)
    assert is_usable(old_url)
    with pytest.raises(StoreUnusable, match=r"nowhere\.sqlite3"):
        move_store(old_url.replace("0.sqlite3", "nowhere.sqlite3"), make_url("sqlite"), NOW, ignore)
