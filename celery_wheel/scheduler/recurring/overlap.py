"""Overlap: earlier runs that a later run replaces (policy "cancel_running") are cancelled wherever they are.

::

    pending                 a cancel command in the inbox of every shard; the row's outcome is ``cancelled``
    published, or running   a broadcast ``revoke(terminate=True)``: workers discard the message, or end its process
    retried meanwhile       the tombstone of that command cancels the retry

The engine calls it before it commits the later run, and again where that commit failed. A broadcast reaches the workers
that listen at that moment. Pools without processes (threads, gevent, solo) cannot end a run; there it goes on beside
the later one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from celery_wheel.requests.request import TASKS_AT_ONCE
from celery_wheel.store.model import CANCEL
from celery_wheel.store.ports import FullStore

REASON = "a later run of its schedule replaces it"

#: The longest wait for a connection, in seconds; the round of the engine waits for the broadcast.
CONNECT_S = 5


class ReplacedRuns:
    """Implements ``engine.recurring.port.OnOverlap``."""

    def __init__(self, app: Any, store: FullStore) -> None:
        self._app = app
        self._store = store

    def __call__(self, task_ids: Sequence[str]) -> None:
        """Cancel the runs. Raises the store's and the broker's errors."""
        ids = list(task_ids)
        commands = []
        for start in range(0, len(ids), TASKS_AT_ONCE):
            names = ids[start : start + TASKS_AT_ONCE]
            command = {"task_ids": names, "reason": REASON, "actor": "wheel", "for_good": True}
            commands.append((CANCEL, json.dumps(command).encode()))
        self._store.put_inboxes(dict.fromkeys(range(self._store.shards), commands))
        with self._app.connection_for_write(heartbeat=0) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
            self._app.control.revoke(ids, terminate=True, connection=connection)
