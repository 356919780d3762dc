"""The CPU of metrics at 5,000 messages a second, with a page every second, and every 15 seconds.

::

    page       an idle scheduler, without and with a page each second, by turns          ms of CPU a page
    lateness   a row's part of the histograms, kept whether a page is read or not        µs a row
    message    five seconds' messages, due now, in and out                               µs of CPU a message
    share      of the scheduler's CPU at 5,000/s: the page and the histograms            %

The store has pending rows of a year, of 100 tasks in 20 queues. Two runs, without and with metrics, differ by more than
the share, so it is made of its parts.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redis

from celery_wheel.console.output import progress
from celery_wheel.engine.stats import LatenessByTask
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS, ORIGIN
from celery_wheel.store.ports.pages import END
from tests.benchmarks.child import Child
from tests.benchmarks.databases import SQLITE, database
from tests.benchmarks.filler import Filler
from tests.benchmarks.letters import AT_ONCE, WHEEL_QUEUE, Letters
from tests.benchmarks.parts import make_app
from tests.kit.servers import free_port
from tests.kit.servers.redis import RedisServer

PER_S, SHARE, EVERY_S = 5_000, 2, (1, 15)
TIMES, IDLE_S, MESSAGES = 5, 4, 5 * PER_S
YEAR_MS, GROUP = 365 * DAY_MS, 1_000


def run(folder: Path, rows: int, store: str = SQLITE) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server, database(folder, store) as found, progress("metrics", TIMES) as bar:
        lateness_us = _fill(found.url, rows // 20)
        url = f"127.0.0.1:{free_port()}"
        options = {"broker": server.url, "store": found.url, "ahead_ms": 0, "metrics": url}
        client = server.client()
        with closing(make_app(server.url, found.url)) as app:
            letters = Letters(app, client)  # before a scheduler takes its samples
        with Child(options) as child:
            child.until("held", 1)
            pages_ms = list[float]()
            for time_ in range(TIMES):
                bar(0, done=time_)
                idle_s = _idle_cpu_s(child)
                with _reading(url) as count:
                    pages_ms.append((_idle_cpu_s(child) - idle_s) / max(1, count()) * 1e3)
            message_us = _message_cpu_us(child, letters, client)
            child.stop()
    page_ms = statistics.median(pages_ms)
    yield Figure("metrics", f"a page, {store}", page_ms, "ms", less_is_better=True)
    yield Figure("metrics", "lateness", lateness_us, "µs/row", "the message", message_us, less_is_better=True)
    for every_s in EVERY_S:
        share = (page_ms * 1e3 / every_s / PER_S + lateness_us) / message_us * 100
        yield Figure("metrics", f"share, a page every {every_s} s", share, "%", target=SHARE, less_is_better=True)


def _fill(url: str, rows: int) -> float:
    """Fill the store, and return the µs that the histograms need for a row of it."""
    rng, now_ms = random.Random(1), time.time_ns() // 1_000_000
    with closing(open_store(url, durability="memory")) as store:
        filler = Filler(store)
        for _ in range(0, rows, GROUP):
            dues = [now_ms + DAY_MS + rng.randrange(YEAR_MS) for _ in range(GROUP)]
            filler.accept([filler.row(due, task=f"task_{due % 100}", queue=f"queue_{due % 20}") for due in dues])
        some = store.slice(0, 0, ORIGIN, store.slice_end(0, 0, ORIGIN, END, GROUP, 2**40))
        store.release(0, filler.epoch)
    lateness, took_s = LatenessByTask(), list[float]()
    for n in range(200):
        began_s = time.thread_time()
        lateness.add(some, now_ms + n)
        took_s.append(time.thread_time() - began_s)
    return statistics.median(took_s) / len(some) * 1e6


def _message_cpu_us(child: Child, letters: Letters, client: redis.Redis) -> float:
    now_ms = time.time_ns() // 1_000_000
    messages = list(letters.write([now_ms] * MESSAGES, now_ms))
    before = child.status()
    for first in range(0, MESSAGES, AT_ONCE):
        client.lpush(WHEEL_QUEUE, *messages[first : first + AT_ONCE])
    return (child.until("dispatched", MESSAGES).cpu_s - before.cpu_s) / MESSAGES * 1e6


def _idle_cpu_s(child: Child) -> float:
    before_s = child.status().cpu_s
    time.sleep(IDLE_S)
    return child.status().cpu_s - before_s


@contextmanager
def _reading(address: str) -> Iterator[Callable[[], int]]:
    """Read the page once a second; yields the number of pages read so far."""
    stop, pages = threading.Event(), list[int]()

    def read() -> None:
        while not stop.wait(1):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                pages.append(len(answer.read()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield lambda: len(pages)
    finally:
        stop.set()
        thread.join()
