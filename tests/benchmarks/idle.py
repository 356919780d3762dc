"""An idle scheduler with 1 and 16 shards: CPU, threads, and the latency of a task that comes or becomes due meanwhile.

On Redis with each kind of store, and on RabbitMQ with SQLite.

The scheduler is a process of its own, with everything that beat starts: control node, sign of life, all shards::

    python -m tests.benchmarks.idle '{"broker": …, "store": …, "shards": 16}'
        (a line)       {"held": 16, "cpu_s": …, "threads": …}
        end of file    stop
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import celery_wheel.beat
from celery_wheel.operations.figure import Figure
from celery_wheel.scheduler.service import WheelService
from celery_wheel.store import open_store
from tests.benchmarks.databases import SQLITE, stores
from tests.benchmarks.filler import Filler
from tests.benchmarks.parts import make_app
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer

assert celery_wheel.beat  # imported for its memory

SHARDS = (1, 16)
IDLE_S = 20
PROBES = 30
QUEUE = "bench.idle"
TARGETS = {1: 0.5, 16: 2.0, "late_ms": 5.0}
MONTH_MS, DAY_MS = 30 * 86_400_000, 86_400_000
COMMIT_ROWS = 5_000


def run(folder: Path, rows: int) -> Iterator[Figure]:
    with stores("idle", folder) as found:
        for name, make in found.items():
            for shards in SHARDS:
                with RedisServer(folder / f"redis-{name}-{shards}") as server:
                    yield from _idle(server.url, name, make(), shards, rows // 2)
        with RabbitServer(folder / "rabbitmq") as rabbit:
            for shards in SHARDS:
                yield from _idle(rabbit.fresh(), f"{SQLITE} and RabbitMQ", found[SQLITE](), shards, rows // 2)


def _idle(broker: str, name: str, store: str, shards: int, rows: int) -> Iterator[Figure]:
    _fill(store, shards, rows)
    options = json.dumps({"broker": broker, "store": store, "shards": shards})
    command = [sys.executable, "-m", "tests.benchmarks.idle", options]
    words = f"idle, {shards} {'shards' if shards > 1 else 'shard'}, {rows:,} pending, {name}: %s"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            while (before := _status(child))["held"] < shards:
                time.sleep(0.1)
            time.sleep(2)
            before, began = _status(child), time.perf_counter()
            time.sleep(IDLE_S)
            after, wall_s = _status(child), time.perf_counter() - began
            percent = (after["cpu_s"] - before["cpu_s"]) / wall_s * 100
            yield Figure("idle", words % "of a core", percent, "%", target=TARGETS[shards], less_is_better=True)
            yield Figure("idle", words % "threads", after["threads"], "")
            with _consumed(broker, store, shards) as (app, take):
                for what, delay_s in (("a task that comes due", 0.001), ("a task that becomes due", 1.0)):
                    late_ms = statistics.median(_late_ms(app, take, delay_s) for _ in range(PROBES))
                    target = TARGETS["late_ms"]
                    yield Figure("idle", words % f"{what}, median", late_ms, "ms", target=target, less_is_better=True)
        finally:
            assert child.stdin is not None
            child.stdin.close()


@contextmanager
def _consumed(broker: str, store: str, shards: int) -> Iterator[tuple[Any, Callable[[], object]]]:
    """Yield a producer's app, and a function that returns as soon as the queue of the probes has a message."""
    with make_app(broker, store, wheel_shards=shards) as app, app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.amqp.queues[QUEUE], no_ack=True)
        yield app, lambda: queue.get(timeout=10)


def _late_ms(app: Any, take: Callable[[], object], delay_s: float) -> float:
    time.sleep(random.uniform(0.1, 0.3))
    due_s = time.time() + delay_s
    app.send_task("bench.idle", queue=QUEUE, countdown=delay_s)
    begin_s = max(due_s, time.time())
    take()
    return (time.time() - begin_s) * 1_000


def _fill(url: str, shards: int, rows: int) -> None:
    base_ms = int(time.time() * 1_000) + DAY_MS
    with closing(open_store(url, shards=shards)) as store:
        for shard in range(shards):
            filler = Filler(store, shard)
            for _ in range(0, rows // shards, COMMIT_ROWS):
                filler.accept([filler.row(base_ms + random.randrange(MONTH_MS)) for _ in range(COMMIT_ROWS)])
            store.release(shard, filler.epoch)


def _status(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    found: dict[str, Any] = json.loads(child.stdout.readline())
    return found


def main(options: dict[str, Any]) -> None:
    service = WheelService(make_app(options["broker"], options["store"], wheel_shards=options["shards"]))
    service.start()
    for _ in sys.stdin:
        held = sum(service.holds(shard) for shard in range(options["shards"]))
        figures = {"held": held, "cpu_s": time.process_time(), "threads": threading.active_count()}
        print(json.dumps(figures), flush=True)
    service.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
