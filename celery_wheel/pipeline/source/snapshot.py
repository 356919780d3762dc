"""The store as the driver sees it: its URL for other processes, and its offsets and numbers at one moment.

Opening writes nothing. ``django://…`` and a file's relative path mean something on the driver only, so tasks receive
the database's own URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, select

from celery_wheel.pipeline.source.statements import LaneOffset
from celery_wheel.store import open_store
from celery_wheel.store.place import place_of
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.schema import shard
from celery_wheel.store.sql.store import SqlStore


def database_url(url: str) -> str:
    """Return the URL of the database that a store's URL leads to, valid in another process or on another machine."""
    database = place_of(url).url
    if database.get_backend_name() == "sqlite" and database.database:
        database = database.set(database=str(Path(database.database).absolute()))
    return database.render_as_string(hide_password=False)


@contextmanager
def open_for_reading(url: str) -> Iterator[SqlStore]:
    """Open an existing store for the block. Raises SettingError or StoreUnusable, with the remedy."""
    store = open_store(url, shards=None, create=False)
    try:
        yield store
    finally:
        store.close()


def last_numbers(connection: Connection) -> dict[int, int]:
    """Return the highest number that each shard has given: all later settlements and outcomes have greater ones."""
    rows = connection.execute(select(shard.c.shard, shard.c.seq).order_by(shard.c.shard))
    return {row.shard: row.seq for row in rows}


def lane_offsets(store: SqlStore, connection: Connection) -> list[LaneOffset]:
    return [
        LaneOffset(number, lane.lane, lane.offset, last)
        for number, last in last_numbers(connection).items()
        for lane in read_lanes(connection, store.database.statements, number, closed=True)
    ]
