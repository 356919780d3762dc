"""A store's own row and its shards; ``migrate``: older tables to this version; ``move``: all of it to another database.

::

    move      old     shards held, written tables locked ─────────── sealed, MOVED ─┐
              new                      every row ─► ARRIVING, committed ────────────┴─► current: a scheduler may use it
                                                               1                2     3

The rows keep their ids, positions and epochs, and the store its UUID and its secret: nothing changes for the broker.
A kill before 1 leaves the new database as it was. After 1 it has a copy that nobody may use: the old store is in use,
and the next move copies anew. After 2 neither may be used, and the next move only does step 3. So at every moment at
most one of the two can be used, and the one that can has everything. The seal is a trigger on the tables that a process
with the old store still open may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Executable, Table, delete, func, insert, inspect, select, text, update

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.audit_model import STORE, Operator, store_entry
from celery_wheel.store.model import OPEN, ORIGIN, SCHEMA_VERSION
from celery_wheel.store.sql.audit import append
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.holding import SILENT_MS, live_schedulers
from celery_wheel.store.sql.loads import unfinished_in
from celery_wheel.store.sql.schema import inbox, lane, load, meta, metadata, scheduler, shard, snapshot, total
from celery_wheel.store.store_model import EPOCH_LEAP, MovedStore, Progress

#: Versions of tables that cannot be used: of a store that was moved, and of one that a move has not completed.
MOVED, ARRIVING = -1, -2

#: Rows copied at a time.
ROWS_AT_ONCE = 500

#: Written by processes that have opened the store: the inbox, bulk loads, the shards' leases.
SEALED = (inbox, load, shard)

#: Rows about running processes, which are not copied, and the row that is written last.
LEFT = (scheduler, meta)

#: Dialect → the statement that keeps other transactions from writing these tables until the commit; SQLite has one
#: writer.
LOCK = {"postgresql": "LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE"}

#: The SQLSTATE of a sealed table's error on PostgreSQL; on SQLite the error's name is SQLITE_CONSTRAINT_TRIGGER.
SQLSTATE = "WM001"


def store_row(*names: str) -> Executable:
    """Select these columns of the one row of ``wheel_meta``, or all columns."""
    return select(*[meta.c[name] for name in names]) if names else select(meta)


def new_store(uuid: str, secret: str, version: int, shards: int, brokers: str | None = None) -> Executable:
    own = {"uuid": uuid, "secret": secret, "shards": shards, "brokers": brokers}
    return insert(meta).values(id=1, schema_version=version, **own)


def update_store(**values: int | str) -> Executable:
    return update(meta).values(**values)


def new_shard(number: int, *, epoch: int = 0, seq: int = 0, archived: int = 0) -> list[Executable]:
    """Insert a shard without history, and its main lane."""
    row = {"shard": number, "epoch": epoch, "seq": seq, "archived": archived}
    row |= dict.fromkeys(("history_bytes", "forgotten", "packing", "accepted"), 0)
    ends = {f"{end}_{half}": getattr(ORIGIN, half) for end in ("offset", "watermark") for half in ("due_ms", "seq")}
    first = insert(lane).values(shard=number, lane=0, **ends)
    return [insert(shard).values(**row), insert(snapshot).values(shard=number), first, count_rows_by_route(number)]


def count_rows_by_route(number: int) -> Executable:
    """Insert the mark of a shard whose rows are counted by their routes, from its first row on."""
    return insert(total).values(shard=number, kind="route", number=0, pending=1)


def first_holder() -> Executable:
    """Select the holder of the first shard; in a store that was moved, the new place."""
    return select(shard.c.holder).where(shard.c.shard == 0)


def migrate(database: Database, now_ms: int, by: Operator | None = None) -> list[int]:
    """Bring the tables to this version; returns the versions of the steps. Raises StoreUnusable, with the remedy."""
    with database.making() as connection:
        steps = range(_version(connection, database.name), SCHEMA_VERSION)
        if not steps:
            return []
        held = hold_all(connection, database)
        try:
            for version in steps:
                STEPS[version](connection)
            connection.execute(update_store(schema_version=SCHEMA_VERSION))
            versions = {"before": steps.start, "after": SCHEMA_VERSION}
            append(
                connection,
                database.statements,
                STORE,
                [store_entry("migrate", by, now_ms, {"store": "done"}, versions)],
            )
        finally:
            for number in held:
                database.release(number)
    return [version + 1 for version in steps]


def moved_store_error(name: str, place: str) -> StoreUnusable:
    return StoreUnusable(
        f"the store {name} was moved to {place}; nothing runs from it any more; set wheel_store to the new place, and "
        "restart everything that uses the wheel"
    )


def check_version(connection: Connection, name: str, version: int) -> None:
    """Raise StoreUnusable for a store of a newer version, one that was moved, or one that a move has not completed."""
    if version > SCHEMA_VERSION:
        raise newer_store_error(name, version)
    if version == MOVED:
        raise moved_store_error(name, str(connection.execute(first_holder()).scalar()))
    if version == ARRIVING:
        raise StoreUnusable(
            f"the store {name} is not complete: the move to it was interrupted; nothing was changed; run it again: "
            "celery -A proj wheel move --from <old store> --to <this store>"
        )


def newer_store_error(name: str, version: int) -> StoreUnusable:
    return StoreUnusable(
        f"the store {name} was made by a newer celery-wheel (its tables have version {version}, this "
        f"celery-wheel knows {SCHEMA_VERSION}); nothing was changed; run: pip install -U celery-wheel"
    )


def _version(connection: Connection, name: str) -> int:
    exists = inspect(connection).has_table(meta.name)
    found = connection.execute(store_row("schema_version")).scalar() if exists else None
    if found is None:
        raise StoreUnusable(
            f"{name} has no tables of a store; nothing was changed; start a scheduler, which makes them"
        )
    check_version(connection, name, found)
    return int(found)


def hold_all(connection: Connection, database: Database) -> list[int]:
    """Hold all shards. Where the lease is in the shard's row, the transaction keeps the row locked."""
    held: list[int] = []
    database_ms = database.now_ms()
    leases = select(shard.c.shard, shard.c.holder, shard.c.lease_until_ms).with_for_update()
    for row in connection.execute(leases):
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


def _seal(connection: Connection, place: str) -> None:
    """Refuse every write of the tables from now on; the error names the new place."""
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.dialect.name]
    for statement in statements(f"it was moved to {place}".replace("'", "''")):
        connection.exec_driver_sql(statement)


def _sqlite(said: str) -> Iterator[str]:
    for table in SEALED:
        for verb in ("INSERT", "UPDATE", "DELETE"):
            yield (
                f"CREATE TRIGGER {table.name}_moved_{verb.lower()} BEFORE {verb} ON {table.name} "
                f"BEGIN SELECT RAISE(ABORT, '{said}'); END"
            )


def _postgresql(said: str) -> Iterator[str]:
    raising = f"RAISE EXCEPTION USING MESSAGE = '{said}', ERRCODE = '{SQLSTATE}'".replace("%", "%%")
    yield f"CREATE FUNCTION wheel_moved() RETURNS trigger LANGUAGE plpgsql AS $wheel$ BEGIN {raising}; END $wheel$"
    for table in SEALED:
        yield (
            f"CREATE TRIGGER {table.name}_moved BEFORE INSERT OR UPDATE OR DELETE ON {table.name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION wheel_moved()"
        )


def move(
    old: Database,
    new: Database,
    place: str,
    own: bool,
    now_ms: int,
    progress: Progress,
    by: Operator | None = None,
) -> MovedStore:
    """Move a store to ``place``, the name in the errors of the old one; ``own``: its tables may be made here.

    Raises StoreUnusable, with the remedy; the old store is as before then.
    """
    done, known = MovedStore(place), place
    held: list[int] = []
    try:
        with old.writing(durable=True) as source:
            found = _store_of(source, old.name)
            if found.schema_version == MOVED:
                done.resumed, known = True, str(source.execute(first_holder()).scalar())
            else:
                held = _close(source, old, now_ms)
                entry = store_entry("move_store", by, now_ms, {"store": "done"}, {"from": old.name, "to": place})
                append(source, old.statements, STORE, [entry])  # it is copied with the other entries
                with new.making() as target:
                    _copy(source, target, found, own, new.name, done, progress)
                progress("arrived", 0, 0)
                source.execute(update(shard).where(shard.c.shard == 0).values(holder=place, lease_until_ms=None))
                _seal(source, place)
                source.execute(update_store(schema_version=MOVED))
        progress("sealed", 0, 0)
    finally:
        for number in held:
            old.release(number)
    with new.writing(durable=True) as target:
        if not _finish(target, found.uuid):
            raise moved_store_error(old.name, known)
    return done


def _store_of(connection: Connection, name: str) -> Any:
    found = connection.execute(store_row()).one_or_none() if inspect(connection).has_table(meta.name) else None
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
    if names := live_schedulers(connection, database.statements, now_ms - SILENT_MS):
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
    target.execute(new_store(found.uuid, found.secret, ARRIVING, found.shards, found.brokers))


def _check_unused(target: Connection, uuid: str, name: str) -> None:
    there = target.execute(store_row()).one_or_none()
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
    """Return the shard's row with an expired lease, at an epoch that fences the old place."""
    return {**row, "epoch": row["epoch"] + EPOCH_LEAP, "lease_until_ms": None if row["holder"] is None else 0}


def _set_identity(target: Connection, table: Table) -> None:
    """Set PostgreSQL's sequence after the highest id; SQLite does so by itself."""
    [key] = table.primary_key.columns
    if target.dialect.name == "postgresql" and key.identity is not None:
        last = func.coalesce(select(func.max(key)).scalar_subquery(), 0) + 1
        target.execute(select(func.setval(func.pg_get_serial_sequence(table.name, key.name), last, False)))


def _finish(target: Connection, uuid: str) -> bool:
    """Let the new store be used; False where it is not the copy of this store."""
    there = target.execute(store_row()).one_or_none() if inspect(target).has_table(meta.name) else None
    if there is None or there.uuid != uuid or there.schema_version not in (ARRIVING, SCHEMA_VERSION):
        return False
    target.execute(update_store(schema_version=SCHEMA_VERSION))
    return True
