"""The part of ``reshard`` that is about control: what was asked for good goes along.

::

    watches      with their timers: what is unique of its key is that of its shard, and a key's tasks share one
    tombstones   to every shard: a task that has not come yet may come to any
    gates        to every shard that is new: what is paused is paused everywhere
    answers      of shards that are no more go: whoever asked has long given up
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from celery_wheel.store.schema import answer, gate, tombstone, watch


def move_watches(connection: Connection, moves: Sequence[dict[str, int]]) -> None:
    """``moves``: the timer ``moved`` and its shard ``to``."""
    there = update(watch).where(watch.c.timer_id == bindparam("moved")).values(shard=bindparam("to"))
    connection.execute(there, [{"moved": move["moved"], "to": move["to"]} for move in moves])


def spread(connection: Connection, shards: int) -> None:
    """Each shard from 0 to ``shards`` gets what any has."""
    _copy(connection, tombstone, shards, ("task_id",), "until_ms")
    _copy(connection, gate, shards, ("scope", "name"), "at_ms")


def forget(connection: Connection, removed: int) -> None:
    for table in (watch, answer, tombstone, gate):
        connection.execute(delete(table).where(table.c.shard == removed))


def _copy(connection: Connection, table: Table, shards: int, names: tuple[str, ...], latest: str) -> None:
    """Rows of those names are put where they are missing; of several, the one that is latest."""
    columns = [column for column in table.c if column.name not in ("id", "shard")]
    rows = connection.execute(select(table.c.shard, *columns).order_by(table.c[latest], table.c.id)).mappings().all()
    last = {tuple(row[name] for name in names): dict(row) for row in rows}
    there = {(row["shard"], *(row[name] for name in names)) for row in rows}
    missing: list[dict[str, Any]] = [
        {**row, "shard": shard}
        for place, row in last.items()
        for shard in range(shards)
        if (shard, *place) not in there
    ]
    if missing:
        connection.execute(insert(table), missing)
