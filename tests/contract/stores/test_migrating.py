"""A store of an older version is migrated to this version, on SQLite and PostgreSQL, and keeps its rows.

The first version that is released has no step to it, so the step of these tests is made up: version 0 had no gates.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, update

from celery_wheel.errors import StoreUnusable
from celery_wheel.store import migrate_store
from celery_wheel.store.model import SCHEMA_VERSION
from celery_wheel.store.sql import upkeep
from celery_wheel.store.sql.schema import gate, meta
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import SqlBackend
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
    """Give the tables their form of version 0."""
    with store.database.writing() as connection:
        gate.drop(connection)
    set_version(store, 0)


def aged(backend: SqlBackend) -> list[str]:
    """Make a store of version 0 with two tasks; returns their ids."""
    store = backend()
    holder = Holder(store)
    rows = holder.accept(NOW, NOW + 1)
    store.release(0, holder.epoch)
    age(store)
    store.close()
    return [row.message.task_id for row in rows]


def assert_migrates(backend: SqlBackend, task_ids: list[str]) -> None:
    assert migrate_store(backend.url) == [1]
    assert migrate_store(backend.url) == []
    store = backend()
    assert store.gates(0) == []
    assert [row.task_id for row in store.find(0, task_ids)] == task_ids
    Holder(store).accept(NOW)
    store.close()


def test_an_older_store_names_the_remedy_and_keeps_its_tasks(sql_backend: SqlBackend) -> None:
    task_ids = aged(sql_backend)
    said = rf"version 0, this celery-wheel needs {SCHEMA_VERSION}.*nothing was changed; stop every .* migrate"
    with pytest.raises(StoreUnusable, match=said):
        sql_backend()
    assert_migrates(sql_backend, task_ids)


def test_a_migration_that_is_killed_changed_nothing(sql_backend: SqlBackend) -> None:
    task_ids = aged(sql_backend)
    done = subprocess.run([sys.executable, "-c", KILLED_HALFWAY, sql_backend.url], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    with pytest.raises(StoreUnusable, match="version 0, this celery-wheel needs"):
        sql_backend()
    assert_migrates(sql_backend, task_ids)


def test_a_store_that_is_held_is_not_migrated(sql_backend: SqlBackend) -> None:
    store = sql_backend()
    Holder(store, 1)
    age(store)
    with pytest.raises(StoreUnusable, match=r"shard 1 of the store .* is held by host-a; nothing was changed; stop"):
        migrate_store(sql_backend.url)
    with store.database.reading() as connection:
        assert not inspect(connection).has_table(gate.name)
    store.close()


def test_a_newer_store_stays_unchanged(sql_backend: SqlBackend) -> None:
    store = sql_backend()
    set_version(store, 99)
    with pytest.raises(StoreUnusable, match="made by a newer celery-wheel"):
        migrate_store(sql_backend.url)
    store.close()


def test_migrating_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=f"there is no store at {tmp_path}"):
        migrate_store(f"sqlite:///{tmp_path}/nothing.sqlite3")


def test_every_version_has_a_step() -> None:
    assert sorted(upkeep.STEPS) == list(range(SCHEMA_VERSION))
