"""A store in a SQLite file: opening and refusing, durability, the lease, forks, checkpoints, and errors for people.

A fork and the threads that are inside SQLite.
"""

import ctypes
import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from celery_wheel.errors import SettingError, StoreError, StoreUnusable
from celery_wheel.store import open_store
from celery_wheel.store.sql import changes
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.sqlite import database as sqlite
from celery_wheel.store.sqlite import errors
from celery_wheel.store.sqlite.database import SqliteDatabase
from celery_wheel.store.sqlite.locks import FORK_GATE, FairLock, ForkGate
from tests.kit.holder import EVERYTHING, NOW, Holder
from tests.kit.patience import patience, wait_until

FULL, NORMAL = 2, 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wheel.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    with closing(open_store(f"sqlite:///{path}")) as store:
        yield store


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_no_other_user_may_open_the_files_of_a_store(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with closing(open_store(f"sqlite:///{path}")) as store:
            Holder(store).accept(NOW)
            assert store.acquire(0, "a", NOW, 1_000)
            files = list(path.parent.glob("wheel.sqlite3*"))
            assert {one.suffix for one in files} >= {".sqlite3", ".sqlite3-wal", ".lock"}
            assert {oct(one.stat().st_mode & 0o777) for one in files} == {"0o600"}
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mode", "lock"), [(0o644, 0o600), (0o664, 0o660), (0o640, 0o600), (0o666, 0o666)])
def test_only_who_may_write_to_a_store_may_lock_a_shard(path: Path, mode: int, lock: int) -> None:
    """A user who may read a file may lock it."""
    path.touch()
    path.chmod(mode)
    with closing(open_store(f"sqlite:///{path}")) as store:
        assert store.acquire(0, "a", NOW, 1_000)
        [file] = path.parent.glob("*.lock")
        assert oct(file.stat().st_mode & 0o777) == oct(lock)


def database_of(store: SqlStore) -> SqliteDatabase:
    assert isinstance(store.database, SqliteDatabase)
    return store.database


def accept(holder: Holder, count: int) -> None:
    holder.accept(*[NOW] * count, body=b"x" * 500)


@pytest.mark.parametrize(("durability", "durable", "level"), [
    ("disk", None, FULL), ("disk", True, FULL), ("disk", False, NORMAL),
    ("memory", None, NORMAL), ("memory", True, FULL), ("memory", False, NORMAL),
])  # fmt: skip
def test_only_durable_commits_wait_for_the_disk(path: Path, durability: str, durable: bool | None, level: int) -> None:
    with closing(open_store(f"sqlite:///{path}", durability=durability)) as store:
        for _ in range(2):  # in either order, on the one connection that writes
            with store.database.writing(durable=not durable):
                pass
            with store.database.writing(durable=durable) as connection:
                assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == level


def test_the_connections_are_set_up_as_the_header_says(store: SqlStore) -> None:
    expected = {
        "journal_mode": "wal",
        "foreign_keys": 0,
        "temp_store": 2,
        "secure_delete": 1,
        "busy_timeout": 10_000,
        "page_size": 4096,
    }
    for block in (store.database.reading, store.database.writing):
        with block() as connection:
            found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in expected}
        assert found == expected


def test_the_lock_file_names_the_holder(path: Path, store: SqlStore) -> None:
    store.acquire(0, "host-a/beat", 0, 1)
    lock = path.with_name("wheel.sqlite3.shard-0.lock")
    assert lock.read_text() == f"host-a/beat pid {os.getpid()}\n"
    store.release(0, 1)
    assert lock.read_text() == ""


def test_a_lock_file_that_cannot_be_opened_is_named(path: Path, store: SqlStore) -> None:
    path.with_name("wheel.sqlite3.shard-0.lock").mkdir()
    with pytest.raises(StoreUnusable, match=r"the lock file .*shard-0.lock cannot be opened \(Is a directory\)"):
        store.acquire(0, "host-a", 0, 1)


def test_a_missing_shard_is_not_held(path: Path, store: SqlStore) -> None:
    with pytest.raises(StoreError, match=r"shard 7 is not in the store .*, which had 1 shard when it was opened"):
        store.acquire(7, "host-a", 0, 1)
    with pytest.raises(StoreError, match="shard 7 is not in the store"):
        store.state(7)


def test_a_shard_is_free_again_when_its_epoch_could_not_be_raised(path: Path, store: SqlStore) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("ALTER TABLE wheel_shard RENAME TO elsewhere")
        with pytest.raises(StoreError, match="is incomplete"):
            store.acquire(0, "host-a", 0, 1)
        other.execute("ALTER TABLE elsewhere RENAME TO wheel_shard")
    with closing(open_store(f"sqlite:///{path}")) as standby:
        assert standby.acquire(0, "host-b", 0, 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 500])
def test_tidying_keeps_the_log_short_whatever_the_size_of_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    limit = 2**20
    monkeypatch.setattr(sqlite, "LOG_BYTES", limit)
    monkeypatch.setitem(sqlite._PRAGMAS, "journal_size_limit", limit)
    log, sizes = path.with_name("wheel.sqlite3-wal"), []
    with closing(open_store(f"sqlite:///{path}", durability="memory")) as store:
        holder = Holder(store)
        for _ in range(600 if at_once == 1 else 40):
            accept(holder, at_once)
            store.renew(0, holder.epoch, 0, 1, {})
            sizes.append(log.stat().st_size)
    assert 2 * limit < max(sizes) < 3 * limit, "without a new beginning it would be 5 MB at least"


def test_a_short_log_is_not_tidied(path: Path, store: SqlStore) -> None:
    holder = Holder(store)
    accept(holder, 10)
    before = path.read_bytes()
    store.renew(0, holder.epoch, 0, 1, {})
    assert path.read_bytes() == before


def test_closing_waits_for_the_open_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite:///{path}")
    holder, is_open, write = Holder(store), threading.Event(), changes.write

    def noted(*arguments: Any) -> Any:
        is_open.set()
        return write(*arguments)

    monkeypatch.setattr(changes, "write", noted)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, holder, 3_000)
        assert is_open.wait(patience())
        store.close()
        accepting.result()
    with closing(open_store(f"sqlite:///{path}")) as again:
        assert again.count(0, 0, *EVERYTHING) == 3_000


def test_a_lock_of_another_process_is_waited_for_and_then_named(
    path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0)
    said = r"is locked by another process \(database is locked\); nothing was written"
    with closing(open_store(f"sqlite:///{path}")) as impatient:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=said):
                impatient.put_inbox(0, [("message", b"x")])
            other.execute("ROLLBACK")
        impatient.put_inbox(0, [("message", b"x")])
    assert len(store.read_inbox(0, 10)) == 1


def test_an_opening_that_others_overtake_for_too_long_may_be_tried_again() -> None:
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorname = "SQLITE_PROTOCOL"
    assert errors.may_pass(error)
    assert "is opened by several processes at this moment (locking protocol)" in errors.describe("the store", error)


def test_a_full_disk_is_named_and_the_store_continues_with_free_space(store: SqlStore) -> None:
    database, holder = database_of(store), Holder(store)

    def limit_pages(count: int) -> None:
        with database._writer.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={count}").fetchall()

    limit_pages(60)
    with pytest.raises(StoreError, match=r"has no room to grow .*; nothing was written, and nothing new is accepted"):
        accept(holder, 2_000)
    limit_pages(2**30)
    assert holder.slice() == []
    accept(holder, 2_000)


def test_a_damaged_file_is_named(path: Path) -> None:
    with closing(open_store(f"sqlite:///{path}")) as store:
        accept(Holder(store), 2_000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + os.urandom(len(whole) // 2))
    said = r"is damaged .*; nothing was read; stop"
    with closing(open_store(f"sqlite:///{path}")) as damaged, pytest.raises(StoreError, match=said):
        damaged.slice(0, 0, *EVERYTHING)


def test_every_error_of_the_driver_becomes_a_store_error(store: SqlStore) -> None:
    blocks: dict[str, Any] = {
        "nothing was read": store.database.reading,
        "the last change may be .* adopted anew": store.database.writing,
    }
    for consequence, block in blocks.items():
        with pytest.raises(StoreError, match=rf"failed \(.*; {consequence}; report it"), block() as connection:
            connection.exec_driver_sql("SELEC 1")


def _write(store: SqlStore) -> None:
    store.put_command(0, "cancel", b"{}")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("use", [SqlStore.holders, _write, SqlStore.is_replaced], ids=["read", "write", "look"])
def test_a_file_that_cannot_be_looked_at_is_a_failure_of_the_store(
    store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch, number: int, use: Callable[[SqlStore], object]
) -> None:
    """Another error would end the process, and this one is over in a moment."""

    def stat(name: object, **options: Any) -> os.stat_result:
        if name == str(path):
            raise OSError(number, os.strerror(number), name)
        return real(name, **options)  # type: ignore[arg-type]

    if use is SqlStore.holders:
        database_of(store)._file = None  # as before its first use
    real = os.stat
    with monkeypatch.context() as at:
        at.setattr(os, "stat", stat)
        with pytest.raises(StoreError, match=r"could not be read or written .*; nothing was read or written"):
            use(store)
    use(store)


def test_a_folder_that_cannot_be_looked_at_is_named_when_the_store_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", str(path))
    monkeypatch.setattr(Path, "exists", mock.Mock(side_effect=refused))
    with pytest.raises(StoreUnusable, match=rf"{path} could not be read or written .*Permission denied.*; nothing was"):
        open_store(f"sqlite:///{path}")


def test_a_fork_in_the_middle_of_a_checkpoint_waits_for_no_writer_that_waits_for_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint has the lock of the writers, or waits for it: a writer must not be let in before it."""
    patience_s = patience(5)
    monkeypatch.setattr("celery_wheel.store.sqlite.locks.PATIENCE_S", patience_s)
    monkeypatch.setattr(sqlite, "LOG_BYTES", -1)
    database, held = database_of(store), threading.Event()
    checkpoint = database._checkpoint

    def checkpoint_and_wait_for_the_fork() -> None:
        if database._write_lock._holder is not None:  # the second one, under the lock
            held.set()
            wait_until(lambda: FORK_GATE._forking is not None, "a fork waits")
        checkpoint()

    monkeypatch.setattr(database, "_checkpoint", checkpoint_and_wait_for_the_fork)
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(database.tidy)]
        assert held.wait(patience(30))
        working.append(pool.submit(_write_without_tidying, database))
        wait_until(lambda: bool(database._write_lock._waiting), "a writer waits for the checkpoint")
        began_s = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(0)
        took_s = time.monotonic() - began_s
        assert os.waitpid(child, 0)[1] == 0
        for one in working:
            one.result(patience(30))
    assert took_s < patience_s


def _write_without_tidying(database: SqliteDatabase) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM wheel_inbox")


OpenStore = Callable[..., SqlStore]


@pytest.fixture
def open_it(path: Path) -> Iterator[OpenStore]:
    """Open the store at ``path``; the fixture closes every store."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(closing(open_store(f"sqlite:///{path}", **options)))


def refusal(url: object, **options: Any) -> str:
    with pytest.raises(StoreUnusable) as caught:
        open_store(str(url), **options)
    return str(caught.value)


def test_opening_an_existing_store_writes_nothing(path: Path, open_it: OpenStore) -> None:
    open_it().close()
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # every other writer would wait
        open_it(create=False).state(0)
        open_it()
        writer.execute("ROLLBACK")
    assert path.read_bytes() == before


def test_a_store_is_opened_as_it_is_without_a_number_of_shards(open_it: OpenStore) -> None:
    open_it(shards=4)
    assert open_it(shards=None, create=False).shards == 4


def test_the_path_stays_when_the_process_changes_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    store = open_store("sqlite:///wheel.sqlite3")
    monkeypatch.chdir("/")
    store.acquire(0, "host-a", 0, 1)
    store.close()
    assert path.exists()
    assert path.with_name("wheel.sqlite3.shard-0.lock").exists()


def test_a_store_can_live_in_a_file_that_has_other_tables(path: Path, open_it: OpenStore) -> None:
    """A Django project with one file has its own tables there."""
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE auth_user (name TEXT); INSERT INTO auth_user VALUES ('anna')")
        before = path.read_bytes()
        assert "has no tables of a store" in refusal(f"sqlite:///{path}", create=False)
        assert path.read_bytes() == before
        open_it().acquire(0, "host-a", 0, 1)
        assert other.execute("SELECT name FROM auth_user").fetchall() == [("anna",)]


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("mysql://user:secret@db/wheel", "must be a database URL like .*, got mysql://…$"),
        ("postgresql+psycopg2://user:secret@db/wheel", "must be a database URL like .*, got postgresql.psycopg2://…$"),
        ("postgresql://user:secret@db", "must name a database"),
        ("postgresql://user:pass@db:secret/wheel", "must be a database URL like .*, got no URL$"),
        ("redis://localhost", "must be a database URL"),
        ("sqlite+aiosqlite:////tmp/x", "must be a database URL"),
        ("wheel.sqlite3", "must be a database URL like sqlite:////var/lib"),
        ("", "must be a database URL"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:///file:x?mode=ro&uri=true", "must name a file"),
        ("sqlite:////tmp/x?timeout=3", "must name a file and nothing else"),
    ],
)
def test_a_url_that_cannot_be_a_store_is_a_wrong_setting(url: str, rule: str) -> None:
    with pytest.raises(SettingError, match=f"^wheel_store {rule}") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        *(({"shards": shards}, f"wheel_shards must be from 1 to 256, got {shards}") for shards in (0, -1, 257)),
        ({"durability": "raid"}, "wheel_durability must be 'disk' or 'memory', got 'raid'"),
    ],
)
def test_a_wrong_option_is_a_wrong_setting(path: Path, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(SettingError, match=f"^{rule}$"):
        open_store(f"sqlite:///{path}", **options)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    said = refusal(f"sqlite:///{tmp_path}/no/such/wheel.sqlite3")
    assert f"the folder {tmp_path}/no/such for the store does not exist; no store was made; make it" in said


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may run the tests
    said = refusal(f"sqlite:///{tmp_path}/wheel.sqlite3")
    assert f"this user may not write to the folder {tmp_path} for the store" in said
    assert "change its owner or mode" in said


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_that_takes_no_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: True)
    said = refusal("sqlite:////proc/wheel.sqlite3")
    assert "the store /proc/wheel.sqlite3 cannot be opened" in said
    assert "check that the folder exists and that this user may write to it" in said


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    expected = f"the store {tmp_path} is a folder; nothing was read or written; let wheel_store name a file in it"
    assert refusal(f"sqlite:///{tmp_path}") == expected


def test_a_file_that_is_no_database_stays_unchanged(path: Path) -> None:
    path.write_text("dear diary " * 100)
    said = refusal(f"sqlite:///{path}")
    assert f"the store {path} is no SQLite database" in said
    assert "a file of its own" in said
    assert path.read_text() == "dear diary " * 100


def test_opening_without_create_makes_nothing(path: Path) -> None:
    expected = f"there is no store at {path}; a scheduler makes it when it starts: celery -A proj beat -S wheel"
    assert refusal(f"sqlite:///{path}", create=False).startswith(expected)
    assert not path.exists()


def test_a_refused_store_is_closed(path: Path, open_it: OpenStore) -> None:
    open_it(shards=2).close()
    refusal(f"sqlite:///{path}", shards=3)
    assert not [file.path for file in psutil.Process().open_files() if file.path.startswith(str(path))]


def test_importing_the_package_loads_no_sqlalchemy() -> None:
    program = "import sys, celery_wheel.store, celery_wheel.store.model, celery_wheel.store.ports; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "sqlalchemy" not in loaded


def test_waiters_get_the_lock_in_the_order_of_their_arrival() -> None:
    turns, order = FairLock(), list[int]()

    def take(n: int) -> None:
        with turns:
            order.append(n)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    with turns:
        for n, thread in enumerate(threads):
            thread.start()
            wait_until(lambda n=n: len(turns._waiting) > n, "a thread that waits")  # type: ignore[misc]
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_the_lock_is_free_after_an_error() -> None:
    turns = FairLock()
    with suppress(ValueError), turns:
        raise ValueError
    with turns:
        pass


def test_one_thread_at_a_time_has_the_lock() -> None:
    turns, inside, most = FairLock(), 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(500):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert (inside, most) == (0, 1)


def assert_free(turns: FairLock) -> None:
    entered = threading.Event()

    def enter() -> None:
        with turns:
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    assert entered.wait(patience(10)), "the turn was handed to a ticket that nobody waits for"


def test_an_interrupted_waiter_removes_its_ticket() -> None:
    """Ctrl-C in the main thread, while another thread writes."""
    turns, entered, may_end = FairLock(), threading.Event(), threading.Event()

    def work() -> None:
        with turns:
            entered.set()
            wait_until(lambda: len(turns._waiting) == 1, "the main thread waits")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            may_end.wait(patience(10))

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(patience(10))
    with pytest.raises(KeyboardInterrupt):
        turns.__enter__()
    may_end.set()
    thread.join()
    assert_free(turns)


def test_a_waiter_that_is_interrupted_with_the_lock_passes_it_on() -> None:
    turns, seen = FairLock(), list[str]()

    def wait() -> None:
        with suppress(KeyboardInterrupt), turns:
            seen.append("it was interrupted before")

    thread = threading.Thread(target=wait)
    with turns:
        thread.start()
        wait_until(lambda: len(turns._waiting) == 1, "a thread that waits")
        # Raised at the thread's next step, after its wait: the thread has the lock, and is not inside the block.
        identity, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, error) == 1
    thread.join()
    assert seen == []
    assert_free(turns)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_lock_is_free_in_a_forked_child() -> None:
    turns, entered, may_end = FairLock(), threading.Event(), threading.Event()

    def work() -> None:
        with turns:
            entered.set()
            may_end.wait(patience(60))

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(patience(10))
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits
        with turns:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    thread.join()
    assert status == 0


def test_a_fork_waits_for_threads_inside_and_later_threads_wait_for_the_fork() -> None:
    gate, leave, order = ForkGate(), threading.Event(), list[str]()

    def inside() -> None:
        with gate.entered():
            leave.wait(patience(30))
            with gate.entered():  # the thread is inside, and has to finish its work
                order.append("left")

    def late() -> None:
        with gate.entered():
            order.append("entered")

    first = threading.Thread(target=inside)
    first.start()
    wait_until(lambda: bool(gate._inside), "it is inside")
    forker = threading.Thread(target=lambda: (gate.before(), order.append("forked")))
    forker.start()
    wait_until(lambda: gate._forking is not None, "a fork waits")
    second = threading.Thread(target=late)
    second.start()
    leave.set()
    first.join(patience(30))
    forker.join(patience(30))
    assert order == ["left", "forked"]
    gate.after_in_parent()
    second.join(patience(30))
    assert order == ["left", "forked", "entered"]


def test_a_thread_that_forks_inside_its_own_transaction_does_not_wait_for_itself() -> None:
    gate = ForkGate()
    with gate.entered():
        gate.before()
        gate.after_in_child()
        with gate.entered():
            pass
    assert gate._inside == {}
