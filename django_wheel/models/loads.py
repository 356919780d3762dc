"""Bulk loads, their parts, and their messages that no holder has accepted yet."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from celery_wheel.store.sql import schema
from django_wheel.fields import field
from django_wheel.models.table import StoreTable, constraints_of, indexes_of


class LoadRow(StoreTable):
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
        indexes: ClassVar = indexes_of(schema.load)
        constraints: ClassVar = constraints_of(schema.load)

    def __str__(self) -> str:
        return f"{self.name}: {self.state}"


class LoadPartRow(StoreTable):
    """A part of a bulk load, and the attempt that may write it."""

    id = field(schema.load_part.c.id)
    load = field(schema.load_part.c.load)
    part = field(schema.load_part.c.part)
    run = field(schema.load_part.c.run)
    attempt = field(schema.load_part.c.attempt)

    class Meta:
        db_table = schema.load_part.name
        default_permissions = ()
        constraints: ClassVar = constraints_of(schema.load_part)

    def __str__(self) -> str:
        return f"{self.part} of {self.load}"


class LoadChunkRow(StoreTable):
    """Messages of a bulk load that no holder has accepted yet."""

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
        indexes: ClassVar = indexes_of(schema.load_chunk)
        constraints: ClassVar = constraints_of(schema.load_chunk)

    def __str__(self) -> str:
        return f"{self.number} of {self.part} of {self.load}"
