"""Dispatch of rows whose pages are not in memory, beside a sequential read of the same files.

::

    rows with arguments, due at random over 30 days, written past the engine (``filler``)     not timed
    the files are read from end to end, after their pages were dropped   the yardstick: rows a second
    pages dropped; a scheduler starts; the clock goes on: a tenth of the rows is due          cold
    the clock goes on: another tenth is due, after a read of all files                        warm

Pages are dropped by posix_fadvise, and PostgreSQL is restarted; the part that the system has kept is a figure. A disk
behind a hypervisor may still have them in a memory that cannot be dropped from here: the yardstick tells.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import SQLITE, Database, database
from tests.benchmarks.filler import Filler, realistic
from tests.benchmarks.letters import QUEUES
from tests.benchmarks.stream import Drain
from tests.kit.servers.redis import RedisServer

DAY_MS, DAYS = 86_400_000, 30
GROUP = 5_000
SEED = 23
TARGET_ROWS, TARGET_PER_S = 2_000_000, 20_000


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        etas = fill(found, rows)
        size = found.bytes()
        read_per_s = found.read_per_s() * rows / size
        kept = found.evict()
        with Child({"broker": server.url, "store": found.url, "ahead_ms": 0}) as child:
            child.until("held", 1)
            cold, cold_us = _dispatch(server, child, etas, rows // 10, "cold")
            found.read()
            warm, warm_us = _dispatch(server, child, etas, rows // 5, "warm")
            child.stop()
    yardstick, target = "sequential read", TARGET_PER_S if rows >= TARGET_ROWS else None
    yield Figure("cold", f"dispatch from a cold disk, {store}", cold, "rows/s", yardstick, read_per_s, target)
    yield Figure("cold", "… CPU of the scheduler", cold_us, "µs/row", "warm", warm_us, less_is_better=True)
    yield Figure("cold", "… the same, warm", warm, "rows/s", yardstick, read_per_s)
    yield Figure("cold", "… sequential read", read_per_s * size / rows / 1e6, "MB/s")
    yield Figure("cold", "… pages that stayed in memory", kept, "%")


def fill(database: Database, rows: int) -> array[int]:
    """Write pending rows with the usual messages; return their due times in order."""
    rng, now_ms = random.Random(SEED), int(time.time() * 1_000)
    etas = array("q", (now_ms + rng.randrange(DAY_MS, DAYS * DAY_MS) for _ in range(rows)))
    with closing(open_store(database.url, durability="memory")) as store, progress("fill", rows) as bar:
        holder, parts = Filler(store), realistic(rng)
        for start in range(0, rows, GROUP):
            holder.accept([holder.row(eta_ms, **next(parts)) for eta_ms in etas[start : start + GROUP]])
            bar(0, done=start)
        store.release(0, holder.epoch)
    return array("q", sorted(etas))


def _dispatch(server: RedisServer, child: Child, etas: array[int], upto: int, what: str) -> tuple[float, float]:
    """Let the rows up to a number be due; return the rate of their dispatch, and the CPU time of each in µs."""
    before = child.status()
    count = upto - before.dispatched
    with progress(what, count) as bar, Drain(server, QUEUES):
        began = time.perf_counter()
        child.move(etas[upto - 1] - before.now_ms)
        after = child.until("dispatched", upto, lambda status: bar(0, done=status.dispatched - before.dispatched))
        took_s = time.perf_counter() - began
    done = after.dispatched - before.dispatched
    return done / took_s, (after.cpu_s - before.cpu_s) / done * 1e6
