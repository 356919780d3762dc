"""The budget of a message: CPU of each step of its way from the wheel queue to its own queue, and out of the store.

::

    rounds of one engine, one after the other in one thread: no thread waits for another, and none takes its cache
    a step     a function that a round calls for many messages at once; the CPU time within it, less that of inner steps
    the rest   what a round does beside its steps

Real Redis, SQLite with fsync, messages of ``letters``, etas at random in ten minutes. A scheduler's threads take the
same steps at once and wait for each other: there a message costs more, as ``spine`` measures. The yardstick of a step
is the whole of its round.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from celery_wheel.broker.redis import edge
from celery_wheel.broker.redis.edge import RedisBroker
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.window import Window
from celery_wheel.operations import bench
from celery_wheel.operations.bench import BenchRig
from celery_wheel.operations.figure import Figure
from celery_wheel.scheduler.process import tune_memory
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.store import SqlStore
from tests.benchmarks.letters import WHEEL_QUEUE, Letters
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app
from tests.kit.servers.redis import RedisServer

MINUTE_MS = 60_000
AFTER_MS, WITHIN_MS = 10 * MINUTE_MS, 10 * MINUTE_MS
RETENTION_MS = 60 * MINUTE_MS
PORTION = 50_000

#: Where each step is, and its name.
STEPS: tuple[tuple[Any, str, str], ...] = (
    (edge, "read_oldest", "read from Redis"),
    (RedisBroker, "peek", "decode"),
    (SqlStore, "known", "known"),
    (Catalogue, "pack", "pack"),
    (SqlStore, "apply", "write and commit"),
    (RedisBroker, "trim", "trim"),
    (SqlStore, "slice_end", "reach"),
    (SqlStore, "slice", "read"),
    (Window, "place_prefetched", "place"),
    (ShardState, "begin_round", "reap"),
    (ShardState, "take", "chunk"),
    (SqlStore, "count", "guard"),
    (edge, "publish_call", "encode"),
    (RedisBroker, "publish", "publish"),
    (SqlStore, "forget", "delete"),
)


class Stopwatch:
    """Adds up the CPU time of each step, without that of the steps within it."""

    def __init__(self) -> None:
        self.spent_s = defaultdict[str, float](float)
        self._inner_s = [0.0]

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner_s.append(0.0)
            began_s = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took_s = time.process_time() - began_s
                self.spent_s[name] += took_s - self._inner_s.pop()
                self._inner_s[-1] += took_s

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, attribute, name in STEPS:
                stack.enter_context(mock.patch.object(place, attribute, self.around(name, getattr(place, attribute))))
            yield


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = rows // 20
    with RedisServer(folder / "redis") as server:
        app = make_app(server.url, f"sqlite:///{folder}/wheel.sqlite3", wheel_control=False)
        clock, letters = MovedClock(), Letters(app, server.client())
        watch = Stopwatch()
        with _little_garbage(), watch.running(), bench(app, clock, retention_ms=RETENTION_MS, **NO_WATCH) as driven:
            driven.acquire()
            for phase, cpu_s in _phases(driven, letters, server, clock, count):
                whole_us = cpu_s / count * 1e6
                steps = {name: spent_s / count * 1e6 for name, spent_s in watch.spent_s.items()}
                watch.spent_s.clear()
                steps["the rest of the round"] = whole_us - sum(steps.values())
                yield Figure("budget", phase, whole_us, "µs")
                for name, own_us in steps.items():
                    yield Figure("budget", f"{phase}: {name}", own_us, "µs", "its round", whole_us, less_is_better=True)


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Collect garbage as a scheduler does."""
    thresholds = gc.get_threshold()
    tune_memory()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _phases(
    driven: BenchRig, letters: Letters, server: RedisServer, clock: MovedClock, count: int
) -> Iterator[tuple[str, float]]:
    """Yield the name of each part of the way with the CPU seconds of its rounds."""
    engine, stats, rng = driven.engine, driven.engine.stats, random.Random(1)
    with server.client() as client:
        cpu_s = 0.0
        for start in range(0, count, PORTION):
            portion, now_ms = min(PORTION, count - start), clock.now_ms()
            etas = [now_ms + AFTER_MS + rng.randrange(WITHIN_MS) for _ in range(portion)]
            letters.push(client, WHEEL_QUEUE, etas, now_ms)
            cpu_s += driven.until("ingest", portion, lambda: stats.accepted, engine.ingest).cpu_s
        yield "ingest", cpu_s
        clock.ahead_ms += AFTER_MS + WITHIN_MS
        sending = (engine.prefetch, engine.dispatch, engine.settle)
        yield "dispatch", driven.until("dispatch", count, lambda: stats.dispatched, *sending).cpu_s
        clock.ahead_ms += RETENTION_MS
        yield "forget", driven.until("forget", count, lambda: stats.forgotten, engine.keep_house).cpu_s
