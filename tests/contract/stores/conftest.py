"""Every store passes one suite. ``make_store`` opens another connection to the same database, as a scheduler would."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from celery_wheel.store import open_store
from celery_wheel.store.ports import Store
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import ALL, LEASE_MS, SQL, SqlBackend
from tests.kit.holder import Holder
from tests.kit.servers.postgres import PostgresServer

MakeStore = Callable[[], Store]
MakeSqlStore = Callable[[], SqlStore]
MakeUrl = Callable[[str], str]
KINDS = ("sqlite", "postgresql")


@pytest.fixture(params=ALL)
def make_store(request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    yield from _closing(request.param(request))


@pytest.fixture(params=SQL)
def sql_backend(request: pytest.FixtureRequest) -> SqlBackend:
    backend: SqlBackend = request.param(request)
    return backend


@pytest.fixture
def make_sql_store(sql_backend: SqlBackend) -> Iterator[MakeSqlStore]:
    yield from _closing(sql_backend)


S = TypeVar("S", bound=Store)


def _closing(make: Callable[[], S]) -> Iterator[Callable[[], S]]:
    opened: list[S] = []

    def make_one() -> S:
        opened.append(make())
        return opened[-1]

    yield make_one
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


@pytest.fixture
def sql_store(make_sql_store: MakeSqlStore) -> SqlStore:
    return make_sql_store()


@pytest.fixture
def holder(store: Store) -> Holder:
    return Holder(store)


@pytest.fixture
def sql_holder(sql_store: SqlStore) -> Holder:
    return Holder(sql_store)


@pytest.fixture
def second(sql_store: SqlStore) -> Holder:
    return Holder(sql_store, shard=1)


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    numbers = count()

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{next(numbers)}.sqlite3"
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.new_database()

    return make


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def pg_store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url, lease_ms=LEASE_MS)) as store:
        yield store
