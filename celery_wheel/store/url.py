"""``open_store``: from a URL to a store, which is made if it does not exist and refused if it cannot be used.

Opening an existing store writes nothing and waits for no lock. Where another command makes the tables (Django's
migrations), opening only inserts their first rows. ``migrate_store`` and ``move_store`` are for a store that no
scheduler uses meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import URL, Connection, inspect

from celery_wheel.errors import SettingError, StoreError, StoreNotReady, StoreOutdated, StoreUnusable, StoreUnused
from celery_wheel.store.audit_model import Operator
from celery_wheel.store.model import SCHEMA_VERSION, SHARD_BITS
from celery_wheel.store.place import BEAT, MIGRATE, StorePlace, place_of, shown_place
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.dictionaries import key_in_use
from celery_wheel.store.sql.schema import meta, metadata
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.sql.upkeep import check_version, migrate, move, new_shard, new_store, store_row
from celery_wheel.store.store_model import MovedStore, Progress
from celery_wheel.values.instants import now_ms
from celery_wheel.values.keyring import EncryptionKeys, encryption_keys
from celery_wheel.values.text import EXAMPLES

MAX_SHARDS = 2**SHARD_BITS

#: The default lease, the same as that of the setting wheel_lease.
LEASE_MS = 2_000

#: A server ends the session of a holder that is silent for a lease; a move is silent in one database while it writes
#: to the other.
MOVE_MS = 120_000


def open_store(
    url: str,
    *,
    durability: str = "disk",
    shards: int | None = 1,
    create: bool = True,
    lease_ms: int = LEASE_MS,
    keys: Sequence[str] = (),
) -> SqlStore:
    """Open the store at ``url``, a SQLAlchemy URL.

    Args:
        durability: "disk" or "memory": what a commit survives, see ``celery_wheel.store.sqlite`` and ``.postgresql``.
        shards: the number of shards that the store must have; None accepts any (and makes a new store with 1).
        create: False makes no store and changes nothing.
        lease_ms: the holders' lease; a database on the network notices within it that a holder stopped.
        keys: secrets, the current one first; without those of an encrypted store no message is read or written.

    Raises SettingError for an invalid argument, StoreNotReady for a store that may be usable soon, StoreUnusable for
    one that cannot be used.
    """
    if durability not in ("disk", "memory"):
        raise SettingError(f"wheel_durability must be 'disk' or 'memory', got {durability!r}")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"wheel_shards must be from 1 to {MAX_SHARDS}, got {shards}")
    place = place_of(url)
    database = _database(place, durability, create, lease_ms)
    try:
        return _open(database, shards, create, place, encryption_keys(tuple(keys)))
    except BaseException as error:
        database.close()
        if isinstance(error, StoreError) and not isinstance(error, StoreUnusable):
            passes = isinstance(error.__cause__, Exception) and database.may_pass(error.__cause__)
            raise (StoreNotReady if passes else StoreUnusable)(str(error)) from error
        raise


def migrate_store(url: str, by: Operator | None = None) -> list[int]:
    """Bring an older store's tables to this version; see ``celery_wheel.store.sql.upkeep``.

    Raises StoreUnusable or SettingError, with the remedy; nothing was changed then.
    """
    place = place_of(url)
    if not place.own:
        raise StoreUnusable(
            f"the tables of the store {place.url.database} belong to another package; nothing was changed; "
            f"run: {place.made_by}"
        )
    with _unused(place, False, LEASE_MS) as database:
        return migrate(database, now_ms(), by)


def move_store(old_url: str, new_url: str, now_ms: int, progress: Progress, by: Operator | None = None) -> MovedStore:
    """Move a store to another database; see ``celery_wheel.store.sql.upkeep``.

    Raises StoreUnusable or SettingError, with the remedy; the old store is as before then.
    """
    old_place, new_place = place_of(old_url), place_of(new_url)
    if old_place.url == new_place.url:
        raise SettingError(f"the new store must be another than the old one, got {shown_place(new_url)} for both")
    with _unused(old_place, False, MOVE_MS) as old, _unused(new_place, True, MOVE_MS) as new:
        return move(old, new, shown_place(new_url), new_place.own, now_ms, progress, by)


@contextmanager
def _unused(place: StorePlace, create: bool, lease_ms: int) -> Iterator[Database]:
    """Yield the database of a store that no scheduler uses; raises StoreUnusable for each of its errors."""
    with closing(_database(place, "disk", create, lease_ms)) as database:
        try:
            yield database
        except StoreUnusable:
            raise
        except StoreError as error:
            raise StoreUnusable(str(error)) from error


def _database(place: StorePlace, durability: str, create: bool, lease_ms: int) -> Database:
    """Open the database; a dialect is imported only when it is used, since PostgreSQL's driver is an extra."""
    driver = place.url.drivername
    if driver in ("sqlite", "sqlite+pysqlite"):
        from celery_wheel.store.sqlite.database import open_database

        return open_database(place, durability, create)
    if driver in ("postgresql", "postgresql+psycopg"):
        return _postgresql(place.url, durability, lease_ms)
    # The message has only the scheme: the rest may hold a password.
    raise SettingError(f"wheel_store must be a database URL like {EXAMPLES}, got {driver}://…")


def _postgresql(url: URL, durability: str, lease_ms: int) -> Database:
    if not url.database:
        raise SettingError("wheel_store must name a database, like postgresql://user@host/database, got none")
    try:
        import psycopg  # noqa: F401 - alone, so that no other missing module is reported as the driver
    except ImportError:
        raise SettingError(
            "wheel_store must be a database whose driver is installed, got postgresql://…; "
            "run: pip install 'celery-wheel[postgresql]'"
        ) from None
    from celery_wheel.store.postgresql.database import PostgresqlDatabase

    return PostgresqlDatabase(url, durability=durability, lease_ms=lease_ms)


def _open(database: Database, shards: int | None, create: bool, place: StorePlace, keys: EncryptionKeys) -> SqlStore:
    with database.reading() as connection:
        found = _read(connection)
        tables = found is not None or inspect(connection).has_table(meta.name)
        if found is not None:
            check_version(connection, database.name, found.schema_version)
        used = None if found is None or found.schema_version != SCHEMA_VERSION else key_in_use(connection)
    if found is None:
        if not tables and not (create and place.own):
            if place.own:
                raise StoreUnused(
                    f"{database.name} has no tables of a store; a scheduler makes them when it starts: {BEAT}"
                )
            raise StoreOutdated(f"{database.name} has no tables of a store; run: {place.made_by}")
        if not create:
            raise StoreUnused(f"the store {database.name} was never used; a scheduler begins it when it starts: {BEAT}")
        with database.making() as connection:
            # Another process may have made the tables meanwhile.
            found = _read(connection) or _make(connection, shards or 1)
    _check(database.name, found, shards, place)
    store = SqlStore(database, str(uuid.UUID(found.uuid)), uuid.UUID(found.secret), found.shards, keys)
    store.catalogue.seal.in_use = used
    return store


def _read(connection: Connection) -> Any:
    """Return the one row of the meta table; None where the database has no store."""
    if not inspect(connection).has_table(meta.name):
        return None
    return connection.execute(store_row()).one_or_none()


def _make(connection: Connection, shards: int) -> Any:
    metadata.create_all(connection)  # existing tables stay unchanged
    connection.execute(new_store(str(uuid.uuid4()), str(uuid.uuid4()), SCHEMA_VERSION, shards))
    for number in range(shards):
        for insert in new_shard(number):
            connection.execute(insert)
    return _read(connection)


def _check(name: str, found: Any, shards: int | None, place: StorePlace) -> None:
    if found.schema_version < SCHEMA_VERSION:
        remedy = f"stop every scheduler, then run: {MIGRATE}" if place.own else f"run: {place.made_by}"
        raise StoreOutdated(
            f"the store {name} was made by an older celery-wheel (its tables have version {found.schema_version}, this "
            f"celery-wheel needs {SCHEMA_VERSION}); nothing was changed; {remedy}"
        )
    if shards is not None and shards != found.shards:
        raise StoreUnusable(
            f"the store {name} has {found.shards} shards, not {shards}; nothing was changed; set wheel_shards = "
            f"{found.shards}, or run: celery -A proj wheel reshard {shards}"
        )
