"""The base class of the tables of the store: the schema gives a model its fields, indexes and constraints.

::

    class TimerRow(StoreTable, table=schema.timer, text="{0.task}")   ──►  a field for each column of ``wheel_timer``
                                                                          str(row) is "{0.task}".format(row)
"""

from __future__ import annotations

from typing import Any

import sqlalchemy
from django.db import models
from django.db.models.base import ModelBase

from django_wheel.fields import field


def constraints_of(table: sqlalchemy.Table) -> list[models.UniqueConstraint]:
    found = [one for one in table.constraints if isinstance(one, sqlalchemy.UniqueConstraint)]
    return [
        models.UniqueConstraint(fields=[column.name for column in one.columns], name=str(one.name))
        for one in sorted(found, key=lambda one: str(one.name))
    ]


def indexes_of(table: sqlalchemy.Table) -> list[models.Index]:
    found = sorted(table.indexes, key=lambda index: str(index.name))
    return [models.Index(fields=[column.name for column in index.columns], name=str(index.name)) for index in found]


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
    """A table of the store."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **options: Any) -> list[Any]:
        """Omit the warning that SQLite keeps no comments on columns: nothing reads them there."""
        return [one for one in super().check(**options) if one.id != "fields.W163"]
