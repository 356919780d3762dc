"""Rounds of an engine, one after the other in one thread: no thread waits for another, and none takes its cache.

A real Redis, SQLite, messages of ``letters``, and a clock that is moved. A scheduler's threads take the same steps at
once and wait for each other: there a message costs more, as ``spine`` measures.
"""

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from celery_wheel.broker import wheel_queue_name
from celery_wheel.broker.redis import edge
from celery_wheel.broker.redis.edge import RedisBroker
from celery_wheel.engine.round import run_round
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.window import Window
from celery_wheel.operations.bench import BenchRig, rig
from celery_wheel.scheduler.monitoring import tune_process
from celery_wheel.store.sql.dictionaries import Dictionaries
from celery_wheel.store.sql.store import SqlStore
from tests.benchmarks.figure import Figure
from tests.benchmarks.letters import WHEEL_QUEUE, Letters
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app
from tests.kit.servers.redis import RedisServer

MINUTE_MS = 60_000
AFTER_MS, WITHIN_MS = 10 * MINUTE_MS, 10 * MINUTE_MS
RETENTION_MS = 60 * MINUTE_MS
PORTION = 50_000

#: Where each step is, and its name.
STEPS: tuple[tuple[Any, str, str], ...] = (
    (RedisBroker, "peek", "read from Redis, decode"),
    (SqlStore, "known", "known"),
    (Dictionaries, "pack", "pack"),
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


def budget(folder: Path, rows: int) -> Iterator[Figure]:
    """The CPU of each step of a message's way from the wheel queue to its own queue, and out of the store.

    ::

        a step     a function that a round calls for many messages at once; its CPU time less that of inner steps
        the rest   what a round does beside its steps

    The yardstick of a step is the whole of its round. The store has fsync; etas are at random in ten minutes.
    """
    count, watch, clock = rows // 20, Stopwatch(), MovedClock()
    tune_process()  # collects garbage as a scheduler does
    try:
        with RedisServer(folder / "redis") as server:
            app = make_app(server.url, f"sqlite:///{folder}/wheel.sqlite3", wheel_control=False)
            letters = Letters(app, server.client())
            with watch.running(), rig(app, clock, retention_ms=RETENTION_MS, **NO_WATCH) as driven:
                driven.acquire()
                for phase, cpu_s in _phases(driven, letters, server, clock, count):
                    whole_us = cpu_s / count * 1e6
                    steps = {name: spent_s / count * 1e6 for name, spent_s in watch.spent_s.items()}
                    watch.spent_s.clear()
                    steps["the rest of the round"] = whole_us - sum(steps.values())
                    yield Figure("budget", phase, whole_us, "µs")
                    for name, own_us in steps.items():
                        of = "its round", whole_us
                        yield Figure("budget", f"{phase}: {name}", own_us, "µs", *of, less_is_better=True)
    finally:
        gc.unfreeze()


def _phases(
    driven: BenchRig, letters: Letters, server: RedisServer, clock: MovedClock, count: int
) -> Iterator[tuple[str, float]]:
    engine, stats, rng, client = driven.engine, driven.engine.stats, random.Random(1), server.client()
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


LANES, ROWS, TURNS, IDLE_S = (2, 200, 2_000), 1_000, 3, 0.2
LIMITED, UNLIMITED = b"bench.limited.%05d", "bench.unlimited"


def lanes(folder: Path, _rows: int) -> Iterator[Figure]:
    """The cost of lanes that were opened once and are empty: CPU of an idle dispatch round, and of a dispatched row.

    ::

        N queues, limited to a task a minute, two tasks each    one is dispatched, one is pending in a lane of its own
        a minute later                                          all are dispatched: N empty lanes
        idle round     Engine.dispatch, and nothing is due
        row            tasks of a queue without a limit: load, dispatch, settle until all are dispatched

    Each N has an engine, with SQLite that leaves fsync to the system. The engines take turns, and the best value of
    each counts. The yardstick is the smallest N of the same run.
    """
    with RedisServer(folder / "redis") as server, ExitStack() as stack:
        sites = {count: Site(stack, server, folder, count) for count in LANES}
        idle, row = ({count: list[float]() for count in LANES} for _ in range(2))
        for _ in range(TURNS):
            for count, site in sites.items():
                idle[count].append(site.idle_us())
                row[count].append(site.row_us())
    for what, unit, found in (("idle round", "µs/round", idle), ("dispatch", "µs/row", row)):
        least = {count: min(each) for count, each in found.items()}
        for count, value in least.items():
            name = f"{what}, {count:,} empty lanes, CPU"
            yield Figure("lanes", name, value, unit, f"{LANES[0]} lanes", least[LANES[0]], less_is_better=True)


class Site:
    def __init__(self, stack: ExitStack, server: RedisServer, folder: Path, count: int) -> None:
        namespace, self._clock, self._client = f"lanes-{count}", MovedClock(), server.client()
        app = make_app(
            server.url,
            f"sqlite:///{folder}/{namespace}.sqlite3",
            wheel_namespace=namespace,
            wheel_durability="memory",
            wheel_lease=600,  # no thread tends an engine while another has its turn
            wheel_rate_limits=dict.fromkeys([(LIMITED % number).decode() for number in range(count)], "1/m"),
        )
        self._rig = stack.enter_context(rig(app, self._clock, **NO_WATCH))
        self._engine, self._wheel_queue = self._rig.engine, wheel_queue_name(namespace, 0)
        limited, self._unlimited = (
            Letters(app, self._client, [("bench.lane", queue)]) for queue in ((LIMITED % 0).decode(), UNLIMITED)
        )
        self._rig.acquire()
        messages = self._written(limited, 2 * count)
        self._accept([raw.replace(LIMITED % 0, LIMITED % (n % count)) for n, raw in enumerate(messages)])
        self._dispatch(count)
        for _ in range(3):
            run_round(self._engine.dispatch())
        dispatched = self._engine.stats.dispatched
        assert dispatched == count, f"{dispatched} dispatched, the others pending in lanes"
        self._clock.ahead_ms += 2 * MINUTE_MS
        self._dispatch(count)
        self._clock.ahead_ms += 2 * MINUTE_MS  # the limits have room then: before, no lane sleeps

    def idle_us(self) -> float:
        began, rounds = time.process_time(), 0
        while time.process_time() - began < IDLE_S:
            run_round(self._engine.dispatch())
            rounds += 1
        return (time.process_time() - began) / rounds * 1e6

    def row_us(self) -> float:
        """Return the CPU time of a row, from the wheel's memory until it is settled."""
        self._accept(self._written(self._unlimited, ROWS))
        return self._dispatch(ROWS)

    def _written(self, letters: Letters, count: int) -> list[bytes]:
        now_ms = self._clock.now_ms()
        return list(letters.write([now_ms + MINUTE_MS] * count, now_ms))

    def _accept(self, messages: list[bytes]) -> None:
        self._client.lpush(self._wheel_queue, *messages)
        engine, stats = self._engine, self._engine.stats
        self._rig.until("ingest", len(messages), lambda: stats.accepted, engine.ingest, engine.prefetch)
        self._clock.ahead_ms += 2 * MINUTE_MS

    def _dispatch(self, count: int) -> float:
        engine, stats = self._engine, self._engine.stats
        sending = (engine.prefetch, engine.dispatch, engine.settle)
        return self._rig.until("dispatch", count, lambda: stats.dispatched, *sending).cpu_us
