"""The store's tables as Django models, where ``wheel_store`` names an entry of ``DATABASES``.

They are for ``migrate`` and for reading. Only a scheduler writes these tables, under its lease; a row that anybody else
changes is a task that is lost or runs twice. ``celery_wheel.store.schema`` says what each table is for.

The models at the end have no table of their own: they are the pages of the admin, and carry its two permissions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from sqlalchemy import UniqueConstraint

from celery_wheel.store import schema
from django_wheel.fields import field


def _constraints(table: Any) -> list[models.UniqueConstraint]:
    found = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    return [
        models.UniqueConstraint(fields=[column.name for column in one.columns], name=str(one.name))
        for one in sorted(found, key=lambda one: str(one.name))
    ]


def _indexes(table: Any) -> list[models.Index]:
    found = sorted(table.indexes, key=lambda index: str(index.name))
    return [models.Index(fields=[column.name for column in index.columns], name=str(index.name)) for index in found]


class StoreTable(models.Model):
    """A table of the store."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **options: Any) -> list[Any]:
        """Without a warning a column that SQLite keeps no comments: they are for PostgreSQL, and nothing needs them."""
        return [one for one in super().check(**options) if one.id != "fields.W163"]


class Timer(StoreTable):
    """A message, from when it was accepted until the history forgets it."""

    id = field(schema.timer.c.id)
    shard = field(schema.timer.c.shard)
    lane = field(schema.timer.c.lane)
    due_ms = field(schema.timer.c.due_ms)
    seq = field(schema.timer.c.seq)
    eta_ms = field(schema.timer.c.eta_ms)
    envelope_id = field(schema.timer.c.envelope_id)
    task_id = field(schema.timer.c.task_id)
    task = field(schema.timer.c.task)
    exchange = field(schema.timer.c.exchange)
    exchange_type = field(schema.timer.c.exchange_type)
    routing_key = field(schema.timer.c.routing_key)
    queue = field(schema.timer.c.queue)
    priority = field(schema.timer.c.priority)
    key = field(schema.timer.c.key)
    expires_ms = field(schema.timer.c.expires_ms)
    queue_expires_ms = field(schema.timer.c.queue_expires_ms)
    created_ms = field(schema.timer.c.created_ms)
    accepted_ms = field(schema.timer.c.accepted_ms)
    size = field(schema.timer.c.size)
    misfire_ms = field(schema.timer.c.misfire_ms)

    class Meta:
        db_table = schema.timer.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.timer)
        constraints: ClassVar = _constraints(schema.timer)

    def __str__(self) -> str:
        return f"{self.task} {self.task_id}"


class Payload(StoreTable):
    """The bytes of a message."""

    id = field(schema.payload.c.id)
    headers = field(schema.payload.c.headers)
    properties = field(schema.payload.c.properties)
    body = field(schema.payload.c.body)

    class Meta:
        db_table = schema.payload.name
        default_permissions = ()

    def __str__(self) -> str:
        return f"bytes of {self.id}"


class Lane(StoreTable):
    """What leaves in one order: its hand and its cut."""

    id = field(schema.lane.c.id)
    shard = field(schema.lane.c.shard)
    lane = field(schema.lane.c.lane)
    hand_due_ms = field(schema.lane.c.hand_due_ms)
    hand_seq = field(schema.lane.c.hand_seq)
    cut_due_ms = field(schema.lane.c.cut_due_ms)
    cut_seq = field(schema.lane.c.cut_seq)
    target = field(schema.lane.c.target)
    again = field(schema.lane.c.again)
    scope = field(schema.lane.c.scope)

    class Meta:
        db_table = schema.lane.name
        default_permissions = ()
        constraints: ClassVar = _constraints(schema.lane)

    def __str__(self) -> str:
        return f"lane {self.lane} of shard {self.shard}"


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


class Batch(StoreTable):
    """One settlement: a range of positions that the broker took."""

    id = field(schema.batch.c.id)
    shard = field(schema.batch.c.shard)
    lane = field(schema.batch.c.lane)
    from_due_ms = field(schema.batch.c.from_due_ms)
    from_seq = field(schema.batch.c.from_seq)
    to_due_ms = field(schema.batch.c.to_due_ms)
    to_seq = field(schema.batch.c.to_seq)
    count = field(schema.batch.c.count)
    bytes = field(schema.batch.c.bytes)
    dispatched_ms = field(schema.batch.c.dispatched_ms)
    epoch = field(schema.batch.c.epoch)

    class Meta:
        db_table = schema.batch.name
        verbose_name_plural = "batches"
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.batch)

    def __str__(self) -> str:
        return f"{self.count} messages of shard {self.shard}"


class Outcome(StoreTable):
    """What became of a message that did not simply leave."""

    id = field(schema.outcome.c.id)
    shard = field(schema.outcome.c.shard)
    timer_id = field(schema.outcome.c.timer_id)
    kind = field(schema.outcome.c.kind)
    reason = field(schema.outcome.c.reason)
    actor = field(schema.outcome.c.actor)
    at_ms = field(schema.outcome.c.at_ms)

    class Meta:
        db_table = schema.outcome.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.outcome)

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class Tally(StoreTable):
    """How many messages of a task wait for an hour and a queue."""

    id = field(schema.tally.c.id)
    shard = field(schema.tally.c.shard)
    hour = field(schema.tally.c.hour)
    queue = field(schema.tally.c.queue)
    task = field(schema.tally.c.task)
    pending = field(schema.tally.c.pending)

    class Meta:
        db_table = schema.tally.name
        default_permissions = ()
        constraints: ClassVar = _constraints(schema.tally)

    def __str__(self) -> str:
        return f"{self.pending} of {self.task}"


class Inbox(StoreTable):
    """What others wrote for the holder."""

    id: Any = models.BigAutoField(primary_key=True, db_comment=schema.inbox.c.id.comment)  # AUTOINCREMENT, never reused
    shard = field(schema.inbox.c.shard)
    kind = field(schema.inbox.c.kind)
    payload = field(schema.inbox.c.payload)

    class Meta:
        db_table = schema.inbox.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.inbox)

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Load(StoreTable):
    """A bulk load."""

    id: Any = models.BigAutoField(primary_key=True, db_comment=schema.load.c.id.comment)  # AUTOINCREMENT, never reused
    name = field(schema.load.c.name)
    state = field(schema.load.c.state)
    run = field(schema.load.c.run)
    created_ms = field(schema.load.c.created_ms)
    begun_ms = field(schema.load.c.begun_ms)
    ended_ms = field(schema.load.c.ended_ms)
    rows = field(schema.load.c.rows)

    class Meta:
        db_table = schema.load.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.load)
        constraints: ClassVar = _constraints(schema.load)

    def __str__(self) -> str:
        return f"{self.name}: {self.state}"


class LoadPart(StoreTable):
    """Who may write a part of a bulk load."""

    id = field(schema.load_part.c.id)
    load = field(schema.load_part.c.load)
    part = field(schema.load_part.c.part)
    run = field(schema.load_part.c.run)
    attempt = field(schema.load_part.c.attempt)

    class Meta:
        db_table = schema.load_part.name
        default_permissions = ()
        constraints: ClassVar = _constraints(schema.load_part)

    def __str__(self) -> str:
        return f"{self.part} of {self.load}"


class LoadChunk(StoreTable):
    """Messages of a bulk load that no holder has taken in."""

    id: Any = models.BigAutoField(primary_key=True, db_comment=schema.load_chunk.c.id.comment)
    load = field(schema.load_chunk.c.load)
    part = field(schema.load_chunk.c.part)
    number = field(schema.load_chunk.c.number)
    shard = field(schema.load_chunk.c.shard)
    rows = field(schema.load_chunk.c.rows)
    digest = field(schema.load_chunk.c.digest)
    payload = field(schema.load_chunk.c.payload)

    class Meta:
        db_table = schema.load_chunk.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.load_chunk)
        constraints: ClassVar = _constraints(schema.load_chunk)

    def __str__(self) -> str:
        return f"{self.number} of {self.part} of {self.load}"


class Answer(StoreTable):
    """What became of a command."""

    id = field(schema.answer.c.id)
    shard = field(schema.answer.c.shard)
    at_ms = field(schema.answer.c.at_ms)
    verdicts = field(schema.answer.c.verdicts)

    class Meta:
        db_table = schema.answer.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.answer)
        constraints: ClassVar = _constraints(schema.answer)

    def __str__(self) -> str:
        return str(self.id)


class Tombstone(StoreTable):
    """A task id that was cancelled before it came."""

    id = field(schema.tombstone.c.id)
    shard = field(schema.tombstone.c.shard)
    task_id = field(schema.tombstone.c.task_id)
    until_ms = field(schema.tombstone.c.until_ms)
    reason = field(schema.tombstone.c.reason)
    actor = field(schema.tombstone.c.actor)

    class Meta:
        db_table = schema.tombstone.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.tombstone)
        constraints: ClassVar = _constraints(schema.tombstone)

    def __str__(self) -> str:
        return str(self.task_id)


class Watch(StoreTable):
    """A task's claim on a key."""

    id = field(schema.watch.c.id)
    shard = field(schema.watch.c.shard)
    kind = field(schema.watch.c.kind)
    key = field(schema.watch.c.key)
    timer_id = field(schema.watch.c.timer_id)

    class Meta:
        db_table = schema.watch.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.watch)
        constraints: ClassVar = _constraints(schema.watch)

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class Gate(StoreTable):
    """What is paused, or leaves slowly."""

    id = field(schema.gate.c.id)
    shard = field(schema.gate.c.shard)
    scope = field(schema.gate.c.scope)
    name = field(schema.gate.c.name)
    state = field(schema.gate.c.state)
    per_ms = field(schema.gate.c.per_ms)
    reason = field(schema.gate.c.reason)
    actor = field(schema.gate.c.actor)
    at_ms = field(schema.gate.c.at_ms)

    class Meta:
        db_table = schema.gate.name
        default_permissions = ()
        indexes: ClassVar = _indexes(schema.gate)
        constraints: ClassVar = _constraints(schema.gate)

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


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


# -- pages of the admin ------------------------------------------------------------------------------


class Wheel(Shard):
    """The wheel page."""

    class Meta:
        proxy = True
        default_permissions = ()
        permissions: ClassVar = [
            ("view_wheel", "Can see the wheel and what waits in it"),
            ("operate_wheel", "Can act on what waits in the wheel"),
        ]
        verbose_name = verbose_name_plural = "wheel"


class Pending(Timer):
    """The page of what waits."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "pending task"


class History(Timer):
    """The page of what left."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "history"


class Rejected(Outcome):
    """The page of what was set aside."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name_plural = "rejected"
