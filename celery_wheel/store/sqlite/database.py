"""A SQLite file as a store's database: one writer, many readers, nothing but files.

::

    durability "disk"     synchronous=FULL: fsync of the log. Survives kill -9, a crash of the system, loss of power.
    durability "memory"   synchronous=NORMAL: survives kill -9. After a crash of the system the store is intact, and
                          the commits of the last moments may be missing.
    durable=False         NORMAL in both: the holder's snapshot, and the removal of history.
                          Never OFF, since a checkpoint of an OFF connection could tear the file.

Chosen by measurement, filling to 2,000,000 rows at random due times, 2,000 rows of 1.2 kB a commit, SQLite 3.40
    page_size       4096 wrote 7.2 kB a row, 8192 8.8 kB, 16384 10.1 kB: a row dirties one page of the position index
    wal_checkpoint  in the commit every 1,000 pages 21,000 rows/s, every 16,000 pages 26,000, where it took 22 of 76 s
    cache_size      8 to 64 MiB: no difference. The position index (90 MB) is larger than any of these
    task ids        random ones instead of UUIDv7: 14 kB a row and half the rate; ``celery_wheel.Celery`` makes UUIDv7
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.dialects import sqlite as dialect
from sqlalchemy.exc import SQLAlchemyError

from celery_wheel.errors import SettingError, StoreError, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store.bell import FileBell, ring
from celery_wheel.store.place import StorePlace
from celery_wheel.store.ports.pages import Disk, StoreSize
from celery_wheel.store.sql.database import errors_for_people
from celery_wheel.store.sql.statement import Prepared, Statements
from celery_wheel.store.sqlite.errors import describe, may_pass
from celery_wheel.store.sqlite.locks import FORK_GATE, FairLock, FileLease
from celery_wheel.store.store_model import Bell


class SqlitePolls:
    """Cheap polls: whether a query has a row."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pooled: Any = None
        self._cursor: Any = None
        self._versions: dict[tuple[str, tuple[Any, ...]], int] = {}  #: in which a query had no row

    def has_row(self, sql: str, places: tuple[Any, ...]) -> bool:
        """Whether the query has a row. Raises the driver's error, after which the next poll connects anew."""
        with self._polling():
            [(version,)] = self._found("PRAGMA data_version")
            if self._versions.get((sql, places)) == version:
                return False
            found = self._found(sql, places)
            if not found:
                self._versions[sql, places] = version
            return bool(found)

    def number(self, sql: str, places: tuple[Any, ...]) -> int | None:
        """Return the one number of a query, None where it has no row; raises as ``has_row`` does."""
        with self._polling():
            found = self._found(sql, places)
        return int(found[0][0]) if found else None

    @contextmanager
    def _polling(self) -> Iterator[None]:
        with FORK_GATE.entered(), self._lock:
            try:
                if self._pooled is None:
                    self._pooled = self._engine.raw_connection()
                    self._cursor = self._pooled.cursor()
                yield
            except BaseException:
                self._drop()
                raise

    def _found(self, sql: str, places: tuple[Any, ...] = ()) -> list[Any]:
        found: list[Any] = self._cursor.execute(sql, places).fetchall()
        return found  # all of them: an open read would keep the log from being copied back

    def close(self) -> None:
        with self._lock:
            self._drop()
            self._engine.dispose()

    def _drop(self) -> None:
        pooled, self._pooled = self._pooled, None
        self._versions.clear()
        if pooled is not None:
            pooled.invalidate()


#: A writer waits so long for another process that writes (the inbox has many writers); the holder's longest
#: transactions take about 0.3 s.
BUSY_TIMEOUT_S = 10

READERS = 4

SYNCHRONOUS_NORMAL, SYNCHRONOUS_FULL = 1, 2

#: The log file has this size after a burst; ``tidy`` checkpoints once it has grown to twice as much. A row that comes
#: with thousands of others is one or two pages of it, a commit of a few rows some ten.
LOG_BYTES = 64 * 2**20

_PRAGMAS = {
    "wal_autocheckpoint": 98_304,  # pages, 384 MiB: for a process that never calls ``tidy``
    "journal_size_limit": LOG_BYTES,
    "temp_store": "MEMORY",
    "foreign_keys": "OFF",  # there are none
    # Deleted rows are overwritten with zeros. To forget a row of 300 bytes writes 6 percent more and takes 25 µs of CPU
    # instead of 23; one of 6 kB, whose pages would else be left as they are, 50 percent more and 39 µs instead of 29.
    "secure_delete": "ON",
    "mmap_size": 0,  # mapped pages count as this process's memory
}
WRITER_CACHE_KIB = 16 * 1024
READER_CACHE_KIB = 4 * 1024  # every commit empties it, so it serves one call: the inner pages of two trees


class SqliteDatabase:
    def __init__(self, path: str, *, durability: str) -> None:
        self.name = path
        self._synchronous = SYNCHRONOUS_FULL if durability == "disk" else SYNCHRONOUS_NORMAL
        self._reader = _engine(path, READERS, READER_CACHE_KIB)
        self._writer = _engine(path, 1, WRITER_CACHE_KIB)
        self._polls = SqlitePolls(_engine(path, 1, READER_CACHE_KIB))
        self.statements = _statements()
        self._lease = FileLease(path)
        self._write_lock = FairLock()
        self._file: tuple[int, int] | None = None  #: device and inode, from its first use on
        self._pid = os.getpid()
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        self._check_usable()
        if self._file is None:
            self._file = self._identity()
        with (
            FORK_GATE.entered(),
            errors_for_people(self.name, describe, SQLAlchemyError, reading=True),
            self._reader.connect() as connection,
        ):
            yield connection
            if self._closed:
                connection.invalidate()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.reading() as connection:
            connection.exec_driver_sql("BEGIN")
            try:
                yield connection
            finally:
                if not connection.invalidated:  # see ``writing``
                    connection.exec_driver_sql("ROLLBACK")

    def poll(self, query: Prepared, places: tuple[Any, ...]) -> bool:
        self._check_usable()
        with errors_for_people(self.name, describe, SQLAlchemyError, sqlite3.Error, reading=True):
            return self._polls.has_row(query.sql, places)

    def number(self, query: Prepared, **values: int) -> int | None:
        self._check_usable()
        with errors_for_people(self.name, describe, SQLAlchemyError, sqlite3.Error, reading=True):
            return self._polls.number(query.sql, query.places(values))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other writers out. The gate comes first, always: a fork lets nobody in, and waits for all inside."""
        with FORK_GATE.entered(), self._write_lock:
            yield

    @contextmanager
    def writing(self, *, durable: bool | None = None, hurried: bool = False) -> Iterator[Connection]:
        self._check_usable()  # before the lock: at a fork a thread of the parent may have held it
        with self._alone():
            self._check_usable()
            self._check_file()
            with errors_for_people(self.name, describe, SQLAlchemyError), self._writer.connect() as connection:
                levels = {None: self._synchronous, True: SYNCHRONOUS_FULL, False: SYNCHRONOUS_NORMAL}
                self._set_synchronous(connection, levels[durable])
                driver: Any = connection.connection.dbapi_connection
                try:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    yield connection
                    connection.exec_driver_sql("COMMIT")
                except BaseException:
                    # After some errors (disk full, I/O) SQLite has rolled back already. Where a signal's SystemExit
                    # interrupts a statement SQLAlchemy closes the connection, which rolls back as well.
                    if not connection.invalidated and driver.in_transaction:
                        connection.exec_driver_sql("ROLLBACK")
                    raise

    @staticmethod
    def _set_synchronous(connection: Connection, level: int) -> None:
        """Set the level by a pragma: the commits of a second connection would empty the page cache of the first."""
        if connection.info.get("synchronous") != level:
            connection.exec_driver_sql(f"PRAGMA synchronous={level}")
            connection.info["synchronous"] = level

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.name} was closed; nothing was read or written; open it again")
        if self._pid != os.getpid():
            raise StoreError(
                f"the store {self.name} was opened before this process was forked; nothing was read or written; "
                "open it anew in each process"
            )

    def _check_file(self) -> None:
        """Refuse a file that was deleted or replaced: its data would be lost at the end of this process."""
        identity = self._identity()
        if self._file is None:
            self._file = identity
        elif identity != self._file:
            raise StoreUnusable(
                f"the store {self.name} was deleted or replaced while it was in use; nothing more is accepted or "
                "dispatched from here; restore the file if there is a copy, and restart the scheduler"
            )

    def _identity(self) -> tuple[int, int] | None:
        with errors_for_people(self.name, describe, OSError):
            try:
                found = os.stat(self.name)
            except FileNotFoundError:
                return None
        return found.st_dev, found.st_ino

    def hold(self, shard: int, holder: str) -> bool:
        return self._lease.hold(shard, holder)

    def release(self, shard: int) -> None:
        self._lease.release(shard)

    def evict_stopped_holder(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        return True

    @contextmanager
    def making(self) -> Iterator[Connection]:
        self._enable_log()
        with self.writing() as connection:
            yield connection

    def may_pass(self, error: Exception) -> bool:
        return may_pass(error)

    def is_replaced(self) -> bool:
        return self._file is not None and self._identity() != self._file

    def identity(self) -> tuple[str, str, str]:
        """A copied disk has the same devices and inodes on another machine, whose start has another id."""
        with errors_for_people(self.name, describe, OSError):
            found, address = os.stat(self.name), os.path.realpath(self.name)
        return f"{_start_id()}.{found.st_dev}.{found.st_ino}", address, f"{address} on {gethostname()}"

    def now_ms(self) -> int | None:
        return None

    def size(self) -> StoreSize:
        with errors_for_people(self.name, describe, OSError):
            files = [self.name, f"{self.name}-wal"]
            size = sum(os.stat(file).st_size for file in files if os.path.exists(file))
            found = shutil.disk_usage(Path(self.name).parent)
        return StoreSize(size, Disk(found.total, found.free))

    def server(self) -> None:
        """Return None: there is no server."""

    def ring(self) -> None:
        ring(self.name)

    def bell(self) -> Bell:
        return FileBell(self.name)

    def _enable_log(self) -> None:
        """Turn on the write-ahead log, before tables are made; an open connection would notice it at its next read."""
        self._reader.dispose()
        with (
            self._alone(),
            errors_for_people(self.name, describe, SQLAlchemyError),
            self._writer.connect() as connection,
        ):
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar_one()
        if mode != "wal":
            raise StoreUnusable(
                f"SQLite cannot keep a write-ahead log for {self.name} (it offers {mode!r}), which the store needs; "
                "the folder may be on a network file system: put the store on a local disk"
            )

    def tidy(self) -> None:
        """Copy the log back into the file: most of it while others write, the short rest under the lock.

        The next commit begins the log anew only where the copy under the lock is complete.
        """
        if self._log_bytes() <= 2 * LOG_BYTES:
            return
        self._checkpoint()
        with self._alone():
            self._checkpoint()

    def _log_bytes(self) -> int:
        """Return the size of the log file, which the first commit after a checkpoint cuts to LOG_BYTES.

        By stat alone: opening a file of SQLite and closing it again frees all locks that this process has on it.
        """
        with errors_for_people(self.name, describe, OSError):
            try:
                return os.stat(f"{self.name}-wal").st_size
            except FileNotFoundError:
                return 0

    def _checkpoint(self) -> None:
        with self.reading() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def scrub(self) -> None:
        """Cut the log to nothing; where a reader needs it, its pages stay until the log is used anew."""
        self._checkpoint()
        with self._alone(), self.reading() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=0")  # readers may take long, and no writer waits for them
            try:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1_000}")

    def rewrite(self) -> None:
        self._check_usable()
        with (
            self._alone(),
            errors_for_people(self.name, describe, SQLAlchemyError),
            self._writer.connect() as connection,
        ):
            self._check_file()
            connection.exec_driver_sql("VACUUM")
        self.scrub()

    def close(self) -> None:
        with self._alone():
            self._closed = True
            self._writer.dispose()
            self._reader.dispose()
            self._polls.close()
        self._lease.close()


def _start_id() -> str:
    """Return an id of this start of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@cache
def _statements() -> Statements:
    """Return the statements, compiled once in a process: 10 ms matter to each command of the CLI and to each test."""
    return Statements(dialect.dialect(paramstyle="qmark"), dialect.insert)


def _engine(path: str, connections: int, cache_kib: int) -> Engine:
    """Make connections in autocommit: ``writing`` begins and ends transactions by statements."""
    engine = create_engine(
        URL.create("sqlite", database=path),
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # an error would quote the bodies of its statement
        pool_size=connections,
        pool_use_lifo=True,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def set_pragmas(driver: Any, _record: Any) -> None:
        try:
            for name, value in {**_PRAGMAS, "cache_size": -cache_kib}.items():
                driver.execute(f"PRAGMA {name}={value}").close()
            # A read of the file: it fails where this is no database, and makes the connection notice the log.
            driver.execute("PRAGMA schema_version").close()
        except BaseException:  # no database, or no file: the pool does not close this connection
            driver.close()
            raise

    return engine


EXAMPLE = "sqlite:////var/lib/wheel/wheel.sqlite3 (absolute) or sqlite:///wheel.sqlite3 (relative)"


def open_database(place: StorePlace, durability: str, create: bool) -> SqliteDatabase:
    url = place.url
    if not _names_a_file(url):
        raise SettingError(f"wheel_store must name a file and nothing else, like {EXAMPLE}, got {url}")
    path = Path(url.database or "").absolute()  # a daemon may change its working folder later
    try:
        _check_place(path, create, place)
    except StoreUnusable:  # an OSError too
        raise
    except OSError as error:
        raise StoreUnusable(describe(str(path), error)) from error
    return SqliteDatabase(str(path), durability=durability)


def _names_a_file(url: URL) -> bool:
    name = url.database or ""
    return bool(name) and name != ":memory:" and not name.startswith("file:") and not url.query and not url.host


def _check_place(path: Path, create: bool, place: StorePlace) -> None:
    if path.is_dir():
        raise StoreUnusable(
            f"the store {path} is a folder; nothing was read or written; let wheel_store name a file in it"
        )
    if path.exists():
        if create and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
            raise StoreUnusable(
                f"this user may not write to the store {path}; nothing was written; make the file and its folder "
                "writable, or set wheel_store to another file"
            )
        return
    if not place.own:
        raise StoreOutdated(f"there is no store at {path}; run: {place.made_by}")
    if not create:
        raise StoreUnused(
            f"there is no store at {path}; a scheduler makes it when it starts: {place.made_by}; start one there, or "
            "let wheel_store name the file of a scheduler that runs"
        )
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnusable(
            f"the folder {folder} for the store does not exist; no store was made; make it, or set wheel_store to "
            "another"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnusable(
            f"this user may not write to the folder {folder} for the store; no store was made; change its owner or "
            "mode, or set wheel_store to another"
        )
    # SQLite gives its log the same mode. Another one, for a group, is a matter of the user who makes the file.
    with suppress(OSError):  # another process has just made it; any other fault is SQLite's to name
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
