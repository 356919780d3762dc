"""Cheap polls of a PostgreSQL database: whether a query has a row, on a session of their own, as a prepared statement.

A poll costs one message to the server and back. It runs by libpq alone: a cursor's conversions and the pool's checks
take three times as long as all the rest.
"""

from __future__ import annotations

import threading
from typing import Any

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from sqlalchemy import Engine


class PostgresqlPolls:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pooled: Any = None
        self._names: dict[str, bytes] = {}  #: of the statements that the session has prepared

    def has_row(self, sql: str, places: tuple[int, ...]) -> bool:
        """Whether the query has a row. Raises the driver's error, after which the next poll connects anew."""
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
            return bool(found.ntuples)

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
