"""One engine with its store and its broker's edge, driven round by round, and the time that its rounds take.

The rig builds its parts from an app's settings, as a scheduler does; only the clock and the limits may differ. One
thread runs one round after the other, where a scheduler runs several at once.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from celery_wheel.broker import broker_for
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.round import Round, RoundSteps
from celery_wheel.errors import StoreUnusable, WheelError
from celery_wheel.scheduler.recurring.renderer import ScheduleRenderer
from celery_wheel.scheduler.service import limits_of, open_store_of
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import Clock, SystemClock

#: Seconds without progress after which a step fails.
PATIENCE_S = 30.0
#: Seconds between two rounds that renew the engine's lease.
TEND_S = 0.4

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """The time for a count of operations: wall time, and CPU time of one process."""

    count: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.count / max(self.wall_s, 1e-9)

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.count * 1e6


def pace(work: Callable[[], object], count: int) -> Pace:
    """Measure ``work`` in this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Pace(count, time.perf_counter() - began, time.process_time() - cpu)


def finish(steps: RoundSteps) -> Round:
    """Run a round to its end; return its state."""
    return [step for step in steps if isinstance(step, Round)][-1]


class BenchRig:
    """An engine and its store, which run rounds until a counter has reached a number."""

    def __init__(self, engine: Engine, store: FullStore, progress: Progress) -> None:
        self.engine, self.store = engine, store
        self._progress = progress
        self._tended = 0.0

    def acquire(self) -> None:
        """Become the shard's holder."""
        self.until("acquiring the shard", 1, lambda: int(self.engine.held))

    def until(self, step: str, count: int, counted: Callable[[], int], *activities: Callable[[], RoundSteps]) -> Pace:
        """Run rounds until ``counted`` has grown by ``count``; renew the lease meanwhile.

        Raises StoreUnusable after PATIENCE_S without progress.
        """
        began, cpu, start = time.monotonic(), time.process_time(), counted() if activities else 0
        changed, reached = began, 0
        while reached < count:
            self.tend()
            for activity in activities:
                finish(activity())
            before, reached = reached, counted() - start
            self._progress(step, reached - before)
            now = time.monotonic()
            changed = now if reached > before else changed
            if now - changed > PATIENCE_S:
                raise StoreUnusable(
                    f"{step}: {reached:,} of {count:,} in {now - began:.0f} s, and no progress for {PATIENCE_S:g} s; "
                    "run `celery -A proj wheel doctor`, and read the log"
                )
        return Pace(count, time.monotonic() - began, time.process_time() - cpu)

    def tend(self) -> None:
        if time.monotonic() - self._tended > TEND_S or not self.engine.held:
            self._tended = time.monotonic()
            finish(self.engine.tend())


@contextmanager
def rig(
    app: Any,
    clock: Clock | None = None,
    progress: Progress = lambda step, more: None,
    *,
    schedules: bool = False,
    **limits: Any,
) -> Iterator[BenchRig]:
    """Yield a rig on the store and the broker that ``app`` names; ``limits`` replace those of its settings.

    Args:
        schedules: whether recurring schedules run.
    """
    conf = Conf(app)
    conf.check()
    with closing(open_store_of(conf)) as store, closing(broker_for(app, conf, store)) as broker:
        all_limits = dataclasses.replace(limits_of(conf), **limits)
        renderer = ScheduleRenderer(app, conf.max_message_bytes, broker.decode) if schedules else None
        holder = f"bench/{os.getpid()}"
        engine = Engine(0, holder, store, broker, clock or SystemClock(), all_limits, renderer=renderer)
        try:
            yield BenchRig(engine, store, progress)
        finally:
            with suppress(WheelError):
                finish(engine.release())
            if renderer is not None:
                renderer.close()
