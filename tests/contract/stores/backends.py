"""The stores that pass the suite. A new store is a line in ``SQL`` and a function that makes it for a test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from celery_wheel.store import open_store
from celery_wheel.store.ports import Store
from celery_wheel.store.sql.store import SqlStore
from tests.kit.new_stores import new_file
from tests.kit.servers.postgres import PostgresServer
from tests.simulation.model_store import Disk, ModelStore

SHARDS = 2
LEASE_MS = 20_000


@dataclass(frozen=True)
class SqlBackend:
    """A SQL database, known by its URL, so that another process can open it too."""

    url: str
    durability: str = "disk"
    keys: tuple[str, ...] = ()

    def __call__(self) -> SqlStore:
        # A process of a busy machine may stand still in a transaction for longer than half of the usual lease.
        return open_store(self.url, shards=SHARDS, durability=self.durability, lease_ms=LEASE_MS, keys=self.keys)


def sqlite(request: pytest.FixtureRequest, **settings: Any) -> SqlBackend:
    path = request.getfixturevalue("tmp_path") / "wheel.sqlite3"
    return SqlBackend(new_file(path, shards=SHARDS, **settings), **settings)


def sqlite_encrypted(request: pytest.FixtureRequest) -> SqlBackend:
    """The other durability and encryption at once: neither depends on the other."""
    return sqlite(request, durability="memory", keys=("a secret of thirty-two characters",))


def postgresql(request: pytest.FixtureRequest) -> SqlBackend:
    server = request.getfixturevalue("postgres")
    return SqlBackend(server.new_database(_with_tables(server)))


@cache
def _with_tables(server: PostgresServer) -> str:
    """Return the name of a database with the tables: a copy of it takes a third of the time that its tables take."""
    url = server.new_database(stays=True)
    SqlBackend(url)().close()
    return url.rpartition("/")[2]


def model(_request: pytest.FixtureRequest | None = None) -> Callable[[], Store]:
    """The simulation's store in memory passes the suite too, so that its proofs hold for the other stores."""
    disk = Disk()
    return lambda: ModelStore(disk)


SQL = [
    pytest.param(sqlite, id="sqlite"),
    pytest.param(sqlite_encrypted, id="sqlite-encrypted"),
    pytest.param(postgresql, id="postgresql"),
]
ALL = [*SQL, pytest.param(model, id="model")]
