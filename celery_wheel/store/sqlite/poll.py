"""Cheap polls of a SQLite file: whether a query has a row, asked again only where the file has changed since.

``PRAGMA data_version`` differs after a commit of any other connection, also of another process. It costs a few system
calls and is only comparable within one connection, so the polls have a connection of their own, which never writes.
"""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine

from celery_wheel.store.sqlite.fork_gate import FORK_GATE


class SqlitePolls:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pooled: Any = None
        self._cursor: Any = None
        self._versions: dict[tuple[str, tuple[Any, ...]], int] = {}  #: in which a query had no row

    def has_row(self, sql: str, places: tuple[Any, ...]) -> bool:
        """Whether the query has a row. Raises the driver's error, after which the next poll connects anew."""
        with FORK_GATE.entered(), self._lock:
            try:
                if self._pooled is None:
                    self._pooled = self._engine.raw_connection()
                    self._cursor = self._pooled.cursor()
                # ``fetchall`` ends the read: an open one would keep the log from being copied back.
                [(version,)] = self._cursor.execute("PRAGMA data_version").fetchall()
                if self._versions.get((sql, places)) == version:
                    return False
                found = self._cursor.execute(sql, places).fetchall()
            except BaseException:
                self._drop()
                raise
            if not found:
                self._versions[sql, places] = version
            return bool(found)

    def close(self) -> None:
        with self._lock:
            self._drop()
            self._engine.dispose()

    def _drop(self) -> None:
        pooled, self._pooled = self._pooled, None
        self._versions.clear()
        if pooled is not None:
            pooled.invalidate()
