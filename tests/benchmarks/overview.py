"""The CPU of watching a store, and of the sums that make it cheap, which each commit keeps.

::

    fill     N pending at random due times of a year, 100 tasks, 20 queues, 16 shards (BENCH_SHARDS)
             each holder's snapshot has 20 buckets, as at this load; then a thousand
    commit   1,000 rows due in a year, or in ten minutes; then their settlement          µs a row, and of it the sums
    read     an overview, with and without the seconds of the next hour
    poll     the live part of the wheel page, through Django's test client
             the first poll of a second reads and renders; 49 others find what it has made
    tabs     50 of them poll once a second
    lists    the pages with rows, with each filter, over a fresh overview: CPU, and statements of the store

CPU is that of this process and of the database server. The time of a poll is that of the request alone: no web server.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from celery_wheel import overview
from celery_wheel.console.output import progress
from celery_wheel.engine.stats import SPAN_MS, SPANS, Recent, RecentSpan
from celery_wheel.operations.figure import Figure
from celery_wheel.overview import read_overview
from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS, Position
from celery_wheel.store.sql.changes import ChangeStatements
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.store import SqlStore
from tests.benchmarks.databases import Database, database
from tests.benchmarks.filler import LEASE_MS, Filler
from tests.benchmarks.reading import admin_client
from tests.kit.counts import reads_of

SHARDS = int(os.environ.get("BENCH_SHARDS", "16"))
YEAR_MS, TEN_MINUTES_MS = 365 * DAY_MS, 600_000
GROUP, TIMES, TABS = 1_000, 50, 50
#: Buckets of each level with tasks: at this load, and at a few tasks in each second.
FEW, MANY = 10, 500
SECONDS = 10


def run(folder: Path, rows: int, name: str) -> Iterator[Figure]:
    with database(folder, name) as found:
        cpu_s = _cpu_clock(found)
        store = open_store(found.url, shards=SHARDS, durability="memory")
        try:
            holders = _fill(store, rows)
            yield from _commits(store, holders, cpu_s)
            yield from _readings(store, cpu_s)
            yield from _polls(found.url, folder, holders, cpu_s)
        finally:
            store.close()


def _cpu_clock(found: Database) -> Callable[[], float]:
    """Return the CPU seconds of this process and of the database server."""
    server = None if found.pid is None else psutil.Process(found.pid)
    ended: dict[int, float] = {}

    def cpu_s() -> float:
        for one in [] if server is None else [server, *server.children(recursive=True)]:
            times = one.cpu_times()
            ended[one.pid] = times.user + times.system
        return time.process_time() + sum(ended.values())

    return cpu_s


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _rows(holder: Filler, count: int, within_ms: int, rng: random.Random) -> list[Any]:
    numbers = [rng.randrange(100) for _ in range(count)]
    due_ms = [_now_ms() + rng.randrange(within_ms) for _ in range(count)]
    return [
        holder.row(due, task=f"bench.tasks.task_{number}", queue=f"queue_{number % 20}")
        for due, number in zip(due_ms, numbers, strict=True)
    ]


def _fill(store: SqlStore, rows: int) -> list[Filler]:
    rng, holders = random.Random(1), [Filler(store, shard) for shard in range(store.shards)]
    with progress("fill", rows) as bar:
        for number, start in enumerate(range(0, rows, GROUP)):
            holder = holders[number % len(holders)]
            holder.accept(_rows(holder, min(GROUP, rows - start), YEAR_MS, rng))
            bar(0, done=start)
    _renew(holders, FEW)
    return holders


def _renew(holders: list[Filler], buckets: int) -> None:
    """Store each holder's snapshot, with so many buckets in each of two levels, and its last ten minutes."""
    found = [{"index": n, "expiration_ms": n, "pending": 1} for n in range(buckets)]
    level = {"tick_ms": 1, "interval_ms": 512, "current_time_ms": 0, "pending": buckets, "buckets": found}
    figures = ("window_count", "window_bytes", "dispatched", "rejected", "accepted", "cancelled")
    begins_ms, late = range(_now_ms() - SPANS * SPAN_MS, _now_ms(), SPAN_MS), {"p50_ms": 5, "p99_ms": 90}
    recent, spans = Recent(), list[RecentSpan]()
    for n, at_ms in enumerate(begins_ms):
        spans = recent.add(at_ms, n * 90_000, n * 90_000, late)
    levels = [{**level, "level": n} for n in range(2)]
    snapshot = {**dict.fromkeys(figures, 500), "recent": spans, "levels": levels}
    for holder in holders:
        holder.store.renew(holder.shard, holder.epoch, _now_ms(), LEASE_MS, snapshot)


def _commits(store: SqlStore, holders: list[Filler], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    rng, sums_s = random.Random(2), [0.0]
    statement, many = store.database.statements.of(ChangeStatements).add_total, Prepared.many

    def timed(self: Prepared, *given: Any) -> int:
        began_s = time.process_time()
        try:
            return many(self, *given)
        finally:
            sums_s[0] += (time.process_time() - began_s) * (self is statement)

    for what, within_ms in (("a year", YEAR_MS), ("ten minutes", TEN_MINUTES_MS)):
        batches = [(holder, _rows(holder, GROUP, within_ms, rng)) for holder in holders * (TIMES // len(holders) or 1)]
        with mock.patch.object(Prepared, "many", timed):
            sums_s[0], began_s = 0.0, cpu_s()
            for holder, rows in batches:
                holder.accept(rows)
            yield from _of_rows(f"commit, due in {what}", cpu_s() - began_s, sums_s[0], len(batches) * GROUP)
    last = _now_ms() + TEN_MINUTES_MS
    counts = [store.count(one.shard, 0, Position(0, 0), Position(last, 0)) for one in holders]
    with mock.patch.object(Prepared, "many", timed):
        sums_s[0], began_s = 0.0, cpu_s()
        for holder in holders:
            holder.settle(Position(last, 0))
        yield from _of_rows("settle", cpu_s() - began_s, sums_s[0], sum(counts))


def _of_rows(what: str, whole_s: float, sums_s: float, count: int) -> Iterator[Figure]:
    whole_us = whole_s / count * 1e6
    yield Figure("overview", what, whole_us, "µs a row")
    yield Figure("overview", f"{what}: the sums", sums_s / count * 1e6, "µs a row", "the whole", whole_us)


def _readings(store: SqlStore, cpu_s: Callable[[], float]) -> Iterator[Figure]:
    for what, options in (("a reading", {}), ("with the seconds", {"with_seconds": True})):
        yield _figure(what, lambda options=options: read_overview(store, _now_ms(), **options), cpu_s)  # type: ignore[misc]


def _figure(name: str, call: Callable[[], object], cpu_s: Callable[[], float], target: float | None = None) -> Figure:
    call()
    began_s = cpu_s()
    for _ in range(TIMES):
        call()
    spent_ms = (cpu_s() - began_s) / TIMES * 1_000
    return Figure("overview", name, spent_ms, "ms CPU", target=target, less_is_better=True)


def _polls(url: str, folder: Path, holders: list[Filler], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    client = admin_client(url, folder)
    yield from _lists(client, cpu_s)
    from django_wheel.views import wheel  # once Django is set up

    def poll() -> None:
        answer = client.get("/admin/django_wheel/wheel/live/")
        assert answer.status_code == 200, answer.content

    for buckets, what in ((FEW, ""), (MANY, f", {2 * MANY:,} buckets")):
        _renew(holders, buckets)
        wheel.WheelAdmin.live_parts = wheel.LiveParts()  # a year's chart may be kept for a while
        with mock.patch.object(overview, "FRESH_S", 0):
            yield _figure(f"a live poll, the first of a second{what}", poll, cpu_s, 10)
        with mock.patch.object(overview, "FRESH_S", 3_600):
            yield _figure(f"a live poll, each other{what}", poll, cpu_s)
        yield _tabs(f"{TABS} open tabs{what}", poll, cpu_s)


def _lists(client: Any, cpu_s: Callable[[], float]) -> Iterator[Figure]:
    from django_wheel.project import project_wheel  # once Django is set up

    opened = project_wheel().store
    assert isinstance(opened, SqlStore)
    task, queue = "task=bench.tasks.task_5", "queue=queue_5"
    filters = ("", task, queue, f"{task}&{queue}", "task=nobody")
    addresses = [f"{page}/?{one}" for page in ("pending", "history", "rejected") for one in filters]
    for address in [*addresses, "batch/", "shard/"]:

        def turn(address: str = address) -> None:
            answer = client.get(f"/admin/django_wheel/{address}")
            assert answer.status_code == 200, answer.content

        with mock.patch.object(overview, "FRESH_S", 3_600):
            yield _figure(address, turn, cpu_s, 60)
        with mock.patch.object(overview, "FRESH_S", 0), reads_of(opened) as statements:
            turn()
        yield Figure(
            "overview", f"{address} after a second", len(statements), "statements", target=12, less_is_better=True
        )


def _tabs(name: str, poll: Callable[[], None], cpu_s: Callable[[], float]) -> Figure:
    began_s, spent_s = time.monotonic(), cpu_s()
    for second in range(SECONDS):
        for _ in range(TABS):
            poll()
        time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
    percent = (cpu_s() - spent_s) / (time.monotonic() - began_s) * 100
    return Figure("overview", name, percent, "% of a core", target=10, less_is_better=True)
