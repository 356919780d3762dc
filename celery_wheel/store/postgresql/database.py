"""A PostgreSQL database as the store's: many sessions, and the lease is in the shard's row.

::

    reading   autocommit: each statement sees what was committed before it began, and waits for nobody
    writing   BEGIN ─► the shard's row is locked, if its epoch is ours ─► … ─► COMMIT
    taking    UPDATE wheel_shard SET epoch = epoch + 1 … WHERE nobody holds it, or its lease is over, or it is ours

READ COMMITTED is enough. Whatever a holder writes begins by updating its shard's row where the epoch is its own. Two
such transactions run one after the other: the second waits for the row, reads it anew, and finds either its epoch, and
then all the first has committed, or another's, and then writes nothing. A takeover is an update of the same row, so
nothing of an old term commits after it. What is not behind the fence (the inbox) is added only, and deleted behind it.

Who stops, and what ends it; the lease runs by the database's clock, so no other clock has a say in it
    killed                            its sessions end with it; the lease runs out
    stopped between transactions      the lease runs out; when it wakes up, it is fenced
    stopped inside a transaction      idle_in_transaction_session_timeout, half of the lease; and where PostgreSQL does
                                      not count that as idle (in the middle of a COPY, or of a message), whoever takes
                                      the shard ends the session that still has the row locked: ``holding``
    cut off                           tcp_user_timeout and keepalives, half of the lease, on both sides

What a commit survives
    durability "disk"     what synchronous_commit of the server says ("on": fsync; synchronous standbys, if it has any),
                          but never "off"
    durability "memory"   synchronous_commit=off: a crash of the server may lose the last moments, in whole commits
    durable=False         the same as "memory"; the next durable commit takes it along

Plans: every statement has an index made for it, so the planner is not asked whether to scan the table instead. After
a burst of which its statistics do not know it would, and read 10 million rows for a chunk of 1,000. And each plan is
made anew (a tenth of a millisecond): one that was kept from when the tables were empty took the wrong index.

Prepared statements and session settings do not go through a pooler that shares sessions by transaction (pgbouncer's
``pool_mode=transaction``): connect to the server itself, or to a pool by session.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from celery_wheel.errors import StoreError
from celery_wheel.store.postgresql.holding import Stopped
from celery_wheel.store.postgresql.sessions import STATEMENT_TIMEOUT_MS, connect_args, patience_ms, prepare
from celery_wheel.store.postgresql.statements import CLOCK_SQL, statements
from celery_wheel.store.postgresql.tables import set_parameters
from celery_wheel.store.postgresql.words import in_words, sqlstate

#: An engine has six threads; the rest is for several shards, and is closed when it is not needed.
CONNECTIONS, MORE_CONNECTIONS = 6, 26

#: "wheel" as a number: who makes tables takes this lock first.
MAKING_LOCK = 0x776865656C

#: After these errors the session itself is no longer what it should be, and goes out of the pool: it may only read (of
#: a standby, or begun while default_transaction_read_only was set), or the server has not the statements it prepared.
_SPOILED = ("25006", "26000", "42P05", "0A000")


class PostgresqlDatabase:
    def __init__(self, url: URL, *, durability: str, lease_ms: int) -> None:
        self.name = _name(url)
        self.statements = statements()
        self._commits = {None: durability == "disk", True: True, False: False}
        self._stopped = Stopped(self.name, patience_ms(lease_ms), lease_ms)
        self._engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            pool_size=CONNECTIONS,
            max_overflow=MORE_CONNECTIONS - CONNECTIONS,
            pool_use_lifo=True,
            use_native_hstore=False,
            connect_args=connect_args(url, lease_ms),
        )
        event.listen(self._engine, "connect", lambda driver, _: prepare(driver, self.name, lease_ms))
        event.listen(self._engine, "checkout", _check_alive)
        self._pid = os.getpid()
        self._closed = False
        self._open = 0
        self._idle = threading.Condition()

    # -- transactions --------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._in_use(), self._in_words(), self._engine.connect() as connection:
            try:
                yield connection
            except (SQLAlchemyError, psycopg.Error) as error:
                if sqlstate(error) in _SPOILED:
                    connection.invalidate()
                raise

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.reading() as connection:
            try:
                connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield connection
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self, *, durable: bool | None = None) -> Iterator[Connection]:
        with self.reading() as connection:
            try:
                connection.exec_driver_sql("BEGIN" if self._commits[durable] else _BEGIN_LAZY)
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextmanager
    def making(self) -> Iterator[Connection]:
        with self.writing(durable=True) as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MAKING_LOCK})")
            yield connection
            set_parameters(connection)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Refuse where the connections are another process's, or closed; and let ``close`` wait."""
        if self._pid != os.getpid():
            raise StoreError(
                f"the store {self.name} was opened before this process was forked; nothing was read or written; "
                "open it anew in each process"
            )
        with self._idle:
            if self._closed:
                raise StoreError(f"the store {self.name} was closed; nothing was read or written; open it again")
            self._open += 1
        try:
            yield
        finally:
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, psycopg.Error) as error:
            raise StoreError(in_words(self.name, error)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise StoreError(
                f"a value does not fit into the store {self.name} ({error}); nothing of its change was written; "
                "this is a defect, please report it"
            ) from error

    # -- the lease -----------------------------------------------------------------------------------

    def replaced(self) -> bool:
        return False

    def now_ms(self) -> int | None:
        with self.reading() as connection:
            now_ms: int = connection.exec_driver_sql(f"SELECT {CLOCK_SQL}").scalar_one()
        return now_ms

    def hold(self, shard: int, holder: str) -> bool:
        return True

    def let_go(self, shard: int) -> None:
        """Nothing: the row says who holds the shard."""

    def make_way(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        return self._stopped.end(connection, shard, own_epoch)

    # -- housekeeping --------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Nothing: autovacuum does it, see ``tables``."""

    def close(self) -> None:
        with self._idle:
            self._closed = True
            if self._pid == os.getpid():
                self._idle.wait_for(lambda: self._open == 0, STATEMENT_TIMEOUT_MS / 1000)
        self._engine.dispose(close=self._pid == os.getpid())


_BEGIN_LAZY = "BEGIN; SET LOCAL synchronous_commit = off"


def _roll_back(connection: Connection) -> None:
    if connection.invalidated:
        return
    try:
        connection.exec_driver_sql("ROLLBACK")
    except (SQLAlchemyError, psycopg.Error):  # the first error is the one to tell of; without us the server rolls back
        connection.invalidate()


def _name(url: URL) -> str:
    """Host and database; neither the password nor options, which may hold one."""
    host = url.host or url.query.get("host") or "local socket"
    if not isinstance(host, str):
        host = ",".join(host)
    return f"{url.database or ''} on {host}" + (f":{url.port}" if url.port else "")


def _check_alive(driver: Any, record: Any, _proxy: Any) -> None:
    """A session that the server ended while nobody used it is replaced before it is given out; nothing was under way.

    Costs no message. To a session that asks nothing a server says little but that it ends, so something to read there
    is enough; where it was something else, a connection was made for nothing.
    """
    if not record.info.setdefault("was given out", False):
        record.info["was given out"] = True
        return
    idle = select.poll()
    if not driver.closed:
        idle.register(driver.fileno(), select.POLLIN)
    if driver.closed or idle.poll(0):
        raise DisconnectionError("the server ended the session")
