"""The cost of lanes that were opened once and are empty: CPU of an idle dispatch round, and of a dispatched row.

::

    N queues, limited to a task a minute, two tasks each    one is dispatched, one is pending in a lane of its own
    a minute later                                          all are dispatched: N empty lanes
    idle round     Engine.dispatch, and nothing is due
    row            tasks of a queue without a limit: load, dispatch, settle until all are dispatched

Each N has an engine on one real Redis, with SQLite that leaves fsync to the system. The engines take turns, and the
best value of each counts. The yardstick is the smallest N of the same run. The bench uses the rounds of an engine, and
the settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from celery_wheel.broker import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.console.output import ProgressBar, progress
from celery_wheel.engine.round import run_round
from celery_wheel.operations import bench
from celery_wheel.operations.bench import BenchRig
from celery_wheel.operations.figure import Figure
from tests.benchmarks.letters import Letters
from tests.benchmarks.parts import NO_WATCH, MovedClock, make_app
from tests.kit.servers.redis import RedisServer

LANES = (2, 200, 2_000)
ROWS = 1_000
IDLE_S = 0.2
TURNS = 3
MINUTE_MS = 60_000
LIMITED, UNLIMITED = b"bench.limited.%05d", "bench.unlimited"


class Site:
    """An engine with ``count`` empty lanes."""

    def __init__(self, driven: BenchRig, app: Any, clock: MovedClock, client: redis.Redis) -> None:
        self._rig, self._clock, self._client = driven, clock, client
        self._wheel_queue = wheel_queue_name(Conf(app).namespace, 0)
        self._limited, self._unlimited = (
            Letters(app, client, [("bench.lane", queue)]) for queue in ((LIMITED % 0).decode(), UNLIMITED)
        )

    def open_lanes(self, count: int) -> None:
        engine = self._rig.engine
        self._rig.acquire()
        messages = list(self._limited.write([self._due_ms()] * 2 * count, self._clock.now_ms()))
        self._accept([raw.replace(LIMITED % 0, LIMITED % (n % count)) for n, raw in enumerate(messages)])
        self._dispatch(count)
        for _ in range(3):
            run_round(engine.dispatch())
        assert engine.stats.dispatched == count, f"{engine.stats.dispatched} dispatched, the others pending in lanes"
        self._clock.ahead_ms += 2 * MINUTE_MS
        self._dispatch(count)
        self._clock.ahead_ms += 2 * MINUTE_MS  # the limits have room then: before, no lane sleeps

    def idle_us(self) -> float:
        """Return the CPU time of a round in which nothing is due."""
        engine = self._rig.engine
        began, rounds = time.process_time(), 0
        while time.process_time() - began < IDLE_S:
            run_round(engine.dispatch())
            rounds += 1
        return (time.process_time() - began) / rounds * 1e6

    def row_us(self) -> float:
        """Return the CPU time of a row, from the wheel's memory until it is settled."""
        self._accept(list(self._unlimited.write([self._due_ms()] * ROWS, self._clock.now_ms())))
        return self._dispatch(ROWS)

    def _due_ms(self) -> int:
        return self._clock.now_ms() + MINUTE_MS

    def _accept(self, messages: list[bytes]) -> None:
        """Accept the tasks, and move the clock until they are due."""
        self._client.lpush(self._wheel_queue, *messages)
        engine, stats = self._rig.engine, self._rig.engine.stats
        self._rig.until("ingest", len(messages), lambda: stats.accepted, engine.ingest, engine.prefetch)
        self._clock.ahead_ms += 2 * MINUTE_MS

    def _dispatch(self, count: int) -> float:
        engine, stats = self._rig.engine, self._rig.engine.stats
        sending = (engine.prefetch, engine.dispatch, engine.settle)
        return self._rig.until("dispatch", count, lambda: stats.dispatched, *sending).cpu_us


def run(folder: Path, rows: int) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, ExitStack() as stack, progress("lanes", TURNS + 1) as bar:
        sites = {count: stack.enter_context(_site(server, folder, count, bar)) for count in LANES}
        idle: dict[int, list[float]] = {count: [] for count in LANES}
        row: dict[int, list[float]] = {count: [] for count in LANES}
        for turn in range(TURNS):
            bar(0, done=turn + 1)
            for count, site in sites.items():
                idle[count].append(site.idle_us())
                row[count].append(site.row_us())
    for what, unit, found in (("idle round", "µs/round", idle), ("dispatch", "µs/row", row)):
        least = {count: min(each) for count, each in found.items()}
        for count, value in least.items():
            name = f"{what}, {count:,} empty lanes, CPU"
            yield Figure("lanes", name, value, unit, f"{LANES[0]} lanes", least[LANES[0]], less_is_better=True)


@contextmanager
def _site(server: RedisServer, folder: Path, count: int, bar: ProgressBar) -> Iterator[Site]:
    bar(0, doing=f"{count:,} lanes")
    queues = [(LIMITED % number).decode() for number in range(count)]
    app = make_app(
        server.url,
        f"sqlite:///{folder}/lanes-{count}.sqlite3",
        wheel_namespace=f"lanes-{count}",
        wheel_durability="memory",
        wheel_lease=600,  # no thread tends an engine while another has its turn
        wheel_rate_limits=dict.fromkeys(queues, "1/m"),
    )
    clock = MovedClock()
    with bench(app, clock, **NO_WATCH) as driven:
        site = Site(driven, app, clock, server.client())
        site.open_lanes(count)
        yield site
    app.close()
