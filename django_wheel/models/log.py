"""The log: messages and their bytes, lanes with their offsets, settlements, outcomes and counts."""

from __future__ import annotations

from typing import ClassVar

from celery_wheel.store.sql import schema
from django_wheel.fields import field
from django_wheel.models.table import StoreTable, constraints_of, indexes_of


class TimerRow(StoreTable):
    """A message, from its acceptance until retention removes it."""

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
        indexes: ClassVar = indexes_of(schema.timer)
        constraints: ClassVar = constraints_of(schema.timer)

    def __str__(self) -> str:
        return f"{self.task} {self.task_id}"


class PayloadRow(StoreTable):
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


class LaneRow(StoreTable):
    """A sequence of messages with an offset and a watermark of its own."""

    id = field(schema.lane.c.id)
    shard = field(schema.lane.c.shard)
    lane = field(schema.lane.c.lane)
    offset_due_ms = field(schema.lane.c.offset_due_ms)
    offset_seq = field(schema.lane.c.offset_seq)
    watermark_due_ms = field(schema.lane.c.watermark_due_ms)
    watermark_seq = field(schema.lane.c.watermark_seq)
    target = field(schema.lane.c.target)
    redelivered = field(schema.lane.c.redelivered)
    scope = field(schema.lane.c.scope)
    closed = field(schema.lane.c.closed)

    class Meta:
        db_table = schema.lane.name
        default_permissions = ()
        constraints: ClassVar = constraints_of(schema.lane)

    def __str__(self) -> str:
        return f"lane {self.lane} of shard {self.shard}"


class BatchRow(StoreTable):
    """A settlement: a range of positions that the broker has confirmed."""

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
        default_permissions = ()
        indexes: ClassVar = indexes_of(schema.batch)

    def __str__(self) -> str:
        return f"{self.count} messages of shard {self.shard}"


class OutcomeRow(StoreTable):
    """The outcome of a message that was not dispatched at its time."""

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
        indexes: ClassVar = indexes_of(schema.outcome)

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class TallyRow(StoreTable):
    """The number of pending messages of a task, by hour and queue."""

    id = field(schema.tally.c.id)
    shard = field(schema.tally.c.shard)
    hour = field(schema.tally.c.hour)
    queue = field(schema.tally.c.queue)
    task = field(schema.tally.c.task)
    pending = field(schema.tally.c.pending)

    class Meta:
        db_table = schema.tally.name
        default_permissions = ()
        constraints: ClassVar = constraints_of(schema.tally)

    def __str__(self) -> str:
        return f"{self.pending} of {self.task}"
