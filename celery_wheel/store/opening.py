"""``open_store``: from a URL to a store, made if it is not there, refused with a reason if it cannot be used.

::

    URL ─► scheme ─► its database ─► its tables ─► version, shards ─► SqlStore
           SettingError └──── StoreUnusable, each with what to do ────┘

Opening a store that is there writes nothing and waits for nobody.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, insert, inspect, make_url, select
from sqlalchemy.exc import ArgumentError

from celery_wheel.errors import SettingError, StoreError, StoreUnusable
from celery_wheel.store.database import Database
from celery_wheel.store.model import ORIGIN, SHARD_BITS
from celery_wheel.store.schema import SCHEMA_VERSION, lane, meta, metadata, shard
from celery_wheel.store.sql import SqlStore
from celery_wheel.store.sqlite import SqliteDatabase
from celery_wheel.store.sqlite_place import EXAMPLE, check_place, file_of

MAX_SHARDS = 2**SHARD_BITS


def open_store(
    url: str, *, durability: str = "disk", shards: int | None = 1, create: bool = True, lease_ms: int = 2_000
) -> SqlStore:
    """Open the store at ``url``, a SQLAlchemy URL.

    Args:
        durability: "disk" or "memory": what a commit survives, see ``celery_wheel.store.sqlite``.
        shards: how many it has; None takes a store as it is (and makes a new one with 1).
        lease_ms: how long a holder is believed to live; a database with several hosts ends what stands still before.
        create: False only looks: a store that is not there is not made, and nothing is changed by opening.

    Raises SettingError for an argument that makes no sense, StoreUnusable for a store that cannot be used.
    """
    if durability not in ("disk", "memory"):
        raise SettingError(f"wheel_durability must be 'disk' or 'memory', got {durability!r}")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"wheel_shards must be from 1 to {MAX_SHARDS}, got {shards}")
    database = _database(url, durability, create, lease_ms)
    try:
        return _open(database, shards, create)
    except BaseException as error:
        database.close()
        if isinstance(error, StoreError) and not isinstance(error, StoreUnusable):
            raise StoreUnusable(str(error)) from error
        raise


def _database(url: str, durability: str, create: bool, lease_ms: int) -> Database:
    example = f"{EXAMPLE} or postgresql://user@host/database"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingError(f"wheel_store must be a database URL like {example}, got no URL") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        path = file_of(parsed)
        check_place(path, create)
        return SqliteDatabase(str(path), durability=durability)
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        try:
            from celery_wheel.store.postgresql import PostgresqlDatabase
        except ImportError as error:
            raise SettingError(
                f"wheel_store needs psycopg, got {error}; run: pip install 'celery-wheel[postgresql]'"
            ) from error
        return PostgresqlDatabase(parsed.set(drivername="postgresql+psycopg"), durability=durability, lease_ms=lease_ms)
    # Only the scheme is shown: the rest of it may hold a password.
    raise SettingError(f"wheel_store must be a URL like {example}, got {parsed.drivername}://…")


# -- what is in it ------------------------------------------------------------------------------------


def _open(database: Database, shards: int | None, create: bool) -> SqlStore:
    with database.reading() as connection:
        found = _read(connection)
    if found is None:
        if not create:
            raise StoreUnusable(
                f"{database.name} has no tables of a store; a scheduler makes them when it starts: celery beat -S wheel"
            )
        database.prepare_to_write()
        with database.writing() as connection:
            database.prepare_tables(connection)
            found = _read(connection)
            if found is None:  # another process may have made them since
                found = _make(connection, shards or 1)
                database.tables_made(connection)
    _check(database.name, found, shards)
    return SqlStore(database, str(uuid.UUID(found.uuid)), found.shards)


def _read(connection: Connection) -> Any:
    """The one row of the meta table; None where there is no store."""
    if not inspect(connection).has_table(meta.name):
        return None
    return connection.execute(select(meta)).one_or_none()


def _make(connection: Connection, shards: int) -> Any:
    metadata.create_all(connection)
    connection.execute(insert(meta).values(id=1, schema_version=SCHEMA_VERSION, uuid=str(uuid.uuid4()), shards=shards))
    for number in range(shards):
        connection.execute(insert(shard).values(shard=number, epoch=0, seq=0, history_bytes=0))
        hand_and_cut = {"hand_due_ms": ORIGIN.due_ms, "hand_seq": ORIGIN.seq}
        hand_and_cut |= {"cut_due_ms": ORIGIN.due_ms, "cut_seq": ORIGIN.seq}
        connection.execute(insert(lane).values(shard=number, lane=0, **hand_and_cut))
    return _read(connection)


def _check(name: str, found: Any, shards: int | None) -> None:
    if found.schema_version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"the store {name} was made by a newer celery-wheel (its tables have version {found.schema_version}, this "
            f"one knows {SCHEMA_VERSION}); nothing was touched; run: pip install -U celery-wheel"
        )
    if found.schema_version < SCHEMA_VERSION:
        raise StoreUnusable(
            f"the store {name} was made by an older celery-wheel (its tables have version {found.schema_version}, this "
            f"one needs {SCHEMA_VERSION}); nothing was touched; let the older one dispatch what is pending, then let "
            "wheel_store name a new store"
        )
    if shards is not None and shards != found.shards:
        raise StoreUnusable(
            f"the store {name} was made with {found.shards} shards, not {shards}; nothing was touched; set "
            f"wheel_shards = {found.shards}, or let wheel_store name a new file when nothing is pending in this one"
        )
