"""The kinds of columns that the tables of ``schema`` share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, SmallInteger

#: All tables: ``schema`` has them.
metadata = MetaData()

#: SQLite orders a table by its INTEGER PRIMARY KEY, and only exactly this type makes one.
ID = BigInteger().with_variant(Integer(), "sqlite")


def seq_id(comment: str) -> Column[int]:
    """Return a primary key with a seq of the holder, so that rows are appended."""
    return Column("id", ID, primary_key=True, autoincrement=False, comment=comment)


def surrogate() -> Column[int]:
    return Column("id", ID, Identity(), primary_key=True, comment="no meaning; Django wants a single key")


def shard_column() -> Column[int]:
    return Column("shard", SmallInteger, nullable=False, comment="number of the shard, from 0")


def required(name: str, type_: Any, comment: str) -> Column[Any]:
    return Column(name, type_, nullable=False, comment=comment)


def optional(name: str, type_: Any, comment: str) -> Column[Any]:
    return Column(name, type_, nullable=True, comment=comment)
