"""The real engine and the real store, one step at a time, in the test's own thread.

The file of an empty store is made once in a process and copied; the engine starts with the first delayed task. Commands
(``app.wheel.cancel`` and its like) go to the store's inbox as in production; instead of waiting for an answer a caller
runs the engine, by ``turn``. ``KombuPublisher`` publishes by the app's own connection: a task without a route is
rejected in tests as in production.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any, Literal, cast

from kombu.utils import json as kombu_json

from celery_wheel.broker.batches import publish_merged
from celery_wheel.broker.destinations import destinations_of
from celery_wheel.broker.envelope import BATCH, MAX_BATCH
from celery_wheel.broker.errors import not_adopted
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.broker.sealed import MessageSeal
from celery_wheel.broker.virtual import KombuPublisher
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.port import BrokerOffset, Chunk, ConfirmedChunk, Peeked, Published, ask_each
from celery_wheel.engine.round import Limits, Round, run_round
from celery_wheel.errors import WheelError
from celery_wheel.producer.transaction import TransactionalInbox
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.store import open_store
from celery_wheel.store.model import PAUSED, Message, Position, Row, Unreadable
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import Criteria, Detail, Task
from celery_wheel.store.schedule_model import RUN_ENDED, RunReport
from celery_wheel.testing.clock import VirtualClock
from celery_wheel.testing.fence import Fence, is_head, peek_arrivals

#: One task in a step: it may affect the next, even one that is due at the same instant. Or the calls of one batch.
LIMITS = Limits(chunk_count=1)


class SteppedEngine(TransactionalInbox):
    """The engine of one app; also a ``TransactionalInbox``: a test's own transaction never commits."""

    in_transaction = False

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
        self._app = app
        self._occurrence_ms = 0  #: occurrences are made from this instant on
        self._retry_ms = 0  #: due tasks are dispatched from this instant on

    def arrive(self, raw: dict[str, Any]) -> None:
        with self._lock:
            self._broker.arrive(raw)
            if self._broker.arrivals:
                self._opened()
            while self._broker.arrivals:
                self._round("ingest")

    def check(self) -> None:
        """Accept any ``wheel_store`` of the app."""

    def put_command(self, shard: int, kind: str, payload: bytes) -> int:
        with self._lock:
            item = self._opened().put_command(shard, kind, payload)
            self._round("ingest")
        return item

    def close(self) -> None:
        self._broker.close()
        if self._store is not None:
            self._store.close()

    def next(self) -> tuple[Task | None, int] | None:
        """Return the next task to dispatch, unless paused, or None for an occurrence to be made; and its instant."""
        store = self._store
        if store is None:
            return None
        task, instant_ms = self._next_task(store), store.next_schedule_ms(0)
        if instant_ms is None or (task is not None and task[1] < max(instant_ms, self._occurrence_ms)):
            return task
        return None, max(instant_ms, self._occurrence_ms)

    def _next_task(self, store: FullStore) -> tuple[Task, int] | None:
        paused = {(gate.scope, gate.name) for gate in store.gates(0) if gate.state == PAUSED}
        if ("all", "") in paused:
            return None
        found = store.browse.pending(Criteria(), limit=10**9 if paused else 1).items
        open_ = (
            task
            for task in found
            if paused.isdisjoint((("queue", task.target), ("task", task.task), ("group", task.group)))
        )
        return next(((task, max(task.due_ms, self._retry_ms)) for task in open_), None)

    def pending(self) -> list[Detail]:
        if self._store is None:
            return []
        browse = self._store.browse
        found = (browse.detail(task.id) for task in browse.pending(Criteria(), limit=10**9).items)
        return [detail for detail in found if detail is not None]

    def make_occurrences(self) -> None:
        """Make the occurrences of schedules that are due. A schedule that waits for a run is looked at again later."""
        self.turn()
        self._occurrence_ms = self._clock.now_ms() + 1_000

    def end_run(self, report: RunReport) -> None:
        """Note the end of a run as its worker reports it."""
        self._occurrence_ms = 0
        self.put_command(0, RUN_ENDED, report.payload)

    def step(self, first: Task) -> list[Task]:
        """Dispatch the next task, which is due; returns the dispatched tasks: none, where a rate delays it."""
        store, sent = self._opened(), self._broker.sent
        with self._lock:
            sent.clear()
            if self._engine is not None:
                self._engine.ctx.limits = replace(LIMITS, chunk_count=self._calls_with(store, first))
            while self._round("prefetch", "release_rows", "dispatch", "settle") and not sent:
                pass  # each round moves one paused task to a lane of its own, or into the line of its group
            wait_ms = self._engine.wait_ms() if self._engine else 0
        if not sent:
            if not wait_ms:
                raise WheelError(f"task {first.task} with id {first.task_id} was due and was not dispatched")
            self._retry_ms = self._clock.now_ms() + wait_ms
            return []
        # Mostly this task alone, or its batch. A freezer that was set back causes several lanes, each with a dispatch.
        others = [store.browse.detail(row.id) for row in sent if row.id != first.id]
        return [*([first] if len(others) < len(sent) else []), *(other.task for other in others if other is not None)]

    def _calls_with(self, store: FullStore, first: Task) -> int:
        """Return how many of the next tasks are one message: the calls of a batch that are due together."""
        if getattr(self._app.tasks.get(first.task), "wheel_batch", None) is None:
            return 1
        due = store.browse.pending(Criteria(to_ms=first.due_ms + 1), limit=MAX_BATCH).items
        details = filter(None, (store.browse.detail(task.id) for task in due))
        names = [json.loads(detail.headers or b"{}").get(BATCH) for detail in details]
        return max(1, len(list(takewhile(lambda name: name is not None and name == names[0], names))))

    def turn(self) -> None:
        with self._lock:
            self._opened()
            self._round("ingest")

    def _opened(self) -> FullStore:
        if self._store is None:
            self._store = store = open_store(f"sqlite:///{self._path}", durability="memory")
            max_bytes = Conf(self._app).max_message_bytes
            renderer = ScheduleRenderer(self._app, max_bytes, self._broker.decode)
            self._engine = Engine(0, "test", store, self._broker, self._clock, LIMITS, renderer=renderer)
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
                raise WheelError(f"the wheel's engine could not {activity}; its log has the reason")
            busy |= ended is Round.BUSY
        return busy


@cache
def _empty_store() -> bytes:
    with TemporaryDirectory(prefix="celery-wheel-") as folder:
        path = Path(folder) / "wheel.sqlite3"
        open_store(f"sqlite:///{path}", durability="memory").close()
        return path.read_bytes()


_dumps: Any = kombu_json.dumps

#: The only store that ever adopts.
OWNER = "the test's store"


class MemoryBroker:
    """Implements ``FencingBroker`` for one shard."""

    def __init__(self, app: Any, rejected: Callable[[dict[str, Any], str], None]) -> None:
        conf = Conf(app)
        own = destinations_of(app)
        self._reader = QueuedMessageReader(own, conf.max_message_bytes, conf.keep_eta, MessageSeal.of(conf))
        self._outgoing = KombuPublisher(app, own)
        self._rejected = rejected
        self._fence = Fence()
        self._epoch: int | None = None  #: None after ``leave``
        self.arrivals: deque[Message | Unreadable] = deque()
        self.sent: list[Row] = []  #: rows published since the list was last cleared

    fences: Literal[True] = True
    can_wait = False  # a call that waited would wait for the thread of the test, which makes it

    def arrive(self, raw: dict[str, Any]) -> None:
        arrival = self.decode(_dumps(raw).encode())
        if isinstance(arrival, Unreadable):
            self._rejected(raw["headers"], arrival.reason)
        else:
            self.arrivals.append(arrival)

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        found = self._fence.adopt(epoch, OWNER)
        self._epoch = epoch
        return found

    def set_offset(self, shard: int, epoch: int, lane: int, offset: Position) -> None:
        self._fence.set_offset(epoch, lane, offset)

    def drop_lanes(self, shard: int, epoch: int, lanes: Sequence[int]) -> None:
        self._fence.drop(epoch, lanes)

    def verify(self, shard: int, epoch: int, confirmed: int, accepted: int = 0) -> None:
        self._fence.verify(epoch, confirmed, accepted)

    def accepted(self, shard: int) -> int:
        return self._fence.accepted

    def set_accepted(self, shard: int, epoch: int, accepted: int) -> None:
        self._fence.set_accepted(epoch, accepted)

    def verified(self, chunks: Sequence[ConfirmedChunk]) -> set[int]:
        """Leave the shard to ``verify``: there is no other to share a call with."""
        return set()

    together = staticmethod(ask_each)

    def publish(self, chunk: Chunk) -> Published:
        refused = self._fence.check_chunk(chunk)
        if refused is not None:
            return refused
        times = chunk.now_ms, chunk.redelivered, lambda: True
        answer = publish_merged(chunk.rows, lambda rows: self._outgoing.publish(rows, *times))
        failed = {**answer.failed, **answer.refused}  # a FencingBroker refuses nothing
        self.sent += chunk.rows
        for row in chunk.rows:
            if row.id in failed:
                self._rejected(json.loads(row.parts().headers), failed[row.id])
        return self._fence.move(chunk, failed, self.ready(chunk.queues))

    def peek(self, shard: int, max_count: int, max_bytes: int) -> Peeked:
        if self._epoch is None:
            raise not_adopted(shard)
        return peek_arrivals(self.arrivals, max_count, max_bytes)

    def trim(self, shard: int, epoch: int, token: object, accepted: int = 0) -> bool:
        self._fence.check(epoch)
        arrivals = cast(Sequence[Message | Unreadable], token)
        if self._epoch is None or not is_head(arrivals, self.arrivals):
            return False
        self._fence.note(accepted)
        for _ in arrivals:
            self.arrivals.popleft()
        return True

    def leave(self, shard: int, epoch: int) -> None:
        if self._epoch is not None and epoch >= self._epoch:
            self._epoch = None

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        return False

    def depth(self, shard: int) -> int:
        return len(self.arrivals)

    def ready(self, queues: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(queues, 0)  # a test's worker takes each message at once

    def oldest(self, shard: int) -> Message | Unreadable | None:
        return self.arrivals[0] if self.arrivals else None

    def decode(self, raw: bytes) -> Message | Unreadable:
        return self._reader.decode(raw)

    def now_ms(self) -> int | None:
        return None

    def keep_alive(self) -> None: ...

    def close(self) -> None:
        self._outgoing.close()
