"""``migrate``: bring the tables of an older celery-wheel to this version, in place.

::

    version 1 ─► 2 ─► …   one step a version, all of them in one transaction
                          schedulers must be stopped: a held shard is an error, and none can be taken meanwhile

The store of a Django project is migrated by ``manage.py migrate``. A newer store is refused and stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.model import SCHEMA_VERSION
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.queries import setup
from celery_wheel.store.sql.schema import meta

#: Versions of tables that cannot be used: of a store that was moved, and of one that a move has not completed.
MOVED, ARRIVING = -1, -2


def migrate(database: Database) -> list[int]:
    """Bring the tables to this version; returns the versions of the steps, none where the tables are current.

    Raises StoreUnusable, with the remedy; nothing was changed then.
    """
    with database.making() as connection:
        steps = range(_version(connection, database.name), SCHEMA_VERSION)
        if not steps:
            return []
        held = hold_all(connection, database)
        try:
            for version in steps:
                STEPS[version](connection)
            connection.execute(setup.update_store(schema_version=SCHEMA_VERSION))
        finally:
            for number in held:
                database.release(number)
    return [version + 1 for version in steps]


def moved_store_error(name: str, place: str) -> StoreUnusable:
    """Return the error for a store that was moved."""
    return StoreUnusable(
        f"the store {name} was moved to {place}; nothing runs from it any more; set wheel_store to the new place, and "
        "restart everything that uses the wheel"
    )


def check_version(connection: Connection, name: str, version: int) -> None:
    """Raise StoreUnusable for a store that was moved away, or that a move has not completed."""
    if version == MOVED:
        raise moved_store_error(name, str(connection.execute(setup.first_holder()).scalar()))
    if version == ARRIVING:
        raise StoreUnusable(
            f"the store {name} is not complete: the move to it was interrupted; nothing was changed; run it again: "
            "celery -A proj wheel move --from <old store> --to <this store>"
        )


def newer_store_error(name: str, version: int) -> StoreUnusable:
    """Return the error for a store that a newer celery-wheel made."""
    return StoreUnusable(
        f"the store {name} was made by a newer celery-wheel (its tables have version {version}, this "
        f"celery-wheel knows {SCHEMA_VERSION}); nothing was changed; run: pip install -U celery-wheel"
    )


def _version(connection: Connection, name: str) -> int:
    exists = inspect(connection).has_table(meta.name)
    found = connection.execute(setup.store_row("schema_version")).scalar() if exists else None
    if found is None:
        raise StoreUnusable(
            f"{name} has no tables of a store; nothing was changed; start a scheduler, which makes them"
        )
    if found > SCHEMA_VERSION:
        raise newer_store_error(name, found)
    check_version(connection, name, found)
    return int(found)


def hold_all(connection: Connection, database: Database) -> list[int]:
    """Hold all shards. Where the lease is in the shard's row, the transaction keeps the row locked."""
    held: list[int] = []
    database_ms = database.now_ms()
    for row in connection.execute(setup.lock_shards()):
        in_row = database_ms is not None and row.holder is not None and (row.lease_until_ms or 0) > database_ms
        if in_row or not database.hold(row.shard, "migrate"):
            for number in held:
                database.release(number)
            raise StoreUnusable(
                f"shard {row.shard} of the store {database.name} is held by {row.holder or 'a scheduler'}; nothing was "
                "changed; stop all schedulers (SIGTERM)"
            )
        held.append(row.shard)
    return held


#: Version → the step to the next version; a step makes new tables and columns and keeps what exists.
STEPS: dict[int, Callable[[Connection], None]] = {}
