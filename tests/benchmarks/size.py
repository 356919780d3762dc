"""Bytes on disk for a pending task, with 600 bytes of arguments and without any.

::

    N messages, etas at random over 30 days  ──► wheel queue ──► scheduler ──► store of its own; the scheduler stops
    (size after a checkpoint - size of the new store) / N

The size of SQLite is that of its file after a checkpoint, and of PostgreSQL pg_total_relation_size of all tables, which
has indexes and TOAST in it. WAL and backups are not in either. The yardstick is the same message in the wheel queue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import Database, databases
from tests.benchmarks.letters import BODY_BYTES, WHEEL_QUEUE, Letters
from tests.benchmarks.parts import make_app
from tests.kit.servers.redis import RedisServer

SEED = 13
DAY_MS, DAYS = 86_400_000, 30
PORTION = 50_000
#: Bytes of arguments → target in bytes a task.
TARGETS = {BODY_BYTES: 700, 0: 350}


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = rows // 10
    with databases("size", folder) as found:
        for name, make in found.items():
            for size, target in TARGETS.items():
                what = f"{name}, {size} B of JSON arguments" if size else f"{name}, no arguments"
                with RedisServer(folder / f"redis-{name}-{size}") as server:
                    disk, queue = _bytes_a_task(server, make(), count, size, what)
                against = "bytes", "in the wheel queue", queue, target
                yield Figure("size", f"a pending task, {what}", disk, *against, less_is_better=True)


def _bytes_a_task(server: RedisServer, database: Database, count: int, size: int, what: str) -> tuple[float, float]:
    """Return the bytes of a task in the store, and in the wheel queue."""
    client, rng = server.client(), random.Random(SEED)
    open_store(database.url).close()
    empty, queued = database.bytes(), 0
    with closing(make_app(server.url, database.url)) as app:
        letters = Letters(app, client, size=size)
    with Child({"broker": server.url, "store": database.url, "ahead_ms": 0}) as child, progress(what, count) as bar:
        for done in range(0, count, PORTION):
            now_ms, part = int(time.time() * 1_000), min(PORTION, count - done)
            etas = [now_ms + rng.randrange(DAY_MS, DAYS * DAY_MS) for _ in range(part)]
            queued += letters.push(client, WHEEL_QUEUE, etas, now_ms)
            child.until("accepted", done + part)
            bar(0, done=done + part)
        child.stop()
    return (database.bytes() - empty) / count, queued / count
