"""The port of a database for ``SqlStore``: transactions, a lease, and errors for people. One class a dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection

from celery_wheel.errors import NothingWritten, StoreError
from celery_wheel.store.ports.pages import StoreSize
from celery_wheel.store.sql.statement import Prepared, Statements
from celery_wheel.store.store_model import Bell, ServerState


class Database(Protocol):
    @property
    def name(self) -> str:
        """The store's name in messages: the file's path, or host and database."""

    @property
    def statements(self) -> Statements: ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Yield a connection on which each statement sees every earlier commit."""

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Yield a connection on which all statements of the block see the same moment; they may only read.

        For blocks of a few hundredths of a second: the database keeps replaced rows until the block ends.
        """

    def writing(self, *, durable: bool | None = None, hurried: bool = False) -> AbstractContextManager[Connection]:
        """Yield a connection in a transaction: committed at the end of the block, rolled back by an exception.

        Args:
            durable: True where a power failure must not lose the transaction; False where it may, though the death of
                a process may not; None for the store's durability.
            hurried: it waits no longer than half a second, and a quarter of a lease, for a lock.

        Raises StoreError for every error of the database, in every kind of block.
        """

    def poll(self, query: Prepared, places: tuple[Any, ...]) -> bool:
        """Whether a query has a row; cheap enough for 20 calls a second."""

    def number(self, query: Prepared, **values: int) -> int | None:
        """Return the one number of a short query, as cheaply as a poll; None where it has no row."""

    def making(self) -> AbstractContextManager[Connection]:
        """Yield the transaction in which tables are made or migrated; one process at a time has it."""

    def may_pass(self, error: Exception) -> bool:
        """Whether an error of SQLAlchemy or the driver ends by itself: a lock, a server that starts."""

    def is_replaced(self) -> bool:
        """Whether the opened file was deleted or replaced; cheap enough to be called before each use."""

    def identity(self) -> tuple[str, str, str]:
        """Return instance, address and place; see ``StoreIdentity``."""

    def now_ms(self) -> int | None:
        """Return the database's own clock; None where it has no clock but this host's."""

    def size(self) -> StoreSize:
        """Return the bytes of the database, and its file system where that is this host's."""

    def server(self) -> ServerState | None:
        """Return the state of the database's server; None where it is a file."""

    def hold(self, shard: int, holder: str) -> bool:
        """Lock the shard for this process; False while another has it; True where the lease is in the shard's row."""

    def release(self, shard: int) -> None: ...

    def evict_stopped_holder(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        """End the session of a holder that stopped with the shard's row locked, in the transaction that takes the row.

        Returns False while another session works on the shard. ``own_epoch`` is this process's last epoch.
        """

    def ring(self) -> None:
        """Tell every scheduler of the store, after a commit, that something has arrived."""

    def bell(self) -> Bell: ...

    def tidy(self) -> None:
        """Housekeeping outside of commits, since it may take long; called about twice a second."""

    def scrub(self) -> None:
        """Remove copies of deleted rows from the database's log, as far as that disturbs nobody."""

    def rewrite(self) -> None:
        """Write all rows anew, so that no page has bytes of a row that was deleted or replaced; nobody can write
        meanwhile."""

    def close(self) -> None:
        """Wait for the open transactions and close every connection."""


#: Opens the part of a remedy that is the holder's own; a reader has no shard.
ADOPTED_ANEW = "the shard is adopted anew"

#: State, consequence and remedy of the errors that each dialect has.
REFUSES_ALL = (
    "refuses every change",
    "nothing was written",
    "set wheel_store to the new place, and restart everything that uses the wheel",
)
OTHER_TABLES = (
    "is incomplete",
    "nothing was read or written",
    "its tables are of another version or were changed by hand: migrate them, or restore a copy",
)
DOUBLED = (
    "has one of these messages or ids already",
    "nothing was written",
    f"{ADOPTED_ANEW}, which reads the stored rows; if this repeats, please report it",
)


class Describe(Protocol):
    def __call__(self, name: str, error: Any, *, reading: bool) -> str: ...


@contextmanager
def errors_for_people(
    name: str,
    describe: Describe,
    *errors: type[Exception],
    reading: bool = False,
    passes: Callable[[Any], bool] = lambda _: False,
) -> Iterator[None]:
    """Raise StoreError for the errors of the store ``name``, in the words of ``describe``; NothingWritten where it
    ``passes``."""
    try:
        yield
    except errors as error:
        kind = NothingWritten if passes(error) else StoreError
        raise kind(describe(name, error, reading=reading)) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise StoreError(
            f"a value does not fit into the store {name} ({error}); "
            f"{'nothing was read' if reading else 'nothing of its change was written'}; "
            "this is a defect, please report it"
        ) from error


def phrase(name: str, state: str, consequence: str, remedy: str, *, reading: bool) -> str:
    """Return the message of an error; for a reader, without words about writes and shards."""
    if reading:
        consequence = "nothing was read"
        remedy = "; ".join(one for one in remedy.split("; ") if not one.startswith(ADOPTED_ANEW)) or "try again"
    return f"the store {name} {state}; {consequence}; {remedy}"
