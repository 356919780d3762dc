"""Shards with the snapshots of their holders, schedulers, and the identity of the store."""

from __future__ import annotations

from celery_wheel.store.sql import schema
from django_wheel.fields import field
from django_wheel.models.table import StoreTable


class ShardRow(StoreTable):
    """A shard, its holder, and the holder's last snapshot."""

    shard = field(schema.shard.c.shard)
    epoch = field(schema.shard.c.epoch)
    holder = field(schema.shard.c.holder)
    lease_until_ms = field(schema.shard.c.lease_until_ms)
    seq = field(schema.shard.c.seq)
    history_bytes = field(schema.shard.c.history_bytes)
    snapshot_at_ms = field(schema.shard.c.snapshot_at_ms)
    snapshot = field(schema.shard.c.snapshot)
    archived = field(schema.shard.c.archived)
    forgotten = field(schema.shard.c.forgotten)

    class Meta:
        db_table = schema.shard.name
        default_permissions = ()

    def __str__(self) -> str:
        return f"shard {self.shard}"


class SchedulerRow(StoreTable):
    """A scheduler, and the time of its last sign of life."""

    name = field(schema.scheduler.c.name)
    seen_ms = field(schema.scheduler.c.seen_ms)

    class Meta:
        db_table = schema.scheduler.name
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.name)


class MetaRow(StoreTable):
    """The one row that identifies the store."""

    id = field(schema.meta.c.id)
    schema_version = field(schema.meta.c.schema_version)
    uuid = field(schema.meta.c.uuid)
    shards = field(schema.meta.c.shards)

    class Meta:
        db_table = schema.meta.name
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.uuid)
