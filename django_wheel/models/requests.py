"""Requests to the holders, their answers, tombstones, claims on keys, and gates."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from celery_wheel.store.sql import schema
from django_wheel.fields import field
from django_wheel.models.table import StoreTable, constraints_of, indexes_of


class InboxRow(StoreTable):
    """A request or a message that another process wrote for the holder."""

    id: Any = models.BigAutoField(primary_key=True, db_comment=schema.inbox.c.id.comment)  # AUTOINCREMENT, never reused
    shard = field(schema.inbox.c.shard)
    kind = field(schema.inbox.c.kind)
    payload = field(schema.inbox.c.payload)

    class Meta:
        db_table = schema.inbox.name
        default_permissions = ()
        indexes: ClassVar = indexes_of(schema.inbox)

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class AnswerRow(StoreTable):
    """The results of a command."""

    id = field(schema.answer.c.id)
    shard = field(schema.answer.c.shard)
    at_ms = field(schema.answer.c.at_ms)
    results = field(schema.answer.c.results)

    class Meta:
        db_table = schema.answer.name
        default_permissions = ()
        indexes: ClassVar = indexes_of(schema.answer)
        constraints: ClassVar = constraints_of(schema.answer)

    def __str__(self) -> str:
        return str(self.id)


class TombstoneRow(StoreTable):
    """A task id that was cancelled before the task arrived."""

    id = field(schema.tombstone.c.id)
    shard = field(schema.tombstone.c.shard)
    task_id = field(schema.tombstone.c.task_id)
    until_ms = field(schema.tombstone.c.until_ms)
    reason = field(schema.tombstone.c.reason)
    actor = field(schema.tombstone.c.actor)

    class Meta:
        db_table = schema.tombstone.name
        default_permissions = ()
        indexes: ClassVar = indexes_of(schema.tombstone)
        constraints: ClassVar = constraints_of(schema.tombstone)

    def __str__(self) -> str:
        return str(self.task_id)


class WatchRow(StoreTable):
    """A task's claim on a key."""

    id = field(schema.watch.c.id)
    shard = field(schema.watch.c.shard)
    kind = field(schema.watch.c.kind)
    key = field(schema.watch.c.key)
    timer_id = field(schema.watch.c.timer_id)

    class Meta:
        db_table = schema.watch.name
        default_permissions = ()
        indexes: ClassVar = indexes_of(schema.watch)
        constraints: ClassVar = constraints_of(schema.watch)

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class GateRow(StoreTable):
    """A pause, or a slow resume, of a queue, a task or everything."""

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
        indexes: ClassVar = indexes_of(schema.gate)
        constraints: ClassVar = constraints_of(schema.gate)

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"
