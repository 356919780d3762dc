"""Very many tasks that are due in the same second: 1,000,000 on the wheel, 20,000 in a worker of native Celery.

::

    ingest N with etas at random in one second of tomorrow; the clock goes to 5 s before it     not timed
    from the beginning of that second until the last one is in its worker's queue               seconds, rate, CPU
    VmHWM of the scheduler at the end                                                           peak of its memory

The native worker has received all of its tasks before the second begins, as far as it can.
Its rate is the yardstick. CPU time is that of the scheduler's process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from tests.benchmarks.child import Child
from tests.benchmarks.databases import SQLITE, Database, database
from tests.benchmarks.letters import QUEUES, WHEEL_QUEUE, Letters
from tests.benchmarks.native import QUEUE, native
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Drain
from tests.kit.servers.redis import RedisServer

DAY_MS, LEAD_MS = 86_400_000, 5_000
PORTION = 50_000
SEED = 19
NATIVE = 20_000
#: The least messages a second that a native worker receives; the second begins when all have had that time.
NATIVE_RECEIVES_PER_S = 300
#: Targets, for this many tasks.
TARGET_ROWS, TARGET_S, TARGET_MB = 1_000_000, 20, 300


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    count, others = rows // 2, min(NATIVE, rows // 20)
    with RedisServer(folder / "redis") as server:
        other_s, other_mb = _native(server, others)
        with database(folder, store) as found:
            took_s, cpu_us, peak_mb = _wheel(server, found, count)
    whole = count >= TARGET_ROWS
    what, yardstick = f"{count:,} due in the same second, {store}", f"native, {others:,}"
    target_s, target_mb = (TARGET_S, TARGET_MB) if whole else (None, None)
    yield Figure("herd", f"{what}, all in their queue", took_s, "s", target=target_s, less_is_better=True)
    yield Figure("herd", "… rate", count / took_s, "messages/s", yardstick, others / other_s)
    yield Figure("herd", "… CPU of the scheduler", cpu_us, "µs/message")
    memory = peak_mb, "MB", yardstick, other_mb, target_mb
    yield Figure("herd", "… peak of its memory", *memory, less_is_better=True)


def _wheel(server: RedisServer, database: Database, count: int) -> tuple[float, float, float]:
    client, rng = server.client(), random.Random(SEED)
    with closing(make_app(server.url, database.url)) as app:
        letters = Letters(app, client)
    options = {"broker": server.url, "store": database.url, "ahead_ms": 0}
    with Child(options) as child, progress("herd", 2 * count) as bar, Drain(server, QUEUES):
        start_ms = child.until("held", 1).now_ms
        second_ms = start_ms + DAY_MS
        for done in range(0, count, PORTION):
            etas = [second_ms + rng.randrange(1_000) for _ in range(min(PORTION, count - done))]
            letters.push(client, WHEEL_QUEUE, etas, start_ms)
            child.until("accepted", done + len(etas))
            bar(0, done=done + len(etas))
        before = child.move(second_ms - LEAD_MS - child.status().now_ms)
        after = child.until("dispatched", count, lambda status: bar(0, done=count + status.dispatched))
        took_s = (after.now_ms - second_ms) / 1_000
        child.stop()
    return took_s, (after.cpu_s - before.cpu_s) / count * 1e6, after.rss_peak / 2**20


def _native(server: RedisServer, count: int) -> tuple[float, float]:
    client, rng = server.client(), random.Random(SEED)
    with native(server.url, client) as worker, progress("native Celery", count) as bar:
        now_ms = int(time.time() * 1_000)
        second_ms = now_ms + LEAD_MS + count * 1_000 // NATIVE_RECEIVES_PER_S
        worker.letters.push(client, QUEUE, [second_ms + rng.randrange(1_000) for _ in range(count)], now_ms)
        found = worker.wait(count, 120 + (second_ms - now_ms) / 1_000)
        bar(0, done=len(found.late_ms))
    assert len(found.late_ms) == count, f"{len(found.late_ms):,} of {count:,} tasks of native Celery have arrived"
    return (max(map(sum, found.late_ms)) - second_ms) / 1_000, found.rss_peak / 2**20
