"""Plain values and the tables' columns, bound by name: nobody counts the places of a tuple.

::

    reading   Row ──► columns_of(Row, timer, payload) ──► SELECT in the order of its fields ──► Row(*row)
    writing   NewRow ──► Filling(INSERT, "shard") ──► the attributes of its names, in the order of the INSERT

Both look the names up once, when statements are made; a row then costs what a tuple that is written out costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Table


class Adding(Protocol):
    """A statement that writes rows, given as tuples in the order of ``names``."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int | None: ...


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass or a NamedTuple, in their order."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else kind._fields


def columns_of(
    kind: type[Any], *tables: Table, without: Sequence[str] = (), **others: ColumnElement[Any]
) -> tuple[ColumnElement[Any], ...]:
    """What ``kind(*row)`` is made from: for each field the column of that name of the first table that has one."""

    def column(name: str) -> ColumnElement[Any]:
        return others[name] if name in others else next(one.c[name] for one in tables if name in one.c)

    return tuple([column(name) for name in names_of(kind) if name not in without])


class Filling:
    """Writes objects by a statement: the value of each name is an object's attribute, or given ``beside`` it.

    ``named``: attributes that are called otherwise than the statement's value, as a path with dots.
    """

    def __init__(self, statement: Adding, *beside: str, **named: str) -> None:
        self.statement = statement
        values = ", ".join(name if name in beside else f"one.{named.get(name, name)}" for name in statement.names)
        # Written out as by hand, as a namedtuple is: ``attrgetter`` takes twice the time for a timer's 21 values. All
        # names are those of columns and of fields.
        made = eval(f"lambda {', '.join(['one', *beside])}: ({values},)")  # noqa: S307
        self.row: Callable[..., tuple[Any, ...]] = made

    def many(self, connection: Connection, objects: Iterable[Any], *beside: Any) -> None:
        row = self.row
        self.statement.many(connection, [row(one, *beside) for one in objects])


def in_order(statement: Adding, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows of named values as the statement takes them."""
    return [tuple([row[name] for name in statement.names]) for row in rows]
