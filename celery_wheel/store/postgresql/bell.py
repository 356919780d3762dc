"""The bell of a PostgreSQL database: a writer of the inbox notifies after its commit, and schedulers look at once.

The writer's own transaction does not notify: PostgreSQL lets only one transaction of a database commit at a time where
these have notifications, fsync and synchronous standby included. A transaction that only notifies waits for neither.

A pooler that lends sessions by transaction (pgbouncer's ``pool_mode=transaction``) loses notifications. So the bell
tells only after it has heard its own notification; else the scheduler looks every ``wheel_poll_interval``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import psycopg

from celery_wheel.errors import StoreError
from celery_wheel.store.bell import CHANNEL

#: How long the bell waits for its own notification, and when it tries again: after an error, or where it heard nothing.
HEARD_S, RETRY_S, DEAF_S = 1.0, 5.0, 300.0


class NotifyBell:
    """Used by one thread; ``connect`` returns a new session of the driver, ``ring`` notifies on another one."""

    def __init__(self, connect: Callable[[], Any], ring: Callable[[], None]) -> None:
        self._connect = connect
        self._ring = ring
        self._session: Any = None
        self._retry_s = 0.0
        self._listen()

    @property
    def tells(self) -> bool:
        return self._session is not None

    def wait(self, most_s: float) -> None:
        if self._session is None and time.monotonic() < self._retry_s:
            time.sleep(most_s)
        elif self._session is None:
            self._listen()  # the next look finds what nobody told
        else:
            try:
                self._is_heard(most_s)
            except psycopg.Error:
                self._drop(RETRY_S)

    def close(self) -> None:
        self._drop(0.0)

    def _listen(self) -> None:
        try:
            self._session = self._connect()
            self._session.execute(f"LISTEN {CHANNEL}")
            self._ring()
            if not self._is_heard(HEARD_S):
                self._drop(DEAF_S)
        except (StoreError, psycopg.Error):
            self._drop(RETRY_S)

    def _is_heard(self, most_s: float) -> bool:
        """Whether a notification comes within that time."""
        session = self._session.pgconn
        poll = select.poll()
        poll.register(session.socket, select.POLLIN)
        poll.poll(most_s * 1_000)
        session.consume_input()
        heard = False
        while session.notifies() is not None:
            heard = True
        return heard

    def _drop(self, retry_s: float) -> None:
        session, self._session = self._session, None
        self._retry_s = time.monotonic() + retry_s
        if session is not None:
            session.close()
