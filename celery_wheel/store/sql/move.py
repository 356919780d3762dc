"""``move``: a whole store to another database, offline; the old store refuses every use from then on.

::

    old     shards held, written tables locked ───────────── sealed, MOVED ─┐
    new                      every row ─► ARRIVING, committed ──────────────┴─► current: a scheduler may use it
                                                     1                  2     3

The tables are the same in every database, so the rows keep their ids, positions and epochs, and the store its UUID and
its secret. Nothing changes for the broker: on Redis the offsets belong to the UUID, and wheel queues stay where they
are. History, gates, dictionaries and the audit log move along.

A kill before 1 leaves the new database as it was. After 1 it has a copy that nobody may use: the old store is in use,
and the next move copies anew. After 2 neither may be used, and the next move only does step 3. So at every moment at
most one of the two can be used, and the one that can has everything.

The seal is a trigger on the tables that processes write which have opened the old store before: a scheduler cannot
acquire a shard, nor a sender put a request into the inbox or withdraw it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, inspect, select, text, update

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.model import OPEN, SCHEMA_VERSION
from celery_wheel.store.ports.maintenance import EPOCH_LEAP, MovedStore, Progress
from celery_wheel.store.sql.bulk_loads import unfinished_in
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.migrate import ARRIVING, MOVED, hold_all, moved_store_error, newer_store_error
from celery_wheel.store.sql.queries import setup
from celery_wheel.store.sql.queries.reshard import LIVE_SCHEDULERS
from celery_wheel.store.sql.reshard import SILENT_MS
from celery_wheel.store.sql.schema import inbox, load, meta, metadata, scheduler, shard
from celery_wheel.store.sql.seal import LOCK, seal

ROWS_AT_ONCE = 500

#: Written by processes that have opened the store: the inbox, bulk loads, the shards' leases.
SEALED = (inbox, load, shard)

#: Rows that are not the store's, but of its processes at work, and the row that is written last.
LEFT = (scheduler, meta)


def move(old: Database, new: Database, place: str, own: bool, now_ms: int, progress: Progress) -> MovedStore:
    """Move a store.

    Args:
        place: of the new store, for the errors of the old one.
        own: the tables of the new database may be made here.

    Raises StoreUnusable, with the remedy; the old store is as before then.
    """
    done, known = MovedStore(place), place
    held: list[int] = []
    try:
        with old.writing(durable=True) as source:
            found = _store_of(source, old.name)
            if found.schema_version == MOVED:
                done.resumed, known = True, str(source.execute(setup.first_holder()).scalar())
            else:
                held = _close(source, old, now_ms)
                with new.making() as target:
                    _copy(source, target, found, own, new.name, done, progress)
                progress("arrived", 0, 0)
                source.execute(update(shard).where(shard.c.shard == 0).values(holder=place, lease_until_ms=None))
                seal(source, SEALED, place)
                source.execute(setup.update_store(schema_version=MOVED))
        progress("sealed", 0, 0)
    finally:
        for number in held:
            old.release(number)
    with new.writing(durable=True) as target:
        if not _finish(target, found.uuid):
            raise moved_store_error(old.name, known)
    return done


def _store_of(connection: Connection, name: str) -> Any:
    found = connection.execute(setup.store_row()).one_or_none() if inspect(connection).has_table(meta.name) else None
    if found is None:
        raise StoreUnusable(f"{name} has no store; nothing was changed; name the store that has the pending tasks")
    if found.schema_version > SCHEMA_VERSION:
        raise newer_store_error(name, found.schema_version)
    if found.schema_version not in (SCHEMA_VERSION, MOVED):
        raise StoreUnusable(
            f"the store {name} is of an older celery-wheel, or a move to it is not complete; nothing was changed; "
            "migrate it, or run that move again"
        )
    return found


def _close(connection: Connection, database: Database, now_ms: int) -> list[int]:
    """Hold all shards, and keep other processes from writing until the transaction ends."""
    since = {"since_ms": now_ms - SILENT_MS}
    if names := connection.execute(LIVE_SCHEDULERS, since).scalars().all():
        raise StoreUnusable(
            f"a scheduler is at work on the store {database.name} ({', '.join(names)}); nothing was changed; stop all "
            "schedulers (SIGTERM)"
        )
    if loads := [one.name for one in unfinished_in(connection) if one.state == OPEN]:
        raise StoreUnusable(f"the load {loads[0]!r} is open; nothing was changed; complete it, or abort it")
    held = hold_all(connection, database)
    if lock := LOCK.get(connection.dialect.name):
        connection.execute(text(lock.format(tables=", ".join(table.name for table in SEALED))))
    return held


def _copy(
    source: Connection, target: Connection, found: Any, own: bool, name: str, done: MovedStore, progress: Progress
) -> None:
    if own:
        metadata.create_all(target)
    _check_unused(target, found.uuid, name)
    tables = [table for table in metadata.sorted_tables if table not in LEFT]
    counts = {table.name: source.execute(select(func.count()).select_from(table)).scalar_one() for table in tables}
    total = sum(counts.values())
    for table in [*tables, meta]:
        target.execute(delete(table))
    copied = 0
    for table in tables:
        done.rows[table.name] = 0
        for rows in _pages(source, table):
            target.execute(insert(table), rows)
            done.rows[table.name] += len(rows)
            copied += len(rows)
            progress("copied", copied, total)
        _set_identity(target, table)
    if done.rows != counts:
        raise StoreUnusable(
            f"rows of the store changed while they were copied to {name}; nothing was changed; run it again"
        )
    target.execute(setup.new_store(found.uuid, found.secret, ARRIVING, found.shards, found.brokers))


def _check_unused(target: Connection, uuid: str, name: str) -> None:
    there = target.execute(setup.store_row()).one_or_none()
    if there is not None and (there.schema_version, there.uuid) != (ARRIVING, uuid):
        raise StoreUnusable(
            f"{name} has a store already; nothing was changed; name an empty database, or bring the tasks into that "
            "store by `drain --file` and `import`"
        )


def _pages(source: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    [key] = table.primary_key.columns
    rows = source.execute(select(table).order_by(key).limit(ROWS_AT_ONCE)).mappings().all()
    while rows:
        last = rows[-1][key.name]
        yield [_free(dict(row)) if table is shard else dict(row) for row in rows]
        rows = source.execute(select(table).where(key > last).order_by(key).limit(ROWS_AT_ONCE)).mappings().all()


def _free(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a shard at a new place, whose lease has ended, by any clock."""
    return {**row, "epoch": row["epoch"] + EPOCH_LEAP, "lease_until_ms": None if row["holder"] is None else 0}


def _set_identity(target: Connection, table: Table) -> None:
    """Let PostgreSQL count on from the rows; SQLite does so itself."""
    [key] = table.primary_key.columns
    if target.dialect.name == "postgresql" and key.identity is not None:
        last = func.coalesce(select(func.max(key)).scalar_subquery(), 0) + 1
        target.execute(select(func.setval(func.pg_get_serial_sequence(table.name, key.name), last, False)))


def _finish(target: Connection, uuid: str) -> bool:
    """Let the new store be used; False where it is not the copy of this store."""
    there = target.execute(setup.store_row()).one_or_none() if inspect(target).has_table(meta.name) else None
    if there is None or there.uuid != uuid or there.schema_version not in (ARRIVING, SCHEMA_VERSION):
        return False
    target.execute(setup.update_store(schema_version=SCHEMA_VERSION))
    return True
