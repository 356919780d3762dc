"""After kill -9, every change that ``apply`` returned for is stored, every other change is stored as a whole or not at
all, and the shard is free at once, or, where the lease runs by the database's clock, after the lease.

A PostgreSQL with a full disk: nothing is accepted, nothing is lost, and accepting continues with free space.

A request whose answer to COMMIT is lost on the way from PostgreSQL has a definite result all the same.

::

    caller ──► Cut ──► PostgreSQL       everything passes, until Cut has seen a COMMIT after the INSERT of a command:
                                        that COMMIT reaches the server or does not, and the connection ends
"""

import json
import os
import pwd
import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from celery_wheel.errors import RequestInDoubt, StoreError
from celery_wheel.requests.answers import OpenStore
from celery_wheel.requests.request import Request
from celery_wheel.requests.results import CommandResult
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS, SqlBackend
from tests.contract.stores.stopped import GROUP, KEY
from tests.kit.holder import EVERYTHING, LEASE, NOW, Holder, acquire
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process, python
from tests.kit.servers.postgres import PostgresServer
from tests.kit.warm import CELERY


@pytest.fixture
def start(sql_backend: SqlBackend, tmp_path: Path) -> Callable[[str], Process]:
    program = ["-m", "tests.contract.stores.stopped", "killed", sql_backend.url, sql_backend.durability]
    return lambda where: python(tmp_path / "killed.log", *program, where, kind=CELERY)


def test_committed_changes_survive(start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]) -> None:
    with start("anywhere") as process:
        wait_until(lambda: len(process.lines()) > 5, "five groups are committed")
    returned = int(process.lines()[-1])
    assert returned >= 5 * GROUP
    store = make_sql_store()
    count = store.count(0, 0, *EVERYTHING)
    assert count >= returned
    assert count % GROUP == 0
    assert len(store.slice(0, 0, *EVERYTHING)) == count
    assert store.pending(0) == {KEY: count}


def test_uncommitted_changes_are_lost(start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]) -> None:
    with start("before the commit") as process:
        process.wait_for("it stopped")
    store = make_sql_store()
    assert store.count(0, 0, *EVERYTHING) == 2 * GROUP
    assert store.pending(0) == {KEY: 2 * GROUP}
    Holder(store).accept(NOW)


def test_a_dead_holders_shard_is_free(start: Callable[[str], Process], make_sql_store: Callable[[], SqlStore]) -> None:
    standby = make_sql_store()
    with start("before the commit") as process:
        process.wait_for("holding")
        assert standby.acquire(0, "host-b", NOW, LEASE) is None
    assert acquire(standby, name="host-b") == 2


ROWS = 1_000


def mount(*arguments: str) -> bool:
    return subprocess.run(["/bin/mount", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """24 MB to which the server's user may write; the folders of pytest are closed to it."""
    place = Path(tempfile.mkdtemp(prefix="wheel-disk-"))
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=24m,mode=711", "tmpfs", str(place)):
        place.rmdir()
        pytest.skip("only root may mount a small disk, and not in every container")
    try:
        place.chmod(0o711)
        folder = place / "tables"
        folder.mkdir()
        os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        yield folder
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)
        place.rmdir()


def accept_until_full(holder: Holder, body: bytes) -> tuple[int, str]:
    for accepted in range(0, 100 * ROWS, ROWS):
        try:
            holder.accept(*[NOW] * ROWS, body=body)
        except StoreError as error:
            return accepted, str(error)
    raise AssertionError("the disk did not become full")


@pytest.mark.slow
def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    with PostgresServer() as server:
        server.sql(f"CREATE TABLESPACE small LOCATION '{small_disk}'", "CREATE DATABASE crammed TABLESPACE small")
        # A new database's files have holes until a checkpoint; a read that evicts a page would fill one, and fail.
        server.sql("CHECKPOINT")
        with closing(open_store(server.url("crammed"), lease_ms=LEASE_MS)) as store:
            holder, body = Holder(store), os.urandom(1_000)
            accepted, said = accept_until_full(holder, body)
            assert re.search("has no room on its disk .*; nothing was written", said)
            assert len(holder.slice()) == accepted > 0
            store.renew(0, holder.epoch, NOW, LEASE, {})
            assert mount("-o", "remount,size=64m", str(small_disk.parent))
            holder.acquire()
            holder.accept(*[NOW] * ROWS, body=body)
            assert len(holder.slice()) == accepted + ROWS


CANCEL = 0, "cancel", b"{}"


class Cut:
    """A proxy in threads of this process.

    ``passes_commit`` is whether the COMMIT of the next request reaches the server; None: no connection is cut.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passes_commit: bool | None = None
        self.is_away = False  #: from the cut on no client reaches the server
        self._clients: list[socket.socket] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_away:
                    client.close()
                    continue
                self._clients.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        has_put = False
        with suppress(OSError):
            while some := client.recv(65_536):
                has_put |= b"INSERT INTO wheel_inbox" in some
                if has_put and b"COMMIT" in some and self.passes_commit is not None:
                    passes, self.passes_commit = self.passes_commit, None
                    self.cuts += 1
                    for one in self._clients if self.is_away else [client]:
                        with suppress(OSError):  # another connection may have ended before
                            one.shutdown(socket.SHUT_RDWR)
                    if passes:
                        server.sendall(some)
                    break
                server.sendall(some)
        with suppress(OSError):  # the session may have ended
            server.shutdown(socket.SHUT_WR)  # the server carries out what it has, and ends the session

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with server, client, suppress(OSError):
            while some := server.recv(65_536):
                client.sendall(some)


@pytest.fixture
def cut(postgres: PostgresServer) -> Iterator[Cut]:
    with closing(Cut(postgres.port)) as proxy:
        yield proxy


@pytest.fixture
def far(cut: Cut, url: str, pg_store: SqlStore, postgres: PostgresServer) -> Iterator[SqlStore]:
    with closing(open_store(url.replace(f":{postgres.port}/", f":{cut.port}/"), lease_ms=LEASE_MS)) as store:
        yield store


def holder(store: SqlStore) -> Callable[[], None]:
    epoch = store.acquire(0, "one", 0, 60_000)
    assert epoch is not None

    def turn() -> None:
        for item in store.read_inbox(0, 10):
            answer = Answer(json.loads(item.payload)["id"], {"a": "done"}, 0)
            store.apply(0, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


def cancel(store: SqlStore, turn: Callable[[], None], timeout_s: float) -> dict[str, CommandResult]:
    opened = OpenStore("", store)
    request = Request(lambda: opened, "cancel", ["a"], {}, timeout_s, turn=turn)
    request.send()
    return request.receive()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_answer_to_a_commit_costs_no_result(pg_store: SqlStore, far: SqlStore, cut: Cut, arrives: bool) -> None:
    cut.passes_commit = arrives
    assert cancel(far, holder(pg_store), patience()) == {"a": CommandResult.DONE}
    assert cut.cuts == 1
    assert pg_store.read_inbox(0, 10) == []


def test_a_store_that_stays_away_leaves_the_request_in_doubt(pg_store: SqlStore, far: SqlStore, cut: Cut) -> None:
    put = far.put_commands

    def put_and_vanish(*commands: object) -> list[int]:
        cut.passes_commit, cut.is_away = True, True
        return put(*commands)  # type: ignore[arg-type]

    far.put_commands = put_and_vanish  # type: ignore[method-assign]
    with pytest.raises(RequestInDoubt, match=r"may still be carried out in shard 0, where it could not be withdrawn"):
        cancel(far, lambda: None, 0.3)
    wait_until(lambda: pg_store.read_inbox(0, 10), "the request is there")


def test_a_withdrawal_waits_for_a_transaction_whose_client_is_gone(pg_store: SqlStore, url: str) -> None:
    """A server that waits for its standby commits after the client has given up."""
    item = pg_store.put_command(*CANCEL)
    assert pg_store.withdraw(item, CANCEL)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as forgotten:
        forgotten.execute("INSERT INTO wheel_inbox (id, shard, kind, payload) VALUES (%s, %s, %s, %s)", (item, *CANCEL))
        late = pool.submit(pg_store.withdraw, item, CANCEL)
        with psycopg.connect(url, autocommit=True) as looker:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: looker.execute(waits).fetchone() == (1,), "the withdrawal waits")
        forgotten.commit()
        assert late.result(patience())
    assert pg_store.read_inbox(0, 10) == []


def test_an_item_of_the_same_number_is_not_withdrawn(pg_store: SqlStore) -> None:
    item = pg_store.put_command(0, "cancel", b'{"other": 1}')
    assert not pg_store.withdraw(item, CANCEL)
    assert [one.id for one in pg_store.read_inbox(0, 10)] == [item]
