"""Opening a store on SQLite and PostgreSQL, and migrating an older one, which keeps its rows.

The first version that is released has no step to it, so the step of these tests is made up: version 0 had no gates.
"""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, update

from celery_wheel.errors import StoreError, StoreUnusable
from celery_wheel.store import migrate_store, open_store
from celery_wheel.store.audit_model import AuditCriteria, Operator
from celery_wheel.store.model import SCHEMA_VERSION
from celery_wheel.store.sql import upkeep
from celery_wheel.store.sql.schema import gate, meta
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import SqlBackend
from tests.contract.stores.conftest import KINDS, MakeUrl
from tests.kit.holder import NOW, Holder

KILLED_HALFWAY = """
import os, signal, sys
from celery_wheel.store import migrate_store
from celery_wheel.store.sql import upkeep
from celery_wheel.store.sql.schema import gate

def step(connection):
    gate.create(connection)
    os.kill(os.getpid(), signal.SIGKILL)

upkeep.STEPS[0] = step
migrate_store(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def step(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_gates(connection: Connection) -> None:
        gate.create(connection)

    monkeypatch.setitem(upkeep.STEPS, 0, make_gates)


def set_version(store: SqlStore, version: int) -> None:
    with store.database.writing() as connection:
        connection.execute(update(meta).values(schema_version=version))


def age(store: SqlStore) -> None:
    with store.database.writing() as connection:
        gate.drop(connection)
    set_version(store, 0)


def aged(backend: SqlBackend) -> list[str]:
    store = backend()
    holder = Holder(store)
    rows = holder.accept(NOW, NOW + 1)
    store.release(0, holder.epoch)
    age(store)
    store.close()
    return [row.message.task_id for row in rows]


def assert_migrates(backend: SqlBackend, task_ids: list[str]) -> None:
    assert migrate_store(backend.url, Operator("cli", "anna")) == [1]
    assert migrate_store(backend.url) == []
    store = backend()
    (entry,) = store.browse.audit(AuditCriteria()).items
    assert (entry.action, entry.actor, entry.details) == ("migrate", "anna", {"before": 0, "after": 1})
    assert store.gates(0) == []
    assert [row.task_id for row in store.find(0, task_ids)] == task_ids
    Holder(store).accept(NOW)
    store.close()


def test_an_older_store_names_the_remedy_and_keeps_its_tasks(sql_backend: SqlBackend) -> None:
    task_ids = aged(sql_backend)
    said = rf"older .*version 0, this celery-wheel needs {SCHEMA_VERSION}.*nothing was changed; stop every .* migrate"
    with pytest.raises(StoreUnusable, match=said):
        sql_backend()
    assert_migrates(sql_backend, task_ids)


@pytest.mark.slow
def test_a_migration_that_is_killed_changed_nothing(sql_backend: SqlBackend) -> None:
    task_ids = aged(sql_backend)
    done = subprocess.run([sys.executable, "-c", KILLED_HALFWAY, sql_backend.url], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    with pytest.raises(StoreUnusable, match="version 0, this celery-wheel needs"):
        sql_backend()
    assert_migrates(sql_backend, task_ids)


def test_a_store_that_is_held_is_not_migrated(sql_backend: SqlBackend, second: Holder, sql_store: SqlStore) -> None:
    age(sql_store)
    with pytest.raises(StoreUnusable, match=r"shard 1 of the store .* is held by host-a; nothing was changed; stop"):
        migrate_store(sql_backend.url)
    with sql_store.database.reading() as connection:
        assert not inspect(connection).has_table(gate.name)


def test_a_newer_store_is_refused(sql_backend: SqlBackend, sql_store: SqlStore) -> None:
    set_version(sql_store, 99)
    said = rf"by a newer celery-wheel \(its tables have version 99, this .* knows {SCHEMA_VERSION}\).* pip install -U"
    for refuse in (sql_backend, lambda: migrate_store(sql_backend.url)):
        with pytest.raises(StoreUnusable, match=said):
            refuse()


def test_migrating_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=f"there is no store at {tmp_path}"):
        migrate_store(f"sqlite:///{tmp_path}/nothing.sqlite3")


def test_every_version_has_a_step() -> None:
    assert sorted(upkeep.STEPS) == list(range(SCHEMA_VERSION))


@pytest.fixture(params=KINDS)
def new_url(request: pytest.FixtureRequest, make_url: MakeUrl) -> str:
    return make_url(request.param)


@pytest.mark.slow
def test_many_threads_may_open_a_new_store_at_the_same_moment(new_url: str) -> None:
    together = threading.Barrier(5)

    def open_one(_: int) -> str:
        together.wait()
        with closing(open_store(new_url, shards=2)) as store:
            return store.uuid

    with ThreadPoolExecutor(5) as pool:
        assert len(set(pool.map(open_one, range(5)))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("create", [True, False])
def test_another_number_of_shards_is_refused(new_url: str, create: bool) -> None:
    open_store(new_url, shards=2).close()
    with pytest.raises(StoreUnusable, match=r"has 2 shards, not 3.*set wheel_shards = 2"):
        open_store(new_url, shards=3, create=create)


def test_a_closed_store_refuses_every_call(sql_store: SqlStore) -> None:
    sql_store.close()
    sql_store.close()
    for use in (lambda: sql_store.state(0), lambda: sql_store.put_inbox(0, [("message", b"")])):
        with pytest.raises(StoreError, match="was closed; nothing was read or written"):
            use()
