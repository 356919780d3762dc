"""What ``SqlStore`` asks of a database: transactions, a lease, and its troubles in words. One class a dialect.

::

    SqlStore ──► Database ◄── sqlite.SqliteDatabase      WAL, BEGIN IMMEDIATE, one writer, flock
    (the port)               (a PostgreSQL one)          row locks, the lease in the row
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection

from celery_wheel.store.statements import Statements


class Database(Protocol):
    @property
    def name(self) -> str:
        """What people call it in messages: the file's path, or host and database."""

    @property
    def statements(self) -> Statements: ...

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection on which each statement sees all that was committed before it began."""

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """A transaction: committed at the end of the block, rolled back by whatever leaves it otherwise.

        Args:
            durable: False for what may be lost by a power failure, though never by the death of a process.

        Raises StoreError for every error of the database, in both kinds of block.
        """

    def hold(self, shard: int, holder: str) -> bool:
        """Take or keep the shard where the lease is not in its row; False while another process has it."""

    def let_go(self, shard: int) -> None:
        """Undo ``hold``."""

    def tidy(self) -> None:
        """Housekeeping that may take a while and must not hold up a commit; called about twice a second."""

    def close(self) -> None:
        """Wait for the transaction that is under way and give everything back."""
