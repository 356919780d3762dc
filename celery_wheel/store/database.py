"""What ``SqlStore`` asks of a database: transactions, a lease, and its troubles in words. One class a dialect.

::

    SqlStore ──► Database ◄── sqlite.SqliteDatabase      WAL, BEGIN IMMEDIATE, one writer, flock
    (the port)               postgresql.PostgresqlDatabase    row locks, the lease in the row, by the server's clock
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

    def now_ms(self) -> int | None:
        """The database's own clock, by which a lease in the row runs out; None where it has none."""

    def prepare_to_write(self) -> None:
        """Before anything is written by this process that may have to make the tables."""

    def prepare_tables(self, connection: Connection) -> None:
        """In the transaction in which the tables may be made: let no other process in."""

    def tables_made(self, connection: Connection) -> None:
        """In the same transaction: what the dialect wants to be said of them."""

    def tidy(self) -> None:
        """Housekeeping that may take a while and must not hold up a commit; called about twice a second."""

    def close(self) -> None:
        """Wait for the transaction that is under way and give everything back."""
