"""The wheel itself, one step at a time: the real engine and the real store, in the test's own thread.

::

    wheel queue ─► take_in ─► SqlStore, a SQLite file of this test ─► step: the next task leaves for its queue

What arrives is taken in at once, so that ``celery_wheel.control.Wheel(app)`` in the tested code sees it as well. The
file of an empty store is made once a process and copied; the engine begins with the first delayed task.

A command is given to the engine where it has it (``cancel``, by the store's inbox). To move a task, its row is
cancelled and its message comes anew, with another eta.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

from celery_wheel.engine.context import Round
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.limits import Limits
from celery_wheel.errors import WheelError
from celery_wheel.ids import uuid7
from celery_wheel.store import browse, open_store
from celery_wheel.store.model import Message
from celery_wheel.store.sql import SqlStore
from celery_wheel.testing.broker import MemoryBroker
from celery_wheel.testing.clock import VirtualClock, ms_of

#: One task a step: what it does may concern the next, also one that is due at the same instant.
LIMITS = Limits(chunk_count=1)

DONE, TOO_LATE, UNKNOWN = "done", "too_late", "unknown"


class Inbound:
    """Args: ``path`` of the store's file, ``rejected`` is told of what cannot be taken in or sent."""

    def __init__(
        self, app: Any, clock: VirtualClock, path: Path, rejected: Callable[[dict[str, Any], str], None]
    ) -> None:
        path.write_bytes(_empty_store())
        self._clock = clock
        self._path = path
        self._lock = RLock()  # tested code may send from other threads
        self._broker = MemoryBroker(app, rejected)
        self._store: SqlStore | None = None
        self._engine: Engine | None = None

    def arrive(self, raw: dict[str, Any]) -> None:
        """A message that was published to the wheel queue."""
        with self._lock:
            self._broker.arrive(raw)
            self._take_in()

    def close(self) -> None:
        self._broker.close()
        if self._store is not None:
            self._store.close()

    # -- what waits ----------------------------------------------------------------------------------

    def next(self) -> browse.Task | None:
        """The next task to leave, due or not."""
        store = self._store
        found = browse.pending(store, browse.Criteria(), limit=1).items if store else []
        return found[0] if found else None

    def waiting(self) -> list[browse.Detail]:
        """All that waits, the next due first, with bytes."""
        store = self._store
        page = browse.pending(store, browse.Criteria(), limit=10**9) if store else None
        found = (browse.detail(store, task.id) for task in page.items) if store and page else ()
        return [one for one in found if one is not None]

    def step(self, first: browse.Task) -> list[browse.Task]:
        """Let the next task leave, which is due; returns what left."""
        store, sent = self._store, self._broker.sent
        with self._lock:
            sent.clear()
            self._round("load", "dispatch", "settle")
        if store is None or not sent:
            raise WheelError(f"task {first.task} with id {first.task_id} was due and did not leave the wheel")
        # As a rule it alone. Where a freezer was set back there are several lanes, and one leaves of each.
        others = [browse.detail(store, row.id) for row in sent if row.id != first.id]
        return [*([first] if len(others) < len(sent) else []), *(one.task for one in others if one is not None)]

    # -- commands ------------------------------------------------------------------------------------

    def cancel(self, task_id: str, reason: str = "") -> str:
        return self._withdraw(task_id, reason)[0]

    def move(self, task_id: str, eta: datetime) -> str:
        """Give a waiting task another eta."""
        with self._lock:
            verdict, moved = self._withdraw(task_id, "moved")
            self._broker.arrivals.extend(_anew(detail, ms_of(eta)) for detail in moved)
            self._take_in()
        return verdict

    def _withdraw(self, task_id: str, reason: str) -> tuple[str, list[browse.Detail]]:
        store = self._store
        found = browse.find(store, task_id) if store else []
        waits = [one for one in found if one.state == "pending"]
        if store is None or not waits:
            return (TOO_LATE if any(one.state == "dispatched" for one in found) else UNKNOWN), []
        command = {"task_id": task_id, "reason": reason, "actor": "test"}
        with self._lock:
            store.put_inbox(0, [("cancel", json.dumps(command).encode())])
            self._round("ingest")
        return DONE, waits

    # -- the engine ----------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """All that arrived goes to the store."""
        if self._broker.arrivals and self._engine is None:
            self._open()
        while self._broker.arrivals:
            self._round("ingest")

    def _open(self) -> None:
        self._store = store = open_store(f"sqlite:///{self._path}", durability="memory")
        self._engine = Engine(0, "test", store, self._broker, self._clock, LIMITS)
        self._round("tend")

    def _round(self, *activities: str) -> None:
        engine = self._engine
        for activity in activities:
            for step in getattr(engine, activity)():
                if step is Round.FAILED:
                    raise WheelError(f"the wheel's engine could not {activity}; its log says why")


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory(prefix="celery-wheel-") as folder:
        path = Path(folder) / "wheel.sqlite3"
        open_store(f"sqlite:///{path}", durability="memory").close()
        return path.read_bytes()


def _anew(detail: browse.Detail, eta_ms: int) -> Message:
    task = detail.task
    return Message(
        envelope_id=uuid7(),
        task_id=task.task_id,
        task=task.task,
        eta_ms=eta_ms,
        created_ms=task.created_ms,
        exchange=detail.exchange,
        exchange_type=detail.exchange_type,
        routing_key=detail.routing_key,
        queue=detail.queue,
        priority=task.priority,
        key=task.key,
        expires_ms=task.expires_ms,
        queue_expires_ms=None,
        headers=detail.headers,
        properties=detail.properties,
        body=detail.body,
    )
