"""``open_store``: from a URL to a store, made if it is not there, refused with a reason if it cannot be used.

::

    URL ─► place ─┬► sqlite.place: file and folder ───────┬► its tables ─► version, shards ─► SqlStore
                  └► postgresql.place: driver, database ──┘
           SettingError └──────────── StoreUnusable, each with what to do ──────────┘

Opening a store that is there writes nothing and waits for nobody. Where somebody else makes the tables (Django's
migrations), opening only puts the first rows into them.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, insert, inspect, select

from celery_wheel.errors import SettingError, StoreError, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store.database import Database
from celery_wheel.store.migrate import migrate
from celery_wheel.store.model import ORIGIN, SCHEMA_VERSION, SHARD_BITS
from celery_wheel.store.place import BEAT, EXAMPLES, MIGRATE, Place, place_of
from celery_wheel.store.schema import NO_HISTORY, lane, meta, metadata, shard
from celery_wheel.store.sql import SqlStore

MAX_SHARDS = 2**SHARD_BITS


#: Of a lease where nobody says; the setting wheel_lease has the same.
LEASE_MS = 2_000


def open_store(
    url: str, *, durability: str = "disk", shards: int | None = 1, create: bool = True, lease_ms: int = LEASE_MS
) -> SqlStore:
    """Open the store at ``url``, a SQLAlchemy URL.

    Args:
        durability: "disk" or "memory": what a commit survives, see ``celery_wheel.store.sqlite`` and ``.postgresql``.
        shards: how many it has; None takes a store as it is (and makes a new one with 1).
        create: False only looks: a store that is not there is not made, and nothing is changed by opening.
        lease_ms: the holders' lease, below which a database on the network has to notice that one of them stopped.

    Raises SettingError for an argument that makes no sense, StoreUnusable for a store that cannot be used.
    """
    if durability not in ("disk", "memory"):
        raise SettingError(f"wheel_durability must be 'disk' or 'memory', got {durability!r}")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"wheel_shards must be from 1 to {MAX_SHARDS}, got {shards}")
    place = place_of(url)
    database = _database(place, durability, create, lease_ms)
    try:
        return _open(database, shards, create, place)
    except BaseException as error:
        database.close()
        if isinstance(error, StoreError) and not isinstance(error, StoreUnusable):
            raise StoreUnusable(str(error)) from error
        raise


def migrate_store(url: str) -> list[int]:
    """Bring an older store's tables to this version; see ``celery_wheel.store.migrate``.

    Raises StoreUnusable or SettingError, with what to do, and nothing was changed then.
    """
    place = place_of(url)
    if not place.own:
        raise StoreUnusable(
            f"the tables of the store {place.url.database} are others' to migrate; run: {place.made_by}"
        )
    database = _database(place, "disk", False, LEASE_MS)
    try:
        return migrate(database)
    except StoreUnusable:
        raise
    except StoreError as error:
        raise StoreUnusable(str(error)) from error
    finally:
        database.close()


def _database(place: Place, durability: str, create: bool, lease_ms: int) -> Database:
    """The dialect is loaded only when it is used: PostgreSQL's driver is an extra."""
    driver = place.url.drivername
    if driver in ("sqlite", "sqlite+pysqlite"):
        from celery_wheel.store.sqlite import place as sqlite

        return sqlite.open_database(place, durability, create)
    if driver in ("postgresql", "postgresql+psycopg"):
        from celery_wheel.store.postgresql import place as postgresql

        return postgresql.open_database(place.url, durability, lease_ms)
    # Only the scheme is shown: the rest of it may hold a password.
    raise SettingError(f"wheel_store must be a database URL like {EXAMPLES}, got {driver}://…")


# -- what is in it ------------------------------------------------------------------------------------


def _open(database: Database, shards: int | None, create: bool, place: Place) -> SqlStore:
    with database.reading() as connection:
        found = _read(connection)
        tables = found is not None or inspect(connection).has_table(meta.name)
    if found is None:
        if not tables and not (create and place.own):
            if place.own:
                raise StoreUnusable(
                    f"{database.name} has no tables of a store; a scheduler makes them when it starts: {BEAT}"
                )
            raise StoreOutdated(f"{database.name} has no tables of a store; run: {place.made_by}")
        if not create:
            raise StoreUnused(f"the store {database.name} was never used; a scheduler begins it: {BEAT}")
        with database.making() as connection:
            # Another process may have made them since.
            found = _read(connection) or _make(connection, shards or 1)
    _check(database.name, found, shards, place)
    return SqlStore(database, str(uuid.UUID(found.uuid)), found.shards)


def _read(connection: Connection) -> Any:
    """The one row of the meta table; None where there is no store."""
    if not inspect(connection).has_table(meta.name):
        return None
    return connection.execute(select(meta)).one_or_none()


def _make(connection: Connection, shards: int) -> Any:
    metadata.create_all(connection)  # those that are there stay as they are
    connection.execute(insert(meta).values(id=1, schema_version=SCHEMA_VERSION, uuid=str(uuid.uuid4()), shards=shards))
    for number in range(shards):
        connection.execute(insert(shard).values(shard=number, epoch=0, seq=0, **NO_HISTORY))
        hand_and_cut = {"offset_due_ms": ORIGIN.due_ms, "offset_seq": ORIGIN.seq}
        hand_and_cut |= {"watermark_due_ms": ORIGIN.due_ms, "watermark_seq": ORIGIN.seq}
        connection.execute(insert(lane).values(shard=number, lane=0, **hand_and_cut))
    return _read(connection)


def _check(name: str, found: Any, shards: int | None, place: Place) -> None:
    if found.schema_version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"the store {name} was made by a newer celery-wheel (its tables have version {found.schema_version}, this "
            f"one knows {SCHEMA_VERSION}); nothing was touched; run: pip install -U celery-wheel"
        )
    if found.schema_version < SCHEMA_VERSION:
        remedy = f"stop every scheduler, then run: {MIGRATE}"
        raise StoreOutdated(
            f"the store {name} was made by an older celery-wheel (its tables have version {found.schema_version}, this "
            f"one needs {SCHEMA_VERSION}); nothing was touched; {remedy if place.own else f'run: {place.made_by}'}"
        )
    if shards is not None and shards != found.shards:
        raise StoreUnusable(
            f"the store {name} was made with {found.shards} shards, not {shards}; nothing was touched; set "
            f"wheel_shards = {found.shards}, or let wheel_store name a new one when nothing is pending in this one"
        )
