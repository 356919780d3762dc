"""What only PostgreSQL does: a lease by its own clock, sessions that are ended, a server that goes and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_wheel.errors import Fenced, SettingError, StoreError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.model import Change, TallyKey
from celery_wheel.store.sql import SqlStore
from tests.postgres import PostgresServer
from tests.servers import wait_until
from tests.stores.backends import Postgres
from tests.stores.killed import GROUP
from tests.stores.samples import EVERYTHING, NOW, Holder

ROOT = Path(__file__).parents[2]
LEASE_MS = 2_000
AWAY = r"ended this session|cannot be reached"


@pytest.fixture
def server() -> PostgresServer:
    return Postgres.start()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.fresh()


@pytest.fixture
def make(url: str) -> Iterator[Callable[[], SqlStore]]:
    opened: list[SqlStore] = []

    def make_one() -> SqlStore:
        opened.append(open_store(url, shards=2))
        return opened[-1]

    yield make_one
    for store in opened:
        store.close()


def start(url: str, where: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.killed", url, "disk", where]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def takeover_s(standby: SqlStore) -> float:
    """How long another scheduler takes to get the shard and to write."""
    began = time.monotonic()
    epochs: list[int] = []
    wait_until(lambda: epochs.append(standby.acquire(0, "host-b", 0, LEASE_MS) or 0) or epochs[-1], "a takeover")
    standby.apply(0, epochs[-1], Change(tally={TallyKey(1, "q", "t"): 1}))
    return time.monotonic() - began


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_takeover_from_within_an_open_transaction_takes_less_than_three_seconds(
    url: str, make: Callable[[], SqlStore], how: signal.Signals
) -> None:
    standby = make()
    with start(url, "before the commit") as process:
        assert process.stdout is not None
        try:
            assert "written" in (line.strip() for line in process.stdout)
            process.send_signal(how)
            assert takeover_s(standby) < 3
        finally:
            process.kill()
    assert standby.count(0, 0, *EVERYTHING) == 2 * GROUP, "what it had not committed is not there"


def test_a_lease_runs_out_by_the_clock_of_the_server_and_not_by_the_callers(make: Callable[[], SqlStore]) -> None:
    holder, standby = make(), make()
    assert holder.acquire(0, "host-a", NOW, 60_000) == 1
    assert standby.acquire(0, "host-b", NOW + 10**9, LEASE_MS) is None
    assert abs((standby.now_ms() or 0) - time.time_ns() // 1_000_000) < 1_000


def test_a_session_that_is_ended_in_a_change_leaves_nothing_of_it(
    server: PostgresServer, make: Callable[[], SqlStore]
) -> None:
    store = make()
    holder = Holder(store)
    holder.accept(NOW)
    with pytest.raises(StoreError, match=AWAY), store.database.writing() as connection:  # noqa: PT012 - the block is it
        connection.exec_driver_sql("UPDATE wheel_shard SET holder = 'ghost'")
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
        connection.exec_driver_sql("UPDATE wheel_shard SET epoch = 99")
    assert store.state(0).holder != "ghost"
    holder.accept(NOW)


def test_a_takeover_waits_for_an_open_commit_and_then_fences_it(make: Callable[[], SqlStore]) -> None:
    former, standby = make(), make()
    holder = Holder(former)
    former.release(0, holder.epoch)
    taken: list[int | None] = []
    with former.database.writing() as connection:
        connection.exec_driver_sql("UPDATE wheel_shard SET seq = seq + 256 WHERE shard = 0")
        thread = threading.Thread(target=lambda: taken.append(standby.acquire(0, "host-b", 0, LEASE_MS)))
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: Postgres.start().run(waiting)[0][0] == 1, "the takeover waits")
        assert taken == []
    thread.join()
    assert taken == [holder.epoch + 1]
    with pytest.raises(Fenced):
        holder.accept(NOW)


def test_several_schedulers_may_make_the_tables_at_once(url: str) -> None:
    found: list[str] = []

    def open_one() -> None:
        store = open_store(url, shards=3)
        found.append(store.uuid)
        store.close()

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_a_server_that_was_killed_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        store = open_store(server.url)
        holder = Holder(store)
        rows = holder.accept(NOW, NOW + 1)
        server.kill()
        with pytest.raises(StoreError, match=AWAY):
            holder.accept(NOW)
        with pytest.raises(StoreError, match=AWAY):
            store.lanes(0)
        server.start()
        assert [row.id for row in store.slice(0, 0, *EVERYTHING)] == [row.id for row in rows]
        holder.accept(NOW)
        store.close()


def test_what_cannot_be_opened_says_why_and_shows_no_password(server: PostgresServer) -> None:
    with pytest.raises(StoreUnusable, match="is not there") as caught:
        open_store(server.url.replace("wheel@", "wheel:secret@").rpartition("/")[0] + "/nowhere")
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreUnusable, match="cannot be reached"):
        open_store("postgresql://wheel:secret@127.0.0.1:1/wheel")
    with pytest.raises(StoreUnusable, match="no tables of a store"):
        open_store(server.fresh(), create=False)
    with pytest.raises(SettingError, match="wheel_store must be a URL like"):
        open_store("mysql://wheel:secret@127.0.0.1/wheel")
