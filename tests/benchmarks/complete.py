"""Completion across processes: each of many tasks watches a key of its own, and other processes complete the keys.

::

    rows sent, due in days, each with a key          not timed
    app.wheel.complete(GROUP keys), repeatedly       completions/s, by the caller's wall clock
    app.wheel.complete(one key), a few hundred       time until the result

On SQLite on a disk with fsync, and on PostgreSQL with fsync. The scheduler is a process of its own, as is the broker.
The bench ends with an error unless each task is completed exactly once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_wheel.console.output import ProgressBar, progress
from celery_wheel.operations.figure import Figure
from tests.benchmarks.child import Child
from tests.benchmarks.databases import stores
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

GROUP = 5_000
SINGLE = 300
DAY_S = 86_400
TARGET = 5_000
PATIENCE_S = 120


def run(folder: Path, rows: int) -> Iterator[Figure]:
    with stores("complete", folder) as found:
        for name, store in found.items():
            with RedisServer(folder / name) as broker:  # a broker for each store: it keeps the offsets of one
                yield from _measured(name, store(), broker, rows // 20)


def _measured(name: str, store: str, broker: RedisServer, rows: int) -> Iterator[Figure]:
    app = make_app(broker.url, store)
    with Child({"broker": broker.url, "store": store, "ahead_ms": 0}) as child, progress(name, rows + SINGLE) as bar:
        child.until("held", 1)
        _send(app, rows + SINGLE)
        child.until("accepted", rows + SINGLE, lambda status: bar(0, done=status.accepted))
        took_s = _complete(app, rows, bar)
        singles_ms = sorted(_single(app, f"order:{rows + n}") for n in range(SINGLE))
        child.stop()
    app.wheel.close()
    app.close()
    yield Figure("complete", f"{name}: by {GROUP:,} keys", rows / took_s, "tasks/s", target=TARGET)
    yield Figure("complete", f"{name}: one key, median", statistics.median(singles_ms), "ms", less_is_better=True)
    p99 = singles_ms[int(len(singles_ms) * 0.99)]
    yield Figure("complete", f"{name}: one key, 99 of 100", p99, "ms", less_is_better=True)


def _send(app: Any, count: int) -> None:
    with app.producer_or_acquire() as producer:
        for n in range(count):
            options = {"wheel": {"watch": f"order:{n}"}, "countdown": DAY_S + n % DAY_S}
            app.send_task("shop.orders.tasks.cancel_unless_paid", (n,), producer=producer, **options)


def _complete(app: Any, rows: int, bar: ProgressBar) -> float:
    """Complete all keys; returns the seconds that it took."""
    began, done = time.perf_counter(), 0
    for start in range(0, rows, GROUP):
        keys = [f"order:{n}" for n in range(start, min(rows, start + GROUP))]
        done += sum(one.done for one in app.wheel.complete(keys, timeout=PATIENCE_S).values())
        bar(0, done=done)
    took_s = time.perf_counter() - began
    assert done == rows, f"{done:,} of {rows:,} were completed"
    return took_s


def _single(app: Any, key: str) -> float:
    began = time.perf_counter()
    assert app.wheel.complete(key).done == 1, key
    return (time.perf_counter() - began) * 1_000
