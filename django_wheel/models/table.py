"""The base class of the tables of the store, and their indexes and constraints for Django."""

from __future__ import annotations

from typing import Any

from django.db import models
from sqlalchemy import UniqueConstraint


def constraints_of(table: Any) -> list[models.UniqueConstraint]:
    found = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    return [
        models.UniqueConstraint(fields=[column.name for column in one.columns], name=str(one.name))
        for one in sorted(found, key=lambda one: str(one.name))
    ]


def indexes_of(table: Any) -> list[models.Index]:
    found = sorted(table.indexes, key=lambda index: str(index.name))
    return [models.Index(fields=[column.name for column in index.columns], name=str(index.name)) for index in found]


class StoreTable(models.Model):
    """A table of the store."""

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **options: Any) -> list[Any]:
        """Omit the warning that SQLite keeps no comments on columns: nothing reads them there."""
        return [one for one in super().check(**options) if one.id != "fields.W163"]
