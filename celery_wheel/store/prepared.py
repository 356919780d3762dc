"""A Core statement that is compiled once for a dialect and then run with plain tuples.

Against Core's own ``execute``: inserting a row 10 µs instead of 20, a call that answers one row 50 µs instead of 140
(on two busy cores; it is the proportion that counts). The SQL stays Core's: written in ``statements``, rendered by
the dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler


class Prepared:
    """Call it with the bound values by name; ``at`` and ``many`` take them in the order of ``names``."""

    __slots__ = ("_constants", "names", "sql")

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        compiled = clause.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)  # noqa: S101 - for the type checker
        self.sql = compiled.string
        #: Names of the bound values, in the order of their places in the SQL; one may come twice.
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def __call__(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        constants = self._constants
        places = tuple([values[name] if name in values else constants[name] for name in self.names])
        return connection.exec_driver_sql(self.sql, places)

    def at(self, connection: Connection, places: tuple[Any, ...]) -> CursorResult[*tuple[Any, ...]]:
        return connection.exec_driver_sql(self.sql, places)

    def many(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run once for each row; nothing at all for none. Returns how many rows of the table that concerned."""
        return connection.exec_driver_sql(self.sql, list(rows)).rowcount if rows else 0
