"""New stores of both kinds, SQLite files and databases of a PostgreSQL of their own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.servers.postgres import PostgresServer, postgres_binaries

Make = Callable[[], str]


@contextmanager
def stores(bench: str, folder: Path) -> Iterator[dict[str, Make]]:
    """Yield name of the database → function that makes the URL of a new store; fsync is on."""
    numbers = itertools.count(1)
    found: dict[str, Make] = {"SQLite": lambda: f"sqlite:///{folder}/wheel-{next(numbers)}.sqlite3"}
    if postgres_binaries() is None:
        print(f"{bench}: no PostgreSQL is installed; it is not measured (make services)", file=sys.stderr)
        yield found
        return
    with PostgresServer(fsync="on", full_page_writes="on", shared_buffers="256MB") as postgres:
        yield {**found, "PostgreSQL": postgres.new_database}
