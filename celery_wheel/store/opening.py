"""``open_store``: from a URL to a store, made if it is not there, refused with a reason if it cannot be used.

::

    URL ─► scheme ─► file and folder ─► a SQLite database? ─► its tables ─► version, shards ─► SqlStore
           SettingError └──────────────── StoreUnusable, each with what to do ──────────┘

Opening a store that is there writes nothing and waits for nobody.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, insert, inspect, make_url, select
from sqlalchemy.exc import ArgumentError

from celery_wheel.errors import SettingError, StoreError, StoreUnusable
from celery_wheel.store.model import ORIGIN, SHARD_BITS
from celery_wheel.store.schema import SCHEMA_VERSION, lane, meta, metadata, shard
from celery_wheel.store.sql import SqlStore
from celery_wheel.store.sqlite import SqliteDatabase

MAX_SHARDS = 2**SHARD_BITS


def open_store(url: str, *, durability: str = "disk", shards: int | None = 1, create: bool = True) -> SqlStore:
    """Open the store at ``url``, a SQLAlchemy URL.

    Args:
        durability: "disk" or "memory": what a commit survives, see ``celery_wheel.store.sqlite``.
        shards: how many it has; None takes a store as it is (and makes a new one with 1).
        create: False only looks: a store that is not there is not made, and nothing is changed by opening.

    Raises SettingError for an argument that makes no sense, StoreUnusable for a store that cannot be used.
    """
    if durability not in ("disk", "memory"):
        raise SettingError(f"wheel_durability must be 'disk' or 'memory', got {durability!r}")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"wheel_shards must be from 1 to {MAX_SHARDS}, got {shards}")
    path = _file_of(url)
    _check_place(path, create)
    database = SqliteDatabase(str(path), durability=durability)
    try:
        return _open(database, shards, create)
    except BaseException as error:
        database.close()
        if isinstance(error, StoreError) and not isinstance(error, StoreUnusable):
            raise StoreUnusable(str(error)) from error
        raise


# -- where it is -------------------------------------------------------------------------------------


def _file_of(url: str) -> Path:
    """The absolute path in a SQLite URL; a daemon may change its folder later."""
    example = "sqlite:////var/lib/wheel/wheel.sqlite3 (absolute) or sqlite:///wheel.sqlite3 (relative)"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingError(f"wheel_store must be a database URL like {example}, got no URL") from None
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        # Only the scheme is shown: the rest of it may hold a password.
        raise SettingError(f"wheel_store must be a sqlite URL like {example}, got {parsed.drivername}://…")
    if not _names_a_file(parsed):
        raise SettingError(f"wheel_store must name a file and nothing else, like {example}, got {url}")
    return Path(parsed.database or "").absolute()


def _names_a_file(url: URL) -> bool:
    name = url.database or ""
    return bool(name) and name != ":memory:" and not name.startswith("file:") and not url.query and not url.host


def _check_place(path: Path, create: bool) -> None:
    if path.is_dir():
        raise StoreUnusable(f"the store {path} is a folder; name a file in it in wheel_store")
    if path.exists():
        if create and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
            raise StoreUnusable(
                f"the store {path} may not be written to by this user; make the file and its folder writable, or set "
                "wheel_store to another"
            )
        return
    if not create:
        raise StoreUnusable(
            f"there is no store at {path}; a scheduler makes it when it starts: celery beat -S wheel. If one runs, it "
            "runs in another folder or on another machine: give wheel_store an absolute path"
        )
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnusable(f"the folder {folder} for the store is not there; make it, or set wheel_store to another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnusable(
            f"the folder {folder} for the store may not be written to by this user; change its owner or mode, or set "
            "wheel_store to another"
        )


# -- what is in it ------------------------------------------------------------------------------------


def _open(database: SqliteDatabase, shards: int | None, create: bool) -> SqlStore:
    with database.reading() as connection:
        found = _read(connection)
    if found is None:
        if not create:
            raise StoreUnusable(
                f"{database.name} has no tables of a store; a scheduler makes them when it starts: celery beat -S wheel"
            )
        database.prepare_to_write()
        with database.writing() as connection:
            # Another process may have made them since.
            found = _read(connection) or _make(connection, shards or 1)
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
