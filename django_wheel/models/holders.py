"""Who holds what: shards with what their holders say of themselves, schedulers, and what store this is."""

from __future__ import annotations

from celery_wheel.store import schema
from django_wheel.fields import field
from django_wheel.models.table import StoreTable


class Shard(StoreTable):
    """Who holds a shard, and what the holder last said of itself."""

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


class Scheduler(StoreTable):
    """A scheduler, and when it was last heard of."""

    name = field(schema.scheduler.c.name)
    seen_ms = field(schema.scheduler.c.seen_ms)

    class Meta:
        db_table = schema.scheduler.name
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.name)


class Meta(StoreTable):
    """The one row that says what store this is."""

    id = field(schema.meta.c.id)
    schema_version = field(schema.meta.c.schema_version)
    uuid = field(schema.meta.c.uuid)
    shards = field(schema.meta.c.shards)

    class Meta:
        db_table = schema.meta.name
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.uuid)
