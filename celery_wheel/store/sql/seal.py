"""The seal of a store that was moved: triggers that refuse each write of processes that have it open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, Table

#: Dialect → the statement that keeps other transactions from writing these tables until the commit; SQLite has one
#: writer.
LOCK = {"postgresql": "LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE"}

#: The SQLSTATE of the error on PostgreSQL; on SQLite the error's name is SQLITE_CONSTRAINT_TRIGGER.
SQLSTATE = "WM001"


def seal(connection: Connection, tables: Iterable[Table], place: str) -> None:
    """Refuse every write of the tables from now on; the error names the new place."""
    statements = {"sqlite": _sqlite, "postgresql": _postgresql}[connection.dialect.name]
    for statement in statements(tables, f"it was moved to {place}".replace("'", "''")):
        connection.exec_driver_sql(statement)


def _sqlite(tables: Iterable[Table], text: str) -> Iterator[str]:
    for table in tables:
        for verb in ("INSERT", "UPDATE", "DELETE"):
            yield (
                f"CREATE TRIGGER {table.name}_moved_{verb.lower()} BEFORE {verb} ON {table.name} "
                f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
            )


def _postgresql(tables: Iterable[Table], text: str) -> Iterator[str]:
    raising = f"RAISE EXCEPTION USING MESSAGE = '{text}', ERRCODE = '{SQLSTATE}'".replace("%", "%%")
    yield f"CREATE FUNCTION wheel_moved() RETURNS trigger LANGUAGE plpgsql AS $wheel$ BEGIN {raising}; END $wheel$"
    for table in tables:
        yield (
            f"CREATE TRIGGER {table.name}_moved BEFORE INSERT OR UPDATE OR DELETE ON {table.name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION wheel_moved()"
        )
