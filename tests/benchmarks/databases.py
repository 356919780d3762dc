"""New stores of both kinds, SQLite files and databases of a PostgreSQL of their own; fsync is on.

::

    database(folder, name)     a new store with its size, its pages in memory and the rate of its disk
    open_transaction(url)      as somebody's forgotten session
    databases(folder)          name → function that makes such a store, of every kind that is installed
"""

import itertools
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from tests.kit.servers.postgres import PostgresServer, postgres_binaries

#: Settings of a PostgreSQL that is measured.
DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}

SQLITE, POSTGRESQL = KINDS = ("SQLite", "PostgreSQL")

_TOTAL = """
    SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public'
"""


class Database:
    """A new store, and the files that it is in. A SQLite file unless there is a server."""

    def __init__(self, url: str, server: PostgresServer | None = None) -> None:
        self.url, self._server = url, server
        self._name = url.rsplit("/", 1)[1] if server else url.removeprefix("sqlite:///")

    @property
    def pid(self) -> int | None:
        """Return the id of the server's process; None for a file."""
        return self._server and self._server.pid

    def bytes(self) -> int:
        """Return the size on disk: the file after a checkpoint, or all tables with their indexes and TOAST."""
        if self._server is not None:
            return int(self._server.sql(_TOTAL, database=self._name)[0][0] or 0)
        with closing(sqlite3.connect(self._name)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(self._name).stat().st_size

    def on_disk(self) -> int:
        """Return the size of all files as they are, a write-ahead log of SQLite included."""
        return sum(path.stat().st_size for path in self._files())

    def cpu_s(self) -> float:
        """Return the seconds of CPU that all processes of the server have used; 0.0 for a file."""
        if self._server is None:
            return 0.0
        server = psutil.Process(self._server.pid)
        # Its ended processes are in its own times; one that ends meanwhile is counted next time.
        times = [server.cpu_times()]
        for child in server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times.append(child.cpu_times())
        return float(sum(sum(each[:4]) for each in times))

    def logged(self) -> int:
        """Return the bytes that the server has written into its write-ahead log; 0 for a file."""
        if self._server is None:
            return 0
        return int(self._server.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])

    def evict(self) -> None:
        """Drop the pages from memory as after a reboot, also from PostgreSQL's own. Nobody may be connected."""
        if self._server is not None:
            self._server.stop()
        for path in self._files():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if self._server is not None:
            self._server.start()

    def read_per_s(self) -> float:
        self.evict()
        began = time.perf_counter()
        return self.read() / (time.perf_counter() - began)

    def read(self) -> int:
        """Read all files, so that the system has them in memory; return their bytes."""
        count = 0
        for path in self._files():
            with path.open("rb", buffering=0) as file:
                while block := file.read(1 << 20):
                    count += len(block)
        return count

    def _files(self) -> list[Path]:
        if self._server is not None:
            return [path for path in (self._server.folder / "data/base").rglob("*") if path.is_file()]
        return list(Path(self._name).parent.glob(f"{Path(self._name).name}*"))


@contextmanager
def open_transaction(url: str) -> Iterator[None]:
    """Keep a transaction open on PostgreSQL: vacuum removes no row version that is replaced meanwhile."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        yield


@contextmanager
def databases(folder: Path, *names: str) -> Iterator[Mapping[str, Callable[[], Database]]]:
    numbers = itertools.count(1)
    makes = {SQLITE: lambda: Database(f"sqlite:///{folder}/wheel-{next(numbers)}.sqlite3")}
    if POSTGRESQL not in (names or KINDS):
        yield makes
    elif not names and postgres_binaries() is None:
        print("no PostgreSQL is installed; it is not measured (make services)", file=sys.stderr)
        yield makes
    else:
        with PostgresServer(**DURABLE) as server:
            yield {**makes, POSTGRESQL: lambda: Database(server.new_database(), server)}


@contextmanager
def database(folder: Path, name: str) -> Iterator[Database]:
    with databases(folder, name) as makes:
        yield makes[name]()
