"""The ledger: all that a soak has sent, asked, seen and done, over all runs. A SQLite file; memory holds none of it.

::

    sends         a row a task, written before it is sent; ``accepted_ms`` follows when the broker has it
    cancels       a row a request for one task, written before it is made; ``answer`` follows
    arrivals      a row a message of a task, in the order of the queue
    occurrences   a row a message of a schedule
    runs, faults, samples, outages

The number of a task is in its id, so numbers alone are stored: some 150 bytes a task with its arrival.
"""

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run INTEGER PRIMARY KEY, began_ms INTEGER, seed INTEGER, code TEXT, outage_of TEXT,
    asked_ms INTEGER, answered_ms INTEGER, ended_ms INTEGER, verdict TEXT);
CREATE TABLE IF NOT EXISTS sends (number INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL, accepted_ms INTEGER);
CREATE TABLE IF NOT EXISTS cancels (number INTEGER PRIMARY KEY, asked_ms INTEGER NOT NULL, answered_ms INTEGER,
    answer TEXT);
CREATE TABLE IF NOT EXISTS arrivals (place INTEGER PRIMARY KEY, number INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    publication INTEGER NOT NULL, marked INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS arrivals_by_number ON arrivals (number);
CREATE TABLE IF NOT EXISTS occurrences (place INTEGER PRIMARY KEY, name TEXT NOT NULL, instant_ms INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, publication INTEGER NOT NULL, marked INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS faults (run INTEGER, kind TEXT, from_ms INTEGER, upto_ms INTEGER, note TEXT);
CREATE TABLE IF NOT EXISTS samples (run INTEGER, at_ms INTEGER, name TEXT, value REAL);
CREATE INDEX IF NOT EXISTS samples_by_name ON samples (name, at_ms);
"""


def task_id(number: int) -> str:
    return str(uuid.UUID(int=number, version=4))


def number_of(task_id: str) -> int:
    """Return the number of a task. Raises ValueError for an id that is none of ``task_id``'s."""
    number = uuid.UUID(task_id).int & (1 << 48) - 1
    if task_id != str(uuid.UUID(int=number, version=4)):
        raise ValueError(f"the id of a task must be that of a number, got {task_id!r}")
    return number


class Ledger:
    """One connection, which threads share. A commit is safe from a kill of this process, not from a loss of power."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_TABLES}")

    def write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(statement, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def read(self, query: str, *values: Any, **named: Any) -> list[Any]:
        with self._lock:
            return self._connection.execute(query, named or values).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        return self.read(query, *values)[0][0]

    def reader(self) -> sqlite3.Connection:
        """Return a new connection, for rows that are too many for a list."""
        return sqlite3.connect(self.path, timeout=60)

    def close(self) -> None:
        self._connection.close()
