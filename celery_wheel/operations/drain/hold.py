"""The hold of a drain on all shards of a store: nothing is dispatched, and no scheduler takes a shard over.

An engine a shard acquires and adopts, which is refused while a scheduler holds one, and ingests the wheel queue and the
inbox. ``end_engine`` ends its state: a new epoch, by which the drain writes the tables. A thread renews every lease.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from celery_wheel.broker import shard_of
from celery_wheel.broker.transport import broker_for, meet_broker
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.port import Broker
from celery_wheel.engine.round import Round, run_round
from celery_wheel.errors import BrokerError, StoreUnusable, WheelError
from celery_wheel.scheduler.service import limits_of
from celery_wheel.store.model import Change, Position
from celery_wheel.store.ports import FullStore
from celery_wheel.store.store_model import ShardEpoch
from celery_wheel.timing import SystemClock

#: Called with the step, the count that is done, and the total known so far.
Progress = Callable[[str, int, int], None]


def silent(doing: str, done: int, of: int) -> None:
    """Ignore the progress."""


def total(store: FullStore, count: Callable[..., int], *arguments: Any) -> int:
    return sum(count(shard, *arguments) for shard in range(store.shards))


@dataclass(slots=True)
class DrainResult:
    """Counts of a drain. In a dry run ``moved``, ``in_queues`` and ``in_inbox`` together would be taken out."""

    moved: int = 0  #: tasks that are pending elsewhere now
    due: int = 0  #: tasks that were due anyway and were dispatched without an eta
    rejected: int = 0  #: tasks that the broker refused, or that could not be read
    accepted: int = 0  #: of these, tasks that the drain accepted into the store first
    left: int = 0  #: tasks that are still pending in the store
    schedules: int = 0  #: recurring schedules that are in the file
    limits: int = 0  #: groups whose own limits are in the file, and stay in the store
    schedules_left: int = 0  #: recurring schedules that are in the store: to the broker all of them
    outcomes: dict[str, int] = field(default_factory=dict)  #: rejected tasks, which stay in the store
    file: Path | None = None
    in_file: int = 0  #: tasks, with those of an earlier drain that was killed
    resumed: bool = False  #: the file was complete already, so the drain only retired its tasks in the store
    dispatched_since: int = 0  #: resumed: tasks in the file that a scheduler has dispatched since it was written
    dry_run: bool = False
    in_queues: int = 0
    in_inbox: int = 0
    by_queue: dict[str, int] = field(default_factory=dict)


#: Seconds without any progress after which the drain raises; the log has the errors of the engine.
PATIENCE_S = 30.0

PAUSE_S = 0.05


class ShardHold:
    """A context manager. Args: ``broker`` if it is not the app's own edge; ``ahead_ms`` as in the engine's limits."""

    def __init__(self, app: Any, store: FullStore, broker: Broker | None = None, ahead_ms: int = 0) -> None:
        conf = Conf(app)
        conf.check()
        meet_broker(app, store)
        self.store = store
        self.clock = SystemClock()
        self.broker = broker or broker_for(app, conf, store)
        self.name = f"drain {socket.gethostname()}/{secrets.token_hex(3)}/{os.getpid()}"
        self._lease_ms = conf.lease_ms
        limits = replace(limits_of(conf), ahead_ms=ahead_ms)
        home = partial(shard_of, task_id="", shards=store.shards)
        self.engines = [
            Engine(shard, self.name, store, self.broker, self.clock, limits, shard_of=home)
            for shard in range(store.shards)
        ]
        self._epochs: dict[int, int] = {}
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._renew, name="wheel-drain", daemon=True)

    def __enter__(self) -> ShardHold:
        try:
            deadline = time.monotonic() + 2 * self._lease_ms / 1_000 + 1  # the lease of a killed holder is over by then
            self._thread.start()
            for engine in self.engines:
                while not engine.held:
                    self.check()
                    if time.monotonic() > deadline:
                        raise self._not_held(engine.shard)
                    time.sleep(PAUSE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _not_held(self, shard: int) -> WheelError:
        holder = self.store.state(shard).holder
        if holder is None or holder == self.name:
            return BrokerError(
                f"shard {shard} cannot be adopted in the broker, as the log says; nothing was changed; the drain needs "
                "the broker, since its wheel queue may have messages; start it and run the drain again"
            )
        return StoreUnusable(f"shard {shard} is held by {holder}; nothing was changed; stop all schedulers (SIGTERM)")

    def __exit__(self, *_: object) -> None:
        """Settle unsettled rows and release all shards; after a kill the next holder settles them."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for engine in self.engines:
            if engine.shard in self._epochs:
                self.broker.leave(engine.shard, self._epochs[engine.shard])
                self.store.release(engine.shard, self._epochs[engine.shard])
            elif engine.held:
                run_round(engine.release())
        self.broker.close()

    def _renew(self) -> None:
        try:
            while not self._stop.is_set():
                for engine in self.engines:
                    with self._turn:
                        epoch = self._epochs.get(engine.shard)
                        if epoch is None:
                            run_round(engine.tend())
                        else:
                            self.store.renew(engine.shard, epoch, self.clock.now_ms(), self._lease_ms, {})
                self._stop.wait(min(0.5, self._lease_ms / 4_000))
        except BaseException as error:  # ``check`` raises it, in the thread that does the work
            self._failure = error

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def end_engine(self, shard: int) -> ShardEpoch:
        """End the engine's state, and return the epoch by which the drain itself writes the tables from now on."""
        with self._turn:
            epoch = self.store.acquire(shard, self.name, self.clock.now_ms(), self._lease_ms)
            if epoch is None:
                raise StoreUnusable(
                    f"shard {shard} was acquired by another scheduler; the work that is done is safe; stop all "
                    "schedulers and run this again"
                )
            self._epochs[shard] = epoch
            state = self.engines[shard].state
            if state is not None:
                state.end("all of it was drained")
        return ShardEpoch(shard, epoch, self.clock.now_ms())

    def set_back(self, held: ShardEpoch, lane: int, offset: Position) -> None:
        """Set the store's offset of a lane, which is ahead of now, back."""
        state = next(one for one in self.store.lanes(held.shard) if one.lane == lane)
        self.store.apply(held.shard, held.epoch, Change(lanes=[replace(state, offset=offset, watermark=offset)]))

    def ingest(self, shard: int) -> int:
        """Accept messages until the wheel queue and the inbox are empty; return the number of new messages."""
        engine = self.engines[shard]
        before = engine.stats.accepted + engine.stats.rejected
        quiet_since = time.monotonic()
        deadline = ProgressDeadline(f"shard {shard}: its wheel queue or its inbox cannot be read")
        while True:
            self.check()
            done = run_round(engine.ingest()) if engine.state is not None else Round.FAILED
            if done is Round.BUSY:
                quiet_since = time.monotonic()
            elif done is Round.IDLE and (self.broker.fences or time.monotonic() - quiet_since > 1.0):
                # Brokers that push the messages of a queue, instead of answering a request for them, need a moment.
                return engine.stats.accepted + engine.stats.rejected - before
            deadline.note(done is not Round.FAILED)


class ProgressDeadline:
    """Raises BrokerError after ``PATIENCE_S`` without progress; pauses for a moment after each step without any."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._since = time.monotonic()

    def note(self, progressed: bool) -> None:
        if progressed:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > PATIENCE_S:
            raise BrokerError(
                f"{self._problem}, since {PATIENCE_S:g} s, as the log says; the work that is done is safe; run this "
                "again"
            )
        time.sleep(0 if progressed else PAUSE_S)
