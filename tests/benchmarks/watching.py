"""The cost of watching a store: its overview and the pages of the admin, and metrics.

CPU is that of this process and of the database server. The time of a page is that of the request alone, through
Django's test client: no web server.
"""

import os
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from celery_wheel import overview as overview_module
from celery_wheel.engine.stats import SPAN_MS, SPANS, LatenessByTask, Recent, RecentSpan
from celery_wheel.overview import read_overview
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.ports.pages import END
from celery_wheel.store.sql.changes import ChangeStatements
from celery_wheel.store.sql.statement import Prepared
from celery_wheel.store.sql.store import SqlStore
from tests.benchmarks.beat import Tree
from tests.benchmarks.child import Child
from tests.benchmarks.databases import Database, database
from tests.benchmarks.figure import Figure
from tests.benchmarks.filler import Filler, fill, small
from tests.benchmarks.letters import AT_ONCE, WHEEL_QUEUE, letters_of
from tests.benchmarks.stream import InBackground
from tests.kit.counts import reads_of
from tests.kit.holder import LEASE
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer

SHARDS, DAYS = 16, 365
YEAR_MS, TEN_MINUTES_MS = DAYS * 86_400_000, 600_000
GROUP, TIMES, TABS, SECONDS = 1_000, 50, 50, 10
#: Buckets of each level with tasks: at this load, and at a few tasks in each second.
FEW, MANY = 10, 500


def overview(folder: Path, rows: int, name: str) -> Iterator[Figure]:
    """The CPU of watching a store, and of the sums that make it cheap, which each commit keeps.

    ::

        fill     N pending at random due times of a year, 100 tasks, 20 queues, 16 shards
                 each holder's snapshot has 20 buckets, as at this load; then a thousand
        commit   1,000 rows due in a year, or in ten minutes; then their settlement    µs a row, and of it the sums
        read     an overview, with and without the seconds of the next hour
        poll     the live part of the wheel page
                 the first poll of a second reads and renders; 49 others find what it has made
        tabs     50 of them poll once a second
        lists    the pages with rows, with each filter, over a fresh overview: CPU, and statements of the store
    """
    with database(folder, name) as found:
        cpu_s, rng = cpu_clock(found), random.Random(1)
        fill(found.url, rows, small(rng), rng, shards=SHARDS, days=(0, DAYS))
        store = open_store(found.url, shards=SHARDS, durability="memory")
        try:
            holders = [Filler(store, shard) for shard in range(SHARDS)]
            _renew(holders, FEW)
            yield from _commits(store, holders, cpu_s)
            for what, options in (("a reading", {}), ("with the seconds", {"with_seconds": True})):
                read = lambda options=options: read_overview(store, _now_ms(), **options)  # noqa: E731
                yield _figure(what, read, cpu_s)
            yield from _polls(found.url, folder, holders, cpu_s)
        finally:
            store.close()


def cpu_clock(found: Database) -> Callable[[], float]:
    server = found.pid and Tree(psutil.Process(found.pid))
    return lambda: time.process_time() + (server.cpu_s if server else 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        holder.store.renew(holder.shard, holder.epoch, _now_ms(), LEASE, snapshot)


def _commits(store: SqlStore, holders: list[Filler], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    rng, sums_s = random.Random(2), 0.0
    parts = small(rng)
    statement = store.database.statements.of(ChangeStatements).add_total
    kind, many = type(statement), type(statement).many

    def timed(self: Prepared, *given: Any) -> int:
        nonlocal sums_s
        began_s = time.process_time()
        try:
            return many(self, *given)
        finally:
            sums_s += (time.process_time() - began_s) * (self is statement)

    def measured(what: str, work: Callable[[], object], count: int) -> Iterator[Figure]:
        nonlocal sums_s
        sums_s, began_s = 0.0, cpu_s()
        with mock.patch.object(kind, "many", timed):
            work()
        whole_us = (cpu_s() - began_s) / count * 1e6
        yield Figure("overview", what, whole_us, "µs a row")
        yield Figure("overview", f"{what}: the sums", sums_s / count * 1e6, "µs a row", "the whole", whole_us)

    for what, within_ms in (("a year", YEAR_MS), ("ten minutes", TEN_MINUTES_MS)):
        some = holders * (TIMES // len(holders) or 1)
        dues_ms = [[_now_ms() + rng.randrange(within_ms) for _ in range(GROUP)] for _ in some]
        rows = [[one.row(due_ms, **next(parts)) for due_ms in each] for one, each in zip(some, dues_ms, strict=True)]
        work = lambda some=some, rows=rows: [one.add(each) for one, each in zip(some, rows, strict=True)]  # noqa: E731
        yield from measured(f"commit, due in {what}", work, len(some) * GROUP)
    last = Position(_now_ms() + TEN_MINUTES_MS, 0)
    count = sum(store.count(one.shard, 0, ORIGIN, last) for one in holders)
    yield from measured("settle", lambda: [holder.settle_upto(last) for holder in holders], count)


def _figure(name: str, call: Callable[[], object], cpu_s: Callable[[], float], target: float | None = None) -> Figure:
    call()
    began_s = cpu_s()
    for _ in range(TIMES):
        call()
    spent_ms = (cpu_s() - began_s) / TIMES * 1_000
    return Figure("overview", name, spent_ms, "ms CPU", target=target, less_is_better=True)


def admin_pages(url: str, folder: Path) -> Callable[[str], Callable[[], None]]:
    """Set up the admin of a store; return a function from an address to a call that gets its page."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.kit.site.settings", "SITE_FOLDER": str(folder), "SITE_STORE": url}
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("reader"))

    def get(address: str) -> Callable[[], None]:
        def got() -> None:
            answer = client.get(f"/admin/django_wheel/{address}")
            assert answer.status_code == 200, answer.content

        return got

    return get


def _polls(url: str, folder: Path, holders: list[Filler], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    get = admin_pages(url, folder)
    yield from _lists(get, cpu_s)
    from django_wheel.views import wheel  # once Django is set up

    poll = get("wheel/live/")
    for buckets, what in ((FEW, ""), (MANY, f", {2 * MANY:,} buckets")):
        _renew(holders, buckets)
        wheel.WheelAdmin.live_parts = wheel.LiveParts()  # a year's chart may be kept for a while
        with mock.patch.object(overview_module, "FRESH_S", 0):
            yield _figure(f"a live poll, the first of a second{what}", poll, cpu_s, 10)
        with mock.patch.object(overview_module, "FRESH_S", 3_600):
            yield _figure(f"a live poll, each other{what}", poll, cpu_s)
        began_s, spent_s = time.monotonic(), cpu_s()
        for second in range(SECONDS):
            for _ in range(TABS):
                poll()
            time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
        percent = (cpu_s() - spent_s) / (time.monotonic() - began_s) * 100
        name = f"{TABS} open tabs{what}"
        yield Figure("overview", name, percent, "% of a core", target=10, less_is_better=True)


def _lists(get: Callable[[str], Callable[[], None]], cpu_s: Callable[[], float]) -> Iterator[Figure]:
    from django_wheel.project import project_wheel  # once Django is set up

    opened = project_wheel().store
    assert isinstance(opened, SqlStore)
    task, queue = "task=bench.tasks.task_5", "queue=queue_5"
    filters = ("", task, queue, f"{task}&{queue}", "task=nobody")
    addresses = [f"{page}/?{one}" for page in ("pending", "history", "rejected") for one in filters]
    for address in [*addresses, "settlement/", "shard/"]:
        turn = get(address)
        with mock.patch.object(overview_module, "FRESH_S", 3_600):
            yield _figure(address, turn, cpu_s, 60)
        with mock.patch.object(overview_module, "FRESH_S", 0), reads_of(opened) as statements:
            turn()
        of = len(statements), "statements"
        yield Figure("overview", f"{address} after a second", *of, target=12, less_is_better=True)


PER_S, SHARE, EVERY_S = 5_000, 2, (1, 15)
TURNS, IDLE_S, MESSAGES = 5, 4, 5 * PER_S


def metrics(folder: Path, rows: int, store: str) -> Iterator[Figure]:
    """The CPU of metrics at 5,000 messages a second, with a page every second, and every 15 seconds.

    ::

        page       an idle scheduler, without and with a page each second, by turns          ms of CPU a page
        lateness   a row's part of the histograms, kept whether a page is read or not        µs a row
        message    five seconds' messages, due now, in and out                               µs of CPU a message
        share      of the scheduler's CPU at 5,000/s: the page and the histograms            %

    The store has pending rows of a year, of 100 tasks in 20 queues. Two runs, without and with metrics, differ by more
    than the share, so it is made of its parts.
    """
    with RedisServer(folder / "redis") as server, database(folder, store) as found:
        rng = random.Random(1)
        fill(found.url, rows // 20, small(rng), rng, days=(1, DAYS))
        lateness_us = _lateness_us(found.url)
        address, client = f"127.0.0.1:{free_port()}", server.client()
        letters = letters_of(server.url, client)
        with Child(server.url, found.url, metrics=address) as child:
            pages_ms = list[float]()
            for _ in range(TURNS):
                idle_s = _idle_cpu_s(child)
                with _reading(address) as pages:
                    pages_ms.append((_idle_cpu_s(child) - idle_s) / max(1, len(pages)) * 1e3)
            messages = list(letters.write([_now_ms()] * MESSAGES, _now_ms()))
            before = child.status()
            for first in range(0, MESSAGES, AT_ONCE):
                client.lpush(WHEEL_QUEUE, *messages[first : first + AT_ONCE])
            message_us = (child.until("dispatched", MESSAGES).cpu_s - before.cpu_s) / MESSAGES * 1e6
    page_ms = statistics.median(pages_ms)
    yield Figure("metrics", f"a page, {store}", page_ms, "ms", less_is_better=True)
    yield Figure("metrics", "lateness", lateness_us, "µs/row", "the message", message_us, less_is_better=True)
    for every_s in EVERY_S:
        share = (page_ms * 1e3 / every_s / PER_S + lateness_us) / message_us * 100
        yield Figure("metrics", f"share, a page every {every_s} s", share, "%", target=SHARE, less_is_better=True)


def _lateness_us(url: str) -> float:
    with closing(open_store(url)) as store:
        some = store.slice(0, 0, ORIGIN, store.slice_end(0, 0, ORIGIN, END, GROUP, 2**40))
    lateness, took_s, now_ms = LatenessByTask(), list[float](), _now_ms()
    for n in range(200):
        began_s = time.thread_time()
        lateness.add(some, now_ms + n)
        took_s.append(time.thread_time() - began_s)
    return statistics.median(took_s) / len(some) * 1e6


def _idle_cpu_s(child: Child) -> float:
    before_s = child.status().cpu_s
    time.sleep(IDLE_S)
    return child.status().cpu_s - before_s


@contextmanager
def _reading(address: str) -> Iterator[list[int]]:
    pages = list[int]()

    def read() -> None:
        while not reader.over.wait(1):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                pages.append(len(answer.read()))

    with (reader := InBackground(read)):
        yield pages
