"""PostgreSQL as a store's database: many schedulers, and the lease is in the shard's row.

::

    writers    READ COMMITTED; the first statement locks the shard's row with its epoch (``fence``)
               ├─ a takeover waits there for an open commit
               └─ and whoever it waited for finds another epoch and writes nothing: so no stronger isolation is needed
    readers    autocommit; each statement sees what was committed before it began
    lease      lease_until_ms by clock_timestamp() of the server, whatever the schedulers' clocks say

A holder that is stopped (SIGSTOP, a frozen machine) in an open transaction would keep the row's lock. The server ends
such a session after ``idle_in_transaction_session_timeout``, half the lease, and a connection whose other end answers
nothing after ``tcp_user_timeout``: so a standby waits no longer than for any other dead holder.

What a commit survives
    durability "disk"     synchronous_commit as the server has it (on): a crash of the server, loss of power
    durability "memory"   synchronous_commit off: the death of any process; after a crash of the server the last
                          fractions of a second may be missing, and nothing is torn
    durable=False         off in both

New rows come by COPY: 5,000 rows of 1.2 kB take a third of the time of a pipelined executemany.
Tables are made for what happens to them: see ``TUNING``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from sqlalchemy import BigInteger, Connection, Dialect, Engine, Table, cast, create_engine, extract, func, insert, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_wheel.errors import StoreError
from celery_wheel.store.postgresql_words import in_words
from celery_wheel.store.prepared import Prepared
from celery_wheel.store.statements import Statements
from celery_wheel.store.usable import Usable

CONNECT_TIMEOUT_S = 3
#: A lock that is waited for so long is somebody else's transaction by hand; the holder's take 0.3 s at most.
LOCK_TIMEOUT_MS = 10_000
CONNECTIONS = 8

#: Locks the making of tables: any number that nobody else is likely to use.
MAKING = 0x776865656C

#: A shard's, a lane's and a tally's row is rewritten many times a second: half-empty pages let that happen in place
#: (HOT), and vacuum must not wait for a fifth of a table that has few rows. Of timers and payloads as many die as are
#: born: vacuum goes over them after a fiftieth, without pausing, so that their space is used again.
TUNING = {
    "wheel_shard": "fillfactor=50, autovacuum_vacuum_threshold=200, autovacuum_vacuum_scale_factor=0",
    "wheel_lane": "fillfactor=50, autovacuum_vacuum_threshold=200, autovacuum_vacuum_scale_factor=0",
    "wheel_tally": "fillfactor=70, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.05",
    "wheel_timer": "autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0",
    "wheel_payload": "autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0",
    "wheel_batch": "autovacuum_vacuum_scale_factor=0.05",
    "wheel_inbox": "autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0",
}


class Copied(Prepared):
    """The insertion of many rows, by COPY."""

    __slots__ = ("_copy",)

    def __init__(self, table: Table, dialect: Dialect) -> None:
        super().__init__(insert(table), dialect)
        self._copy = f"COPY {table.name} ({', '.join(column.name for column in table.columns)}) FROM STDIN"

    def many(self, connection: Connection, rows: Any) -> None:
        if not rows:
            return
        driver: Any = connection.connection.dbapi_connection
        try:
            with driver.cursor() as cursor, cursor.copy(self._copy) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:  # COPY goes around SQLAlchemy, its errors must not
            raise DBAPIError(self._copy, None, error) from error


class PostgresqlDatabase(Usable):
    def __init__(self, url: URL, *, durability: str, lease_ms: int) -> None:
        super().__init__(url.set(drivername="postgresql", password=None).render_as_string())
        self.statements = _statements()
        self._relaxed = durability == "memory"
        limits = {
            "idle_in_transaction_session_timeout": lease_ms // 2,
            "lock_timeout": LOCK_TIMEOUT_MS,
            "client_connection_check_interval": 1_000,
        }
        arguments = {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": lease_ms,
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "application_name": "celery-wheel",
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        }
        self._writer = _engine(url, "READ COMMITTED", arguments)
        self._reader = _engine(url, "AUTOCOMMIT", arguments)

    # -- transactions --------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        self._check_usable()
        with self._in_words(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        self._check_usable()
        with self._in_words(), self._writer.begin() as connection:
            if self._relaxed or not durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
            yield connection

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(in_words(self.name, error)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise StoreError(
                f"a value does not fit into the store {self.name} ({error}); nothing of its change was written; "
                "this is a defect, please report it"
            ) from error

    # -- the lease: in the row -----------------------------------------------------------------------

    def hold(self, shard: int, holder: str) -> bool:
        return True

    def let_go(self, shard: int) -> None:
        return

    def now_ms(self) -> int | None:
        with self.reading() as connection:
            now_ms: int = self.statements.clock_ms(connection).scalar_one()
        return now_ms

    # -- housekeeping --------------------------------------------------------------------------------

    def prepare_to_write(self) -> None:
        """Nothing."""

    def prepare_tables(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:making)"), {"making": MAKING})

    def tables_made(self, connection: Connection) -> None:
        for table, parameters in TUNING.items():
            connection.exec_driver_sql(f"ALTER TABLE {table} SET ({parameters})")

    def tidy(self) -> None:
        """Nothing: autovacuum does it."""

    def close(self) -> None:
        self._closed = True
        self._writer.dispose()
        self._reader.dispose()


@cache
def _statements() -> Statements:
    clock_ms = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
    dialect: Dialect = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
    return Statements(dialect, postgresql.insert, Copied, clock_ms)


def _engine(url: URL, isolation_level: Any, arguments: dict[str, Any]) -> Engine:
    return create_engine(
        url,
        isolation_level=isolation_level,
        pool_size=CONNECTIONS,
        max_overflow=CONNECTIONS,
        pool_timeout=LOCK_TIMEOUT_MS / 1_000,
        connect_args=arguments,
    )
