"""A store on its disk: the bytes of a pending task, and dispatch of rows whose pages are not in memory.

The size of SQLite is that of its file after a checkpoint, and of PostgreSQL pg_total_relation_size of all tables, which
has indexes and TOAST in it. WAL and backups are not in either.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS
from tests.benchmarks.child import Child
from tests.benchmarks.databases import Database, database, databases
from tests.benchmarks.figure import Figure
from tests.benchmarks.filler import fill, realistic
from tests.benchmarks.letters import BODY_BYTES, QUEUES, WHEEL_QUEUE, letters_of
from tests.benchmarks.stream import Drain
from tests.kit.servers.redis import RedisServer

DAYS, PORTION = 30, 50_000
#: Bytes of arguments → target in bytes a task.
TARGETS = {BODY_BYTES: 700, 0: 350}
TARGET_ROWS, TARGET_PER_S = 2_000_000, 20_000


def size(folder: Path, rows: int) -> Iterator[Figure]:
    """Bytes on disk for a pending task, with 600 bytes of arguments and without any.

    ::

        N messages, etas at random over 30 days ──► wheel queue ──► scheduler ──► store of its own; the scheduler stops
        (size after a checkpoint - size of the new store) / N

    The yardstick is the same message in the wheel queue.
    """
    with databases(folder) as found:
        for name, make in found.items():
            for arguments, target in TARGETS.items():
                what = f"{name}, {arguments} B of JSON arguments" if arguments else f"{name}, no arguments"
                with RedisServer(folder / f"redis-{name}-{arguments}") as server:
                    disk, queue = _bytes_a_task(server, make(), rows // 10, arguments)
                against = "bytes", "in the wheel queue", queue, target
                yield Figure("size", f"a pending task, {what}", disk, *against, less_is_better=True)


def _bytes_a_task(server: RedisServer, database: Database, count: int, arguments: int) -> tuple[float, float]:
    client, rng = server.client(), random.Random(13)
    open_store(database.url).close()
    empty, queued = database.bytes(), 0
    letters = letters_of(server.url, client, size=arguments)
    with Child(server.url, database.url) as child:
        for done in range(0, count, PORTION):
            now_ms, part = int(time.time() * 1_000), min(PORTION, count - done)
            etas = [now_ms + rng.randrange(DAY_MS, DAYS * DAY_MS) for _ in range(part)]
            queued += letters.push(client, WHEEL_QUEUE, etas, now_ms)
            child.until("accepted", done + part)
    return (database.bytes() - empty) / count, queued / count


def cold(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """Dispatch of rows whose pages are not in memory, beside a sequential read of the same files.

    ::

        rows with arguments, due at random over 30 days, written past the engine (``filler``)     not timed
        the files are read from end to end, after their pages were dropped   the yardstick: rows a second
        pages dropped; a scheduler starts; the clock goes on: a tenth of the rows is due          cold
        the clock goes on: another tenth is due, after a read of all files                        warm

    Pages are dropped by posix_fadvise, and PostgreSQL is restarted. A disk behind a hypervisor may still have them in a
    memory that cannot be dropped from here: the yardstick tells.
    """
    rng = random.Random(23)
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        etas = array("q", sorted(fill(found.url, rows, realistic(rng), rng, days=(1, DAYS))))
        size = found.bytes()
        read_per_s = found.read_per_s() * rows / size
        found.evict()
        with Child(server.url, found.url) as child:
            cold, cold_us = _dispatch(server, child, etas, rows // 10)
            found.read()
            warm, warm_us = _dispatch(server, child, etas, rows // 5)
    yardstick, target = "sequential read", TARGET_PER_S if rows >= TARGET_ROWS else None
    yield Figure("cold", f"dispatch from a cold disk, {store}", cold, "rows/s", yardstick, read_per_s, target)
    yield Figure("cold", "… CPU of the scheduler", cold_us, "µs/row", "warm", warm_us, less_is_better=True)
    yield Figure("cold", "… the same, warm", warm, "rows/s", yardstick, read_per_s)
    yield Figure("cold", "… sequential read", read_per_s * size / rows / 1e6, "MB/s")


def _dispatch(server: RedisServer, child: Child, etas: array[int], upto: int) -> tuple[float, float]:
    before = child.status()
    with Drain(server, QUEUES):
        began = time.perf_counter()
        child.move(etas[upto - 1] - before.now_ms)
        after = child.until("dispatched", upto)
        took_s = time.perf_counter() - began
    done = after.dispatched - before.dispatched
    return done / took_s, (after.cpu_s - before.cpu_s) / done * 1e6
