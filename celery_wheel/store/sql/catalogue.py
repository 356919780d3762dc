"""The catalogue of a store: what its rows name by number, routes and dictionaries, in the memory of this process.

Each acquisition of a shard reads all anew (``forget``): a database that failed over may have lost what this process
knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from celery_wheel.store.model import Row
from celery_wheel.store.sql.database import Database
from celery_wheel.store.sql.dictionaries import Dictionaries
from celery_wheel.store.sql.routes import Routes
from celery_wheel.store.sql.schema import bytes_to_task_id
from celery_wheel.store.sql.statement import IN_PLACES
from celery_wheel.values.keyring import EncryptionKeys

#: The place of the route's id among the values of a row.
_ROUTE = 5


class Catalogue:
    """The catalogue of one open store; its methods are thread-safe."""

    def __init__(self, database: Database, keys: EncryptionKeys) -> None:
        self.routes, self.dictionaries = Routes(database), Dictionaries(database, keys)
        self.seal = self.dictionaries.seal

    def forget(self, shard: int) -> None:
        """Read all anew at its next use; ``shard`` is the one that was acquired."""
        self.routes.known = {}
        self.dictionaries.forget(shard)

    def row(self, connection: Connection, values: Sequence[Any], task_id: bytes | None = None) -> Row:
        """Return the row with these values of the columns ``ROW``."""
        id_, lane, due_ms, seq, eta_ms, route_id, expires_ms, misfire_ms, size, packed, number, group, line = values
        route_ = self.routes.known.get(route_id) or self.routes.read(connection, route_id)
        packing = self.dictionaries.known.get(number) or self.dictionaries.packing(connection, number)
        name = "" if task_id is None else bytes_to_task_id(task_id)
        place = (id_, lane, due_ms, seq, eta_ms)
        return Row(*place, route_, expires_ms, misfire_ms, size, packed, packing, name, group, line)

    def rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        row, made, rest = self.row, list[Row](), iter(found)
        while part := list(islice(rest, IN_PLACES)):  # of very many routes, a statement for each would take seconds
            self.routes.read_all(connection, {values[_ROUTE] for values in part})
            made += [row(connection, values) for values in part]
        return made

    def task_rows(self, connection: Connection, found: Iterable[Sequence[Any]]) -> list[Row]:
        """Return the rows of (task id, columns of a row …)."""
        row = self.row
        return [row(connection, values, id_) for id_, *values in found]


class StorePart:
    """A part of ``SqlStore`` or of ``Browse``. ``shards``: the number that the store had when it was opened."""

    def __init__(self, database: Database, catalogue: Catalogue, shards: int) -> None:
        self._database = database
        self._statements = database.statements
        self._catalogue = catalogue
        self.shards = shards
