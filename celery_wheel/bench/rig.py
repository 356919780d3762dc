"""One engine with its store and its broker's edge, driven round by round, and the time that its rounds take.

The parts are built from an app's settings, as a scheduler builds them; only the clock and limits may be other ones. One
thread does one round after the other, where a scheduler does several at once.
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
from celery_wheel.engine.context import Round, RoundSteps
from celery_wheel.engine.engine import Engine
from celery_wheel.errors import StoreUnusable, WheelError
from celery_wheel.service import limits_of, open_store_of
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import Clock, SystemClock

#: Seconds without any progress after which a step is given up.
PATIENCE_S = 30.0
#: Seconds between two rounds in which the engine keeps its shard.
TEND_S = 0.4

Progress = Callable[[str, int], None]


def unseen(what: str, more: int) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a count of things took: wall time, and CPU time of one process."""

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
    """The time that ``work`` takes in this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Pace(count, time.perf_counter() - began, time.process_time() - cpu)


def finish(steps: RoundSteps) -> Round:
    """Do a round to its end; returns how it ended."""
    return [step for step in steps if isinstance(step, Round)][-1]


class Rig:
    """An engine and its store. ``until`` is told what counts, and does rounds until enough is counted."""

    def __init__(self, engine: Engine, store: FullStore, progress: Progress) -> None:
        self.engine, self.store = engine, store
        self._progress = progress
        self._tended = 0.0

    def take(self) -> None:
        """Become the shard's holder."""
        self.until("taking the shard", 1, lambda: int(self.engine.held))

    def until(self, what: str, count: int, counted: Callable[[], int], *activities: Callable[[], RoundSteps]) -> Pace:
        """Do rounds until ``counted`` has grown by ``count``, and keep the shard meanwhile.

        Raises StoreUnusable where nothing has moved for PATIENCE_S.
        """
        began, cpu, start = time.monotonic(), time.process_time(), counted() if activities else 0
        changed, reached = began, 0
        while reached < count:
            self.tend()
            for activity in activities:
                finish(activity())
            before, reached = reached, counted() - start
            self._progress(what, reached - before)
            now = time.monotonic()
            changed = now if reached > before else changed
            if now - changed > PATIENCE_S:
                raise StoreUnusable(
                    f"{what}: {reached:,} of {count:,} in {now - began:.0f} s, and no more for {PATIENCE_S:g} s; run "
                    "`celery wheel doctor`, and see what was logged"
                )
        return Pace(count, time.monotonic() - began, time.process_time() - cpu)

    def tend(self) -> None:
        if time.monotonic() - self._tended > TEND_S or not self.engine.held:
            self._tended = time.monotonic()
            finish(self.engine.tend())


@contextmanager
def rig(
    app: Any, clock: Clock | None = None, progress: Progress = lambda what, more: None, **limits: Any
) -> Iterator[Rig]:
    """A rig on the store and the broker that ``app`` names; ``limits`` replace those of its settings."""
    conf = Conf(app)
    conf.check()
    with closing(open_store_of(conf)) as store, closing(broker_for(app, conf, store.uuid)) as broker:
        all_limits = dataclasses.replace(limits_of(conf), **limits)
        engine = Engine(0, f"bench/{os.getpid()}", store, broker, clock or SystemClock(), all_limits)
        try:
            yield Rig(engine, store, progress)
        finally:
            with suppress(WheelError):
                finish(engine.release())
