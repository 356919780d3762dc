"""Django fields from the columns of the store's schema, so that the schema is described once.

::

    celery_wheel.store.sql.schema.timer.c.due_ms ──► field ──► BigIntegerField(db_comment=…)

So ``makemigrations`` notices every change of the schema. Three kinds of keys need other columns than Django's own
fields create:

    GivenKey      a number that the holder assigns: INTEGER PRIMARY KEY on SQLite, where only that type keeps a table in
                  the order of its key; no sequence on PostgreSQL
    Surrogate     a number without meaning: Django's field without SQLite's AUTOINCREMENT
    NameKey       a text, without a second index for LIKE on PostgreSQL
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    BigIntegerField = models.BigIntegerField[int, int]
    BigAutoField = models.BigAutoField[int, int]
    TextField = models.TextField[str, str]
else:
    BigIntegerField, BigAutoField, TextField = models.BigIntegerField, models.BigAutoField, models.TextField


class GivenKey(BigIntegerField):
    """The primary key of rows whose number the holder assigns."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "integer" if connection.vendor == "sqlite" else super().db_type(connection)


class Surrogate(BigAutoField):
    """A primary key without a meaning, assigned by the database."""

    def db_type_suffix(self, connection: BaseDatabaseWrapper) -> str | None:
        return None if connection.vendor == "sqlite" else super().db_type_suffix(connection)


class NameKey(TextField):
    """The primary key of rows that have a name."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        # Django adds an index for LIKE to a key whose type begins with "text".
        return "TEXT" if connection.vendor == "postgresql" else super().db_type(connection)


FIELDS: list[tuple[type[Any], type[models.Field[Any, Any]]]] = [
    (sqlalchemy.SmallInteger, models.SmallIntegerField),
    (sqlalchemy.BigInteger, models.BigIntegerField),
    (sqlalchemy.Integer, models.IntegerField),
    (sqlalchemy.Boolean, models.BooleanField),
    (sqlalchemy.LargeBinary, models.BinaryField),
    (sqlalchemy.Uuid, models.UUIDField),
    (sqlalchemy.Text, models.TextField),
]


def field(column: sqlalchemy.Column[Any]) -> Any:
    """Return the field with the column's type, its NULL and its comment."""
    options: dict[str, Any] = {"db_comment": column.comment}
    if column.primary_key:
        return _key(column, {**options, "primary_key": True})
    (kind,) = [kind for type_, kind in FIELDS if isinstance(getattr(column.type, "impl", column.type), type_)][:1]
    if column.nullable:
        options["null"] = True
    return kind(**options)


def _key(column: sqlalchemy.Column[Any], options: dict[str, Any]) -> Any:
    if column.identity is not None:  # Django's own field has AUTOINCREMENT on SQLite: no id is used twice
        reused = not column.table.dialect_options["sqlite"]["autoincrement"]
        return (Surrogate if reused else models.BigAutoField)(**options)
    if isinstance(column.type, sqlalchemy.Text):
        return NameKey(**options)
    if isinstance(column.type, sqlalchemy.SmallInteger):
        return models.SmallIntegerField(**options)
    if isinstance(column.type, sqlalchemy.Uuid):
        return models.UUIDField(**options)
    return GivenKey(**options)
