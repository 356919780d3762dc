"""``migrate``: the tables of an older celery-wheel become those of this one, in place.

::

    version 1 ─► 2 ─► …   one step a version, all of them in one transaction
                          schedulers are stopped: a shard that is held is an error, and none can be taken meanwhile

A store of Django's is Django's to migrate: ``manage.py migrate``. A newer store is refused, and nothing is touched.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, update

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.database import Database
from celery_wheel.store.model import SCHEMA_VERSION
from celery_wheel.store.schema import meta, shard


def migrate(database: Database) -> list[int]:
    """Bring the tables to this version; returns the versions that they got, none where nothing was to be done.

    Raises StoreUnusable, with what to do, and nothing was changed then.
    """
    with database.making() as connection:
        found = _version(connection, database.name)
        to_do = range(found, SCHEMA_VERSION)
        if not to_do:
            return []
        held = _shards(connection, database)
        try:
            for version in to_do:
                STEPS[version](connection)
            connection.execute(update(meta).values(schema_version=SCHEMA_VERSION))
        finally:
            for number in held:
                database.let_go(number)
    return [version + 1 for version in to_do]


def _version(connection: Connection, name: str) -> int:
    there = inspect(connection).has_table(meta.name)
    found = connection.execute(select(meta.c.schema_version)).scalar() if there else None
    if found is None:
        raise StoreUnusable(f"{name} has no tables of a store; a scheduler makes them when it starts")
    if found > SCHEMA_VERSION:
        raise StoreUnusable(
            f"the store {name} was made by a newer celery-wheel (its tables have version {found}, this one knows "
            f"{SCHEMA_VERSION}); nothing was touched; run: pip install -U celery-wheel"
        )
    return int(found)


def _shards(connection: Connection, database: Database) -> list[int]:
    """Hold them all; where the lease is in the row, the row stays locked until the end of the transaction."""
    held: list[int] = []
    database_ms = database.now_ms()
    for row in connection.execute(select(shard.c.shard, shard.c.holder, shard.c.lease_until_ms).with_for_update()):
        in_row = database_ms is not None and row.holder is not None and (row.lease_until_ms or 0) > database_ms
        if in_row or not database.hold(row.shard, "migrate"):
            for number in held:
                database.let_go(number)
            raise StoreUnusable(
                f"shard {row.shard} of the store {database.name} is held by {row.holder or 'a scheduler'}; nothing was "
                "changed; stop all schedulers (SIGTERM)"
            )
        held.append(row.shard)
    return held


#: By the version they begin with: what is new is made, what is there stays.
STEPS: dict[int, Callable[[Connection], None]] = {}
