"""Django fields and models from the store's schema, so that the schema is described once.

``makemigrations`` notices every change of the schema. Three kinds of keys need other columns than Django's own fields
create: ``GivenKey``, a number that the holder assigns, is INTEGER PRIMARY KEY on SQLite, where only that type keeps a
table in the order of its key; ``Surrogate``, a number without meaning, has no AUTOINCREMENT there; ``NameKey``, a text,
has no second index for LIKE on PostgreSQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelBase

if TYPE_CHECKING:
    BigIntegerField = models.BigIntegerField[int, int]
    BigAutoField = models.BigAutoField[int, int]
    TextField = models.TextField[str, str]
else:
    BigIntegerField, BigAutoField, TextField = models.BigIntegerField, models.BigAutoField, models.TextField


class GivenKey(BigIntegerField):
    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "integer" if connection.vendor == "sqlite" else super().db_type(connection)


class Surrogate(BigAutoField):
    def db_type_suffix(self, connection: BaseDatabaseWrapper) -> str | None:
        return None if connection.vendor == "sqlite" else super().db_type_suffix(connection)


class NameKey(TextField):
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


def constraints_of(table: sqlalchemy.Table) -> list[models.UniqueConstraint]:
    found = [one for one in table.constraints if isinstance(one, sqlalchemy.UniqueConstraint)]
    return [
        models.UniqueConstraint(fields=[column.name for column in one.columns], name=str(one.name))
        for one in sorted(found, key=lambda one: str(one.name))
    ]


def indexes_of(table: sqlalchemy.Table) -> list[models.Index]:
    return [_index(one) for one in sorted(table.indexes, key=lambda index: str(index.name))]


def _index(index: sqlalchemy.Index) -> models.Index:
    of_nulls = {f"{column}__isnull": not is_set for column, is_set in index.info.get("where", {}).items()}
    condition = models.Q(**of_nulls) if of_nulls else None
    return models.Index(fields=[one.name for one in index.columns], name=str(index.name), condition=condition)


class TableModel(ModelBase):
    """Makes the model of a table, or of a page of the admin: a proxy, with the page's name in the menu."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], table: Any = None, text: str = "", **page: Any
    ) -> Any:
        if table is not None:
            body |= {column.name: field(column) for column in table.c}
            body["__str__"] = lambda row: text.format(row)
            keys = {"indexes": indexes_of(table), "constraints": constraints_of(table)}
            body["Meta"] = type("Meta", (), {"db_table": table.name, "default_permissions": (), **keys})
        if page:
            body["Meta"] = type("Meta", (), {"proxy": True, "default_permissions": (), **page})
        return super().__new__(cls, name, bases, body)


class StoreTable(models.Model, metaclass=TableModel):
    class Meta:
        abstract = True

    @classmethod
    def check(cls, **options: Any) -> list[Any]:
        """Omit the warning that SQLite keeps no comments on columns: nothing reads them there."""
        return [one for one in super().check(**options) if one.id != "fields.W163"]
