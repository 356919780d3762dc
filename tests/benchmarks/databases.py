"""New stores of both kinds, SQLite files and databases of a PostgreSQL of their own; fsync is on.

::

    database(folder, name)     a new store with its size, its pages in memory and the rate of its disk
    databases(bench, folder)   name → function that makes such a store, of every kind that is installed
    stores(bench, folder)      the same, and only the URL
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.kit.servers.postgres import PostgresServer, postgres_binaries

Make = Callable[[], str]

#: Settings of a PostgreSQL that is measured.
DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}

SQLITE, POSTGRESQL = KINDS = ("SQLite", "PostgreSQL")

_BLOCK = 1 << 20
_TOTAL = """
    SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public'
"""


class Database:
    """A new store, and the files that it is in. A SQLite file unless there is a server."""

    def __init__(self, url: str, server: PostgresServer | None = None) -> None:
        self.url = url
        self._server = server

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

    def evict(self) -> float:
        """Drop the pages from memory as after a reboot; return the part that the system has kept, in percent.

        PostgreSQL is restarted, because its own buffers hold pages, too. Nobody may be connected.
        """
        if self._server is not None:
            self._server.stop()
        files = self.files()
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        kept = 100 * sum(map(_resident, files)) / max(1, sum(path.stat().st_size for path in files))
        if self._server is not None:
            self._server.start()
        return kept

    def read_per_s(self) -> float:
        """Return the bytes a second of a sequential read of all files from the disk."""
        self.evict()
        began = time.perf_counter()
        return self.read() / (time.perf_counter() - began)

    def read(self) -> int:
        """Read all files, so that the system has them in memory; return their bytes."""
        count = 0
        for path in self.files():
            with path.open("rb", buffering=0) as file:
                while block := file.read(_BLOCK):
                    count += len(block)
        return count

    def files(self) -> list[Path]:
        if self._server is not None:
            return [path for path in (self._server.folder / "data/base").rglob("*") if path.is_file()]
        return [path for path in Path(self._name).parent.glob(f"{Path(self._name).name}*") if path.is_file()]

    @property
    def _name(self) -> str:
        return self.url.rsplit("/", 1)[1] if self._server else self.url.removeprefix("sqlite:///")


@contextmanager
def database(folder: Path, name: str) -> Iterator[Database]:
    """Yield a new store of that kind."""
    if name == SQLITE:
        yield Database(f"sqlite:///{folder}/wheel.sqlite3")
        return
    with PostgresServer(**DURABLE) as server:
        yield Database(server.new_database(), server)


@contextmanager
def stores(bench: str, folder: Path) -> Iterator[dict[str, Make]]:
    """Yield name of the database → function that makes the URL of a new store."""
    with databases(bench, folder) as found:
        yield {name: lambda make=make: make().url for name, make in found.items()}


@contextmanager
def databases(bench: str, folder: Path) -> Iterator[dict[str, Callable[[], Database]]]:
    """Yield name of the database → function that makes a new store."""
    numbers = itertools.count(1)
    found: dict[str, Callable[[], Database]] = {
        SQLITE: lambda: Database(f"sqlite:///{folder}/wheel-{next(numbers)}.sqlite3")
    }
    if postgres_binaries() is None:
        print(f"{bench}: no PostgreSQL is installed; it is not measured (make services)", file=sys.stderr)
        yield found
        return
    with PostgresServer(**DURABLE) as postgres:
        yield {**found, POSTGRESQL: lambda: Database(postgres.new_database(), postgres)}


def _resident(path: Path) -> int:
    """Return the bytes of a file that are in the system's memory: mincore(2)."""
    size = path.stat().st_size
    if not size:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
        del start  # the map cannot be closed while its address is held
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return sum(page & 1 for page in bytes(pages)) * mmap.PAGESIZE
