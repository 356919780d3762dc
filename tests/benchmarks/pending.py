"""Very many pending tasks in one store: its fill, a cold start, the calls and pages that people wait for, and streams.

::

    fill      past the engine: tasks without arguments, with random ids, due at random over the next 30 days   not timed
    cold      no page of the store is in memory; a scheduler starts                  until it holds, until it dispatches
    calls     of ``app.wheel`` and the admin, over the whole store                   CPU of both sides, and wall clock
    stream    6,000 messages a second in and out beside them, in spans of a minute   lateness of each span, memory
    pinned    800 a second beside a transaction that stays open on PostgreSQL        … and dead rows, bytes a message

The targets are those of 100,000,000 tasks: p99 50 ms, 200 MB, 10 s from a cold start, 50 ms of CPU for a page.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import redis

from celery_wheel.overview import FRESH_S
from celery_wheel.store.model import DAY_MS, HOUR_MS
from tests.benchmarks.child import Child
from tests.benchmarks.databases import POSTGRESQL, Database, database, open_transaction
from tests.benchmarks.figure import Figure
from tests.benchmarks.filler import fill_days
from tests.benchmarks.letters import WHEEL_QUEUE, Letters, letters_of
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Stream, through_wheel
from tests.benchmarks.watching import admin_pages, cpu_clock
from tests.kit.servers.redis import RedisServer

DAYS = 30
PER_S, PINNED_PER_S, SPAN_S = 6_000, 800, 60
#: Rows for each span; fewer rows have one span that is as much shorter.
ROWS_A_SPAN = 5_000_000
TIMES, CANCELS = 10, 30
P99_MS, MEMORY_MB, COLD_S, PAGE_MS = 50, 200, 10, 50

DEAD = "SELECT sum(n_dead_tup) FROM pg_stat_user_tables"


def pending(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    spans, span_s = (rows // ROWS_A_SPAN, SPAN_S) if rows >= ROWS_A_SPAN else (1, SPAN_S * rows / ROWS_A_SPAN)
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        client, what = server.client(), f"{rows:,} pending, {store}"
        letters = letters_of(server.url, client, size=0)
        start_ms = fill_days(found.url, rows // DAYS, DAYS, random.Random(41))
        yield Figure("pending", f"{what}, on disk", found.bytes() / 1e9, "GB")
        found.evict()
        began = time.perf_counter()
        with Child(server.url, found.url) as child:
            held_s = time.perf_counter() - began
            letters.push(client, WHEEL_QUEUE, [int(time.time() * 1_000)], int(time.time() * 1_000))
            child.until("dispatched", 1)
            cold_s = time.perf_counter() - began
            yield Figure("pending", f"cold start, {what}: the shard is held", held_s, "s")
            yield Figure("pending", "… a task is dispatched", cold_s, "s", target=COLD_S, less_is_better=True)
            yield from _calls(server, found, folder, start_ms)
            yield from _streamed(child, letters, client, PER_S, spans, max(1.0, span_s))
            if store == POSTGRESQL:
                yield from _pinned(found, child, letters, client, spans, max(1.0, span_s))


def _calls(server: RedisServer, found: Database, folder: Path, start_ms: int) -> Iterator[Figure]:
    cpu_s, rng = cpu_clock(found), random.Random(37)
    page = admin_pages(found.url, folder)
    with make_app(server.url, found.url) as app, closing(app.wheel) as wheel:
        last_ms = start_ms + DAYS * DAY_MS - HOUR_MS

        def some_id() -> str:
            from_ms = rng.randrange(start_ms, last_ms)
            [one] = wheel.pending(limit=1, from_ms=from_ms).items
            return str(one.task_id)

        ids = iter([some_id() for _ in range(TIMES + 1)])
        for what, call in (
            ("the first page of pending", lambda: wheel.pending(limit=100)),
            ("the last page", lambda: wheel.pending(limit=100, from_ms=last_ms)),
            ("a task by its id", lambda: wheel.find(next(ids))),
            ("the forecast of each hour", wheel.forecast),
            ("… by queue", lambda: wheel.forecast("queue")),
            ("the herds ahead", wheel.ahead),
            ("the live page", page("wheel/live/")),
            ("the page of pending tasks", page("pending/")),
        ):
            yield from _called(what, call, cpu_s)
        took_ms = list[float]()
        for one in [some_id() for _ in range(CANCELS)]:
            began = time.perf_counter()
            assert wheel.cancel(one) == "done"
            took_ms.append((time.perf_counter() - began) * 1e3)
    yield Figure("pending", "cancel by id, median", statistics.median(took_ms), "ms", less_is_better=True)
    yield Figure("pending", "… most", max(took_ms), "ms", less_is_better=True)


def _called(what: str, call: Callable[[], object], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    """Call once, and then again and again, more than a second apart: all calls of a second share one overview."""
    walls_ms, cpus_ms = list[float](), list[float]()
    for _ in range(1 + TIMES):
        began, began_s = time.perf_counter(), cpu_s()
        call()
        walls_ms.append((time.perf_counter() - began) * 1e3)
        cpus_ms.append((cpu_s() - began_s) * 1e3)
        time.sleep(1.1 * FRESH_S)
    yield Figure("pending", f"{what}: the first time", walls_ms[0], "ms", less_is_better=True)
    yield Figure("pending", "… afterwards, median", statistics.median(walls_ms[1:]), "ms", less_is_better=True)
    mean_ms = statistics.mean(cpus_ms[1:])
    yield Figure("pending", "… CPU, mean", mean_ms, "ms", target=PAGE_MS, less_is_better=True)


def _streamed(
    child: Child, letters: Letters, client: redis.Redis, rate: int, spans: int, span_s: float
) -> Iterator[Figure]:
    found = list[Stream]()
    for n in range(spans):
        stream = through_wheel(child, letters, client, rate, span_s)
        late = ", ".join(f"{name} {stream.late_ms(of):.1f}" for name, of in (("p50", 50), ("p99", 99), ("most", 100)))
        memory_mb = child.status().rss / 2**20
        say = f"{rate:,}/s, span {n}: {late} ms, {stream.cpu_us:.0f} µs, {memory_mb:.0f} MB"
        print(say, file=sys.stderr, flush=True)
        found.append(stream)
    what = f"{rate:,}/s for {spans} spans of {span_s:.0f} s, lateness"
    for name, percent, target in (("p50", 50, None), ("p99", 99, P99_MS), ("most", 100, None)):
        late_ms = [one.late_ms(percent) for one in found]
        aim = {"target": target, "less_is_better": True}
        yield Figure("pending", f"{what}, {name}, median of the spans", statistics.median(late_ms), "ms", **aim)
        yield Figure("pending", "… worst span", max(late_ms), "ms", less_is_better=True)
    yield Figure("pending", "… CPU", statistics.median(one.cpu_us for one in found), "µs/message")
    memory = child.status().rss_peak / 2**20, "MB"
    yield Figure("pending", "… peak of the scheduler's memory", *memory, target=MEMORY_MB, less_is_better=True)


def _pinned(
    found: Database, child: Child, letters: Letters, client: redis.Redis, spans: int, span_s: float
) -> Iterator[Figure]:
    with open_transaction(found.url), psycopg.connect(found.url, autocommit=True) as reader:
        before, passed = found.bytes(), child.status().dispatched
        yield from _streamed(child, letters, client, PINNED_PER_S, spans, span_s)
        passed = child.status().dispatched - passed
        [[dead]] = reader.execute(DEAD).fetchall()
    yield Figure("pending", "… dead rows beside the open transaction", float(dead) / passed, "a message")
    yield Figure("pending", "… the tables grew by", (found.bytes() - before) / passed, "bytes a message")
