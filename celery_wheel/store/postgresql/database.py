"""A PostgreSQL database as the database of a store: many sessions, and the lease is in the shard's row.

::

    a holder that is      ends by
    killed                its sessions, which end with it; the lease expires by the database's clock alone
    stopped               its lease; inside a transaction, by idle_in_transaction_session_timeout, half of the lease, or
                          (in a COPY, or in a message) by the next holder: ``StoppedHolders``
    disconnected          tcp_user_timeout and keepalives, half of the lease, on both sides

    a durable commit      the session's synchronous_commit ("on": fsync, and its synchronous standbys), never "off"
    durable=False         synchronous_commit=off, as always with durability "memory": a crash of the server may lose
                          the last moments, in whole commits; the next durable commit makes it durable too

READ COMMITTED is enough: a holder's transactions and a takeover begin with the shard's row at an epoch, and the second
of two waits for it and reads it anew. Non-promise: a pooler that shares sessions by transaction (pgbouncer's
``pool_mode=transaction``) loses prepared statements and settings. Connect to the server, or to a pool by session.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from socket import gethostname
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from celery_wheel.errors import StoreError
from celery_wheel.store.bell import CHANNEL
from celery_wheel.store.ports.pages import StoreSize
from celery_wheel.store.postgresql.bell import NotifyBell
from celery_wheel.store.postgresql.errors import Sent, describe, may_pass, sqlstate
from celery_wheel.store.postgresql.server import STATEMENTS, read_server
from celery_wheel.store.postgresql.sessions import STATEMENT_TIMEOUT_MS, StoppedHolders, connect, connect_args, prepare
from celery_wheel.store.postgresql.statements import CLOCK_SQL, statements
from celery_wheel.store.sql.database import errors_for_people
from celery_wheel.store.sql.schema import metadata
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.store_model import Bell, ServerState


class PostgresqlPolls:
    """Cheap polls: whether a query has a row, as a prepared statement.

    By libpq alone: a cursor's conversions and the pool's checks take three times as long as all the rest.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pooled: Any = None
        self._names: dict[str, bytes] = {}  #: of the statements that the session has prepared

    def has_row(self, sql: str, places: tuple[int, ...]) -> bool:
        """Whether the query has a row. Raises the driver's error, after which the next poll connects anew."""
        return bool(self._found(sql, places).ntuples)

    def number(self, sql: str, places: tuple[int, ...]) -> int | None:
        """Return the one number of a query, None where it has no row; raises as ``has_row`` does."""
        found = self._found(sql, places)
        return int(found.get_value(0, 0)) if found.ntuples else None

    def _found(self, sql: str, places: tuple[int, ...]) -> Any:
        with self._lock:
            try:
                if self._pooled is None:
                    self._pooled = self._engine.raw_connection()
                session = self._pooled.pgconn
                if sql not in self._names:
                    self._prepare(session, sql, len(places))
                found = session.exec_prepared(self._names[sql], [b"%d" % value for value in places])
                if found.status != ExecStatus.TUPLES_OK:
                    raise error_from_result(found)
            except BaseException:
                self._drop()
                raise
            return found

    def _prepare(self, session: Any, sql: str, count: int) -> None:
        name = b"wheel_poll_%d" % len(self._names)
        numbered = sql.replace("%s", "${}").format(*range(1, count + 1))
        session.prepare(name, numbered.encode())
        self._names[sql] = name  # a statement that was not prepared fails when it runs

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        pooled, self._pooled = self._pooled, None
        self._names.clear()
        if pooled is not None:
            pooled.invalidate()


#: Six jobs of an engine use the store; the other connections are for several shards, and are closed after use.
CONNECTIONS, MORE_CONNECTIONS = 6, 26

#: A hurried transaction waits so long for a lock, or a quarter of a lease: it may have locked the rows of other shards,
#: whose leases are not renewed until it ends.
HURRIED_MS = 500

#: The advisory lock of the process that makes tables: "wheel" as a number.
MAKING_LOCK = 0x776865656C

#: After these errors the session is unusable and leaves the pool: it is read-only (of a standby, or begun while
#: default_transaction_read_only was set), or the server does not have the statements that it prepared.
_SPOILED = ("25006", "26000", "42P05", "0A000")


class PostgresqlDatabase:
    def __init__(self, url: URL, *, durability: str, lease_ms: int) -> None:
        self.name = _name(url)
        self.statements = statements()
        self._commits = {None: durability == "disk", True: True, False: False}
        self._stopped = StoppedHolders(self.name, lease_ms)
        self._hurried = f"; SET LOCAL lock_timeout = {min(lease_ms // 4, HURRIED_MS)}"
        self._engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,  # an error would quote the bodies of its statement
            pool_size=CONNECTIONS,
            max_overflow=MORE_CONNECTIONS - CONNECTIONS,
            pool_use_lifo=True,
            use_native_hstore=False,
            connect_args=connect_args(url, lease_ms),
        )
        event.listen(self._engine, "do_connect", connect)
        event.listen(self._engine, "connect", lambda driver, _: prepare(driver, self.name, lease_ms))
        event.listen(self._engine, "checkout", _check_alive)
        self._polls = PostgresqlPolls(self._engine)
        self._pid = os.getpid()
        self._closed = False
        self._open = 0
        self._idle = threading.Condition()

    def reading(self) -> AbstractContextManager[Connection]:
        return self._connected(reading=True)

    @contextmanager
    def _connected(self, *, reading: bool) -> Iterator[Connection]:
        with self._in_use():
            with self._errors(Sent.NOTHING, reading=reading):
                connection = self._engine.connect()
            with self._errors(Sent.STATEMENTS, reading=reading), connection:
                try:
                    yield connection
                except (SQLAlchemyError, psycopg.Error) as error:
                    if sqlstate(error) in _SPOILED:
                        connection.invalidate()
                    raise

    def _errors(self, sent: Sent, *, reading: bool = False) -> AbstractContextManager[None]:
        said, errors = partial(describe, sent=sent), (SQLAlchemyError, psycopg.Error)
        if reading or sent is not Sent.STATEMENTS:
            return errors_for_people(self.name, said, *errors, reading=reading)
        return errors_for_people(self.name, said, *errors, passes=may_pass)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.reading() as connection:
            try:
                connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield connection
            finally:
                _roll_back(connection)

    def poll(self, query: Prepared, places: tuple[Any, ...]) -> bool:
        with self._in_use(), self._errors(Sent.STATEMENTS, reading=True):
            return self._polls.has_row(query.sql, places)

    def number(self, query: Prepared, **values: int) -> int | None:
        with self._in_use(), self._errors(Sent.STATEMENTS, reading=True):
            return self._polls.number(query.sql, query.places(values))

    @contextmanager
    def writing(self, *, durable: bool | None = None, hurried: bool = False) -> Iterator[Connection]:
        begin = ("BEGIN" if self._commits[durable] else _BEGIN_LAZY) + (self._hurried if hurried else "")
        with self._connected(reading=False) as connection:
            try:
                connection.exec_driver_sql(begin)
                yield connection
                with self._errors(Sent.COMMIT):
                    connection.exec_driver_sql("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextmanager
    def making(self) -> Iterator[Connection]:
        with self.writing(durable=True) as connection:
            connection.exec_driver_sql(_UNHURRIED)
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MAKING_LOCK})")
            yield connection
            for statement in STATEMENTS:
                connection.exec_driver_sql(statement)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Refuse where the connections are closed or another process's; ``close`` waits for the block."""
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

    def may_pass(self, error: Exception) -> bool:
        return may_pass(error)

    def is_replaced(self) -> bool:
        return False

    def identity(self) -> tuple[str, str, str]:
        """A promoted replica has the identity of its former primary: it is the same store, fenced by its leases."""
        with self.reading() as connection:
            # Hosted servers may keep the server's own number to themselves.
            shown = connection.exec_driver_sql(_MAY_SEE_SERVER).scalar_one()
            instance: str = connection.exec_driver_sql(_INSTANCE.format(_SERVER if shown else "0")).scalar_one()
        return instance, self.name, f"{self.name}, seen from {gethostname()}"

    def now_ms(self) -> int | None:
        with self.reading() as connection:
            now_ms: int = connection.exec_driver_sql(f"SELECT {CLOCK_SQL}").scalar_one()
        return now_ms

    def hold(self, shard: int, holder: str) -> bool:
        return True

    def release(self, shard: int) -> None:
        """Do nothing: the lease is in the shard's row."""

    def evict_stopped_holder(self, connection: Connection, shard: int, own_epoch: int) -> bool:
        return self._stopped.end(connection, shard, own_epoch)

    def size(self) -> StoreSize:
        """Return the size of the database, with other tables in it; the server's disk is unknown to its clients."""
        with self.reading() as connection:
            size: int = connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()
        return StoreSize(size, None)

    def server(self) -> ServerState:
        with self.reading() as connection:
            return read_server(connection)

    def ring(self) -> None:
        with suppress(StoreError), self.reading() as connection:  # schedulers look a second later
            connection.exec_driver_sql(f"NOTIFY {CHANNEL}")

    def bell(self) -> Bell:
        return NotifyBell(self._session_apart, self.ring)

    def _session_apart(self) -> Any:
        """Return a new session of the driver that leaves the pool."""
        with self._in_use(), self._errors(Sent.NOTHING):
            pooled = self._engine.raw_connection()
            session = pooled.driver_connection
            pooled.detach()
        return session

    def tidy(self) -> None:
        """Do nothing: autovacuum does it, see ``server``."""

    def scrub(self) -> None:
        """Do nothing: the server recycles its log by itself."""

    def rewrite(self) -> None:
        with self._connected(reading=False) as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            try:
                for table in metadata.sorted_tables:
                    connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {table.name}")
            finally:
                connection.exec_driver_sql("RESET statement_timeout")

    def close(self) -> None:
        with self._idle:
            self._closed = True
            if self._pid == os.getpid():
                self._idle.wait_for(lambda: self._open == 0, STATEMENT_TIMEOUT_MS / 1000)
        if self._pid == os.getpid():
            self._polls.close()
        self._engine.dispose(close=self._pid == os.getpid())


_MAY_SEE_SERVER = "SELECT has_function_privilege('pg_control_system()', 'execute')"
_SERVER = "(SELECT system_identifier FROM pg_control_system())"
_INSTANCE = (
    "SELECT concat_ws('.', {}, (SELECT oid FROM pg_database WHERE datname = current_database()), "
    "to_regclass('wheel_meta')::oid)"
)

_BEGIN_LAZY = "BEGIN; SET LOCAL synchronous_commit = off"

#: No takeover waits for the transaction that makes tables, and its process may get no CPU for a while. All others that
#: open the new store wait for it; an index of a large table may take longer than any other statement.
_UNHURRIED = f"""
    SET LOCAL idle_in_transaction_session_timeout = {STATEMENT_TIMEOUT_MS};
    SET LOCAL lock_timeout = {STATEMENT_TIMEOUT_MS};
    SET LOCAL statement_timeout = 0
"""


def _roll_back(connection: Connection) -> None:
    if connection.invalidated:
        return
    try:
        connection.exec_driver_sql("ROLLBACK")
    except (SQLAlchemyError, psycopg.Error):  # the first error is reported; the end of the session rolls back as well
        connection.invalidate()


def _name(url: URL) -> str:
    """Return host and database, without the password and without options, which may hold one."""
    host = url.host or url.query.get("host") or "local socket"
    if not isinstance(host, str):
        host = ",".join(host)
    return f"{url.database or ''} on {host}" + (f":{url.port}" if url.port else "")


def _check_alive(driver: Any, record: Any, _proxy: Any) -> None:
    """Replace a pooled session that the server ended while it was idle; no transaction is affected.

    The check costs no message: a server sends an idle session hardly anything but its end, so any data to read counts
    as the end. Where it was another message, the new connection is an unnecessary one.
    """
    if not record.info.setdefault("was used", False):
        record.info["was used"] = True
        return
    idle = select.poll()
    if not driver.closed:
        idle.register(driver.fileno(), select.POLLIN)
    if driver.closed or idle.poll(0):
        raise DisconnectionError("the server ended the session")
