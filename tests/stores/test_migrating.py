"""A store of version 2 becomes one of this version, on SQLite and PostgreSQL, and keeps what is in it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect, update

from celery_wheel.errors import StoreUnusable
from celery_wheel.store import migrate_store
from celery_wheel.store.schema import SCHEMA_VERSION, meta, metadata
from celery_wheel.store.sql import SqlStore
from tests.stores.backends import SqlBackend
from tests.stores.samples import NOW, Holder


def age(store: SqlStore, version: int = 2) -> None:
    """Make the tables what they were."""
    with store.database.writing() as connection:
        for table in ("wheel_load", "wheel_load_part", "wheel_load_chunk"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        for column in ("archived", "forgotten"):
            connection.exec_driver_sql(f"ALTER TABLE wheel_shard DROP COLUMN {column}")
        if version == 3:
            connection.execute(update(meta).values(schema_version=3))
            return
        for table in ("wheel_answer", "wheel_tombstone", "wheel_watch", "wheel_gate"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("ALTER TABLE wheel_timer DROP COLUMN misfire_ms")
        connection.exec_driver_sql("ALTER TABLE wheel_lane DROP COLUMN scope")
    set_version(store, 2)


def set_version(store: SqlStore, version: int) -> None:
    with store.database.writing() as connection:
        connection.execute(update(meta).values(schema_version=version))


def described(store: SqlStore) -> dict[str, Any]:
    with store.database.reading() as connection:
        found = inspect(connection)
        return {
            table: (
                [(one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns(table)],
                sorted(str(one["name"]) for one in found.get_indexes(table)),
                sorted(str(one["name"]) for one in found.get_unique_constraints(table)),
            )
            for table in metadata.tables
        }


def aged(backend: SqlBackend, version: int) -> list[str]:
    """A store of that version with two tasks; returns their ids."""
    store = backend()
    holder = Holder(store)
    rows = holder.accept(NOW, NOW + 1)
    store.release(0, holder.epoch)
    age(store, version)
    store.close()
    return [row.message.task_id for row in rows]


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_store_says_what_to_run_and_is_what_a_new_one_is_then(sql_backend: SqlBackend, version: int) -> None:
    fresh = sql_backend()
    wanted = described(fresh)
    fresh.close()
    task_ids = aged(sql_backend, version)
    said = rf"version {version}, this one needs {SCHEMA_VERSION}.*nothing was touched; stop every .* migrate"
    with pytest.raises(StoreUnusable, match=said):
        sql_backend()
    assert migrate_store(sql_backend.url) == [*range(version + 1, SCHEMA_VERSION + 1)]
    assert migrate_store(sql_backend.url) == []
    store = sql_backend()
    assert described(store) == wanted
    holder = Holder(store)
    assert [task_id for task_id, _ in store.find(0, task_ids)] == task_ids
    holder.accept(NOW, misfire_ms=7)
    store.close()


def test_a_store_that_is_held_is_not_migrated(sql_backend: SqlBackend) -> None:
    store = sql_backend()
    Holder(store, 1)
    age(store)
    with pytest.raises(StoreUnusable, match=r"shard 1 of the store .* is held by host-a; nothing was changed; stop"):
        migrate_store(sql_backend.url)
    store.close()


def test_what_cannot_be_migrated_is_left_alone(sql_backend: SqlBackend) -> None:
    store = sql_backend()
    set_version(store, 1)
    with pytest.raises(StoreUnusable, match="tables of version 1, and 2 is the first that can be migrated"):
        migrate_store(sql_backend.url)
    set_version(store, 99)
    with pytest.raises(StoreUnusable, match="made by a newer celery-wheel"):
        migrate_store(sql_backend.url)
    store.close()


def test_there_has_to_be_a_store(sql_backend: SqlBackend, tmp_path: Any) -> None:
    with pytest.raises(StoreUnusable, match=f"there is no store at {tmp_path}"):
        migrate_store(f"sqlite:///{tmp_path}/nothing.sqlite3")
