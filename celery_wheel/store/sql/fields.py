"""Plain values and the tables' columns, bound by name, so that no code depends on places in a tuple.

::

    reading   Row ──► columns_of(Row, timer, payload) ──► SELECT in the order of its fields ──► Row(*row)
    writing   NewRow ──► ObjectInsert(INSERT, "shard") ──► the attributes of its names, in the order of the INSERT

Both look up the names once, when statements are made; a row then costs as much as a tuple written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Table


class InsertStatement(Protocol):
    """A statement that inserts rows: tuples in the order of ``names``."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int | None: ...


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a dataclass or a NamedTuple, in their order."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else kind._fields


def columns_of(
    kind: type[Any], *tables: Table, without: Sequence[str] = (), **others: ColumnElement[Any]
) -> tuple[ColumnElement[Any], ...]:
    """Return the columns for ``kind(*row)``: for each field the column of that name in the first table that has one."""

    def column(name: str) -> ColumnElement[Any]:
        return others[name] if name in others else next(one.c[name] for one in tables if name in one.c)

    return tuple([column(name) for name in names_of(kind) if name not in without])


class ObjectInsert:
    """Writes objects by a statement: the value of each name is an attribute of the object, or comes ``beside`` it.

    ``named``: paths, with dots, of attributes with other names than the statement's values.
    """

    def __init__(self, statement: InsertStatement, *beside: str, **named: str) -> None:
        self.statement = statement
        values = ", ".join(name if name in beside else f"one.{named.get(name, name)}" for name in statement.names)
        # A generated function, as in namedtuple: ``attrgetter`` takes twice the time for a timer's 21 values. All names
        # are those of columns and of fields.
        made = eval(f"lambda {', '.join(['one', *beside])}: ({values},)")  # noqa: S307
        self.row: Callable[..., tuple[Any, ...]] = made

    def many(self, connection: Connection, objects: Iterable[Any], *beside: Any) -> int | None:
        row = self.row
        return self.statement.many(connection, [row(one, *beside) for one in objects])


def in_order(statement: InsertStatement, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows of named values in the order of the statement's names."""
    return [tuple([row[name] for name in statement.names]) for row in rows]
