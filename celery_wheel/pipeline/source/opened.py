"""The store as the driver sees it: where it is for others, and what stands in it at one moment.

Opening writes nothing. ``django://…`` and a file's relative path mean something on the driver only, so that what tasks
are given is the database's own URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, select

from celery_wheel.pipeline.source.pieces import LaneOffset
from celery_wheel.store import open_store
from celery_wheel.store.place import place_of
from celery_wheel.store.schema import shard
from celery_wheel.store.sql import SqlStore


def plain_url(url: str) -> str:
    """The URL of the database that a store's URL leads to, for another process or machine."""
    found = place_of(url).url
    if found.get_backend_name() == "sqlite" and found.database:
        found = found.set(database=str(Path(found.database).absolute()))
    return found.render_as_string(hide_password=False)


@contextmanager
def opened(url: str) -> Iterator[SqlStore]:
    """Raises SettingError or StoreUnusable, with what to do."""
    store = open_store(url, shards=None, create=False)
    try:
        yield store
    finally:
        store.close()


def numbers(connection: Connection) -> dict[int, int]:
    """Of each shard the highest number given: all settlements and outcomes that come later have greater ones."""
    found = connection.execute(select(shard.c.shard, shard.c.seq).order_by(shard.c.shard))
    return {row.shard: row.seq for row in found}


def offsets(store: SqlStore, connection: Connection) -> list[LaneOffset]:
    last = numbers(connection)
    return [
        LaneOffset(number, one.lane, one.offset, last[number])
        for number in last
        for one in store.lanes_seen_by(connection, number, closed=True)
    ]
