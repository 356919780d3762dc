"""A Core statement that is compiled once for a dialect and then run with plain tuples.

Compared with Core's own ``execute``, an inserted row costs 10 µs instead of 20, and a call that returns one row 50 µs
instead of 140 (on two busy cores; the proportion counts). The SQL stays Core's: ``statements`` has it, the dialect
renders it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler


class Prepared:
    """A call binds values by name; ``at`` and ``many`` bind them in the order of ``names``."""

    __slots__ = ("_constants", "names", "sql")

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        compiled = clause.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)  # noqa: S101 - for the type checker
        self.sql = compiled.string
        #: Names of the bound values, in the order of their places in the SQL; a name may come twice.
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def __call__(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        constants = self._constants
        places = tuple([values[name] if name in values else constants[name] for name in self.names])
        return connection.exec_driver_sql(self.sql, places)

    def at(self, connection: Connection, places: tuple[Any, ...]) -> CursorResult[*tuple[Any, ...]]:
        return connection.exec_driver_sql(self.sql, places)

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run once for each row; does nothing without rows. Returns the number of affected rows."""
        return connection.exec_driver_sql(self.sql, list(rows)).rowcount if rows else 0
