"""A Django field for each column of the store's description, so that there is one description and not two.

::

    celery_wheel.store.schema.timer.c.due_ms ──► field ──► BigIntegerField(db_comment=…)

``makemigrations`` thereby notices whatever changes there. Three kinds of keys are not Django's own, because the store
wants other columns for them than Django would make:

    GivenKey      a seq that the holder gives: a plain INTEGER PRIMARY KEY on SQLite, where only that word keeps a table
                  in the order of its key, and no sequence on PostgreSQL
    Surrogate     a number without meaning: as Django's, without SQLite's AUTOINCREMENT
    NameKey       a text: no second index for LIKE on PostgreSQL
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
    """The primary key of rows that get their number from the holder."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "integer" if connection.vendor == "sqlite" else super().db_type(connection)


class Surrogate(BigAutoField):
    """A primary key that nothing refers to."""

    def db_type_suffix(self, connection: BaseDatabaseWrapper) -> str | None:
        return None if connection.vendor == "sqlite" else super().db_type_suffix(connection)


class NameKey(TextField):
    """The primary key of rows that have a name."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        # Django makes an index for LIKE beside the key where the type begins with "text".
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
    """The field that is to ``column`` what its type, its NULL and its comment say."""
    options: dict[str, Any] = {"db_comment": column.comment}
    if column.primary_key:
        return _key(column, {**options, "primary_key": True})
    (kind,) = [kind for type_, kind in FIELDS if isinstance(column.type, type_)][:1]
    if column.nullable:
        options["null"] = True
    return kind(**options)


def _key(column: sqlalchemy.Column[Any], options: dict[str, Any]) -> Any:
    if column.identity is not None:
        return Surrogate(**options)
    if isinstance(column.type, sqlalchemy.Text):
        return NameKey(**options)
    if isinstance(column.type, sqlalchemy.SmallInteger):
        return models.SmallIntegerField(**options)
    if isinstance(column.type, sqlalchemy.Uuid):
        return models.UUIDField(**options)
    return GivenKey(**options)
