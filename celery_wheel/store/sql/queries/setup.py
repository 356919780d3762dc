"""The queries that make a store, and that recognise one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Insert, Select, Update, insert, select, update

from celery_wheel.store.model import ORIGIN
from celery_wheel.store.sql.schema import lane, meta, shard, snapshot


def store_row(*names: str) -> Select[Any]:
    """Select these columns of the one row of ``wheel_meta``, or all columns."""
    return select(*[meta.c[name] for name in names]) if names else select(meta)


def new_store(uuid: str, secret: str, version: int, shards: int, brokers: str | None = None) -> Insert:
    own = {"uuid": uuid, "secret": secret, "shards": shards, "brokers": brokers}
    return insert(meta).values(id=1, schema_version=version, **own)


def update_store(**values: int | str) -> Update:
    return update(meta).values(**values)


def new_shard(number: int, *, epoch: int = 0, seq: int = 0, archived: int = 0) -> list[Insert]:
    """Insert a shard without history, and its main lane."""
    row = {"shard": number, "epoch": epoch, "seq": seq, "history_bytes": 0, "archived": archived, "forgotten": 0}
    ends = {f"{end}_{half}": getattr(ORIGIN, half) for end in ("offset", "watermark") for half in ("due_ms", "seq")}
    first = insert(lane).values(shard=number, lane=0, **ends)
    return [insert(shard).values(**row), insert(snapshot).values(shard=number), first]


def lock_shards() -> Select[Any]:
    """Lock every shard's row and select its lease."""
    return select(shard.c.shard, shard.c.holder, shard.c.lease_until_ms).with_for_update()


def first_holder() -> Select[Any]:
    """Select the holder of the first shard; in a store that was moved, the new place."""
    return select(shard.c.holder).where(shard.c.shard == 0)
