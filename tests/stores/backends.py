"""The stores that pass the suite. Another one is a line in ``SQL`` and a function that makes it in a folder."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from celery_wheel.store import open_store
from celery_wheel.store.port import Store
from celery_wheel.store.sql import SqlStore
from tests.postgres import PostgresServer
from tests.simulation.model_store import Disk, ModelStore

SHARDS = 2


@dataclass(frozen=True)
class SqlBackend:
    """A SQL database, known by its URL, so that another process can open it too."""

    url: str
    durability: str = "disk"

    def __call__(self) -> SqlStore:
        return open_store(self.url, shards=SHARDS, durability=self.durability)


def sqlite(folder: Path) -> SqlBackend:
    return SqlBackend(f"sqlite:///{folder}/wheel.sqlite3")


def sqlite_memory(folder: Path) -> SqlBackend:
    return SqlBackend(f"sqlite:///{folder}/wheel.sqlite3", durability="memory")


class Postgres:
    """One server for all tests of a process; each test has a database of its own."""

    server: PostgresServer | None = None

    @classmethod
    def start(cls) -> PostgresServer:
        if cls.server is None:
            cls.server = PostgresServer(Path(tempfile.mkdtemp()), fsync="off")
            cls.server.__enter__()
            atexit.register(cls.server.__exit__, None, None, None)
        return cls.server


def postgresql(_folder: Path) -> SqlBackend:
    return SqlBackend(Postgres.start().fresh())


def model(_folder: Path | None = None) -> Callable[[], Store]:
    """The simulation's store in memory passes the suite too, so that what is proved on it holds for the others."""
    disk = Disk()
    return lambda: ModelStore(disk)


SQL = [
    pytest.param(sqlite, id="sqlite"),
    pytest.param(sqlite_memory, id="sqlite-memory"),
    pytest.param(postgresql, id="postgresql"),
]
ALL = [*SQL, pytest.param(model, id="model")]
