"""What ``SqlStore`` asks of a database: transactions, a lease, and its troubles in words. One class a dialect.

::

    SqlStore ──► Database ◄── sqlite.database                WAL, BEGIN IMMEDIATE, one writer, flock
    (the port)           ◄── postgresql.database             many sessions, row locks, the lease in the row
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

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A connection on which all statements of the block see the same moment; they write nothing.

        For blocks of a few hundredths of a second: what is replaced meanwhile cannot be cleared away before they end.
        """

    def writing(self, *, durable: bool | None = None) -> AbstractContextManager[Connection]:
        """A transaction: committed at the end of the block, rolled back by whatever leaves it otherwise.

        Args:
            durable: False for what may be lost by a power failure, though never by the death of a process; True for
                what may not, whatever the store's durability, which decides where it is None.

        Raises StoreError for every error of the database, in both kinds of block.
        """

    def making(self) -> AbstractContextManager[Connection]:
        """The transaction in which the tables are made, unless they are there by then; one at a time in the world."""

    def replaced(self) -> bool:
        """Whether what was opened is no longer what its name names; cheap enough to be asked each time."""

    def now_ms(self) -> int | None:
        """The database's own clock; None where it has none but this host's."""

    def hold(self, shard: int, holder: str) -> bool:
        """Before the row is taken: False while another process has the shard. Always True where the row says it."""

    def let_go(self, shard: int) -> None:
        """Undo ``hold``."""

    def make_way(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        """In the transaction that takes the shard's row: False while another is at work on it.

        Throws out a holder that stopped with the row locked. ``own_epoch``: of this process's last term.
        """

    def tidy(self) -> None:
        """Housekeeping that may take a while and must not hold up a commit; called about twice a second."""

    def close(self) -> None:
        """Wait for the transaction that is under way and give everything back."""
