"""The wheel itself, one step at a time: the real engine and the real store, in the test's own thread.

::

    wheel queue ─► take_in ─► the store, a SQLite file of this test ─► step: the next task leaves for its queue

What arrives is taken in at once, so that ``celery_wheel.control.Wheel(app)`` in the tested code sees it as well. The
file of an empty store is made once a process and copied; the engine begins with the first delayed task.

What is asked of the wheel (``app.wheel.cancel`` and its like) is put into the store's inbox as ever, and the engine is
turned instead of waiting for its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

from celery_wheel.engine.context import Round, run_round
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.limits import Limits
from celery_wheel.errors import WheelError
from celery_wheel.store import open_store
from celery_wheel.store.model import PAUSED
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import Criteria, Detail, Task
from celery_wheel.testing.broker import MemoryBroker
from celery_wheel.testing.clock import VirtualClock

#: One task a step: what it does may concern the next, also one that is due at the same instant.
LIMITS = Limits(chunk_count=1)


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
        self._store: FullStore | None = None
        self._engine: Engine | None = None
        self._again_ms = 0  #: before it nothing that is due may leave

    def arrive(self, raw: dict[str, Any]) -> None:
        """A message that was published to the wheel queue."""
        with self._lock:
            self._broker.arrive(raw)
            self._take_in()

    # -- celery_wheel.transaction.Inbox: a test's own transaction never commits, so nothing waits for that -------------

    in_transaction = False

    def check(self) -> None:
        """Whatever ``wheel_store`` is outside of the test."""

    def ask(self, shard: int, kind: str, payload: bytes) -> int:
        with self._lock:
            store = self._opened()
            item = store.ask(shard, kind, payload)
            self._round("ingest")
        return item

    def close(self) -> None:
        self._broker.close()
        if self._store is not None:
            self._store.close()

    # -- what waits ----------------------------------------------------------------------------------

    def next(self) -> tuple[Task, int] | None:
        """The next task to leave, and when; what is paused does not, until it is resumed."""
        store = self._store
        if store is None:
            return None
        paused = {(gate.scope, gate.name) for gate in store.gates(0) if gate.state == PAUSED}
        if ("all", "") in paused:
            return None
        found = store.browse.pending(Criteria(), limit=10**9 if paused else 1).items
        open_ = (one for one in found if paused.isdisjoint((("queue", one.target), ("task", one.task))))
        return next(((one, max(one.due_ms, self._again_ms)) for one in open_), None)

    def waiting(self) -> list[Detail]:
        """All that waits, the next due first, with bytes."""
        store = self._store
        page = store.browse.pending(Criteria(), limit=10**9) if store else None
        found = (store.browse.detail(task.id) for task in page.items) if store and page else ()
        return [one for one in found if one is not None]

    def step(self, first: Task) -> list[Task]:
        """Let the next task leave, which is due; returns what left: nothing, where it leaves slowly, not yet."""
        store, sent = self._opened(), self._broker.sent
        with self._lock:
            sent.clear()
            while self._round("prefetch", "dispatch", "settle") and not sent:
                pass  # what is paused goes out of the way, one a round
            wait_ms = self._engine.wait_ms() if self._engine else 0
        if not sent and wait_ms:
            self._again_ms = self._clock.now_ms() + wait_ms
            return []
        if not sent:
            raise WheelError(f"task {first.task} with id {first.task_id} was due and did not leave the wheel")
        # As a rule it alone. Where a freezer was set back there are several lanes, and one leaves of each.
        others = [store.browse.detail(row.id) for row in sent if row.id != first.id]
        return [*([first] if len(others) < len(sent) else []), *(one.task for one in others if one is not None)]

    # -- commands ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Carry out what was asked of the wheel."""
        with self._lock:
            self._opened()
            self._round("ingest")

    # -- the engine ----------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """All that arrived goes to the store."""
        if self._broker.arrivals:
            self._opened()
        while self._broker.arrivals:
            self._round("ingest")

    def _opened(self) -> FullStore:
        if self._store is None:
            self._store = store = open_store(f"sqlite:///{self._path}", durability="memory")
            self._engine = Engine(0, "test", store, self._broker, self._clock, LIMITS)
            self._round("tend")
        return self._store

    def _round(self, *activities: str) -> bool:
        """Whether any of them had something to do."""
        engine, busy = self._engine, False
        if engine is not None:
            engine.clock.accept()  # the time that a test sets is right, also where it goes back
        for activity in activities:
            ended = run_round(getattr(engine, activity)())
            if ended is Round.FAILED:
                raise WheelError(f"the wheel's engine could not {activity}; its log says why")
            busy |= ended is Round.BUSY
        return busy


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory(prefix="celery-wheel-") as folder:
        path = Path(folder) / "wheel.sqlite3"
        open_store(f"sqlite:///{path}", durability="memory").close()
        return path.read_bytes()
