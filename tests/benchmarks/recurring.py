"""Recurring schedules: many due at one instant, and very many that are idle.

::

    create     100,000 schedules by ``app.wheel.schedules.create_many``, while a scheduler runs
    herd       all of them are due at one instant, two minutes later, so that occurrences are made ahead: seconds until
               every message is in its queue, and the lateness of other tasks before and during it
    idle       1,000,000 schedules that are due later: CPU, memory, and seconds from a start to the first dispatch
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from celery_wheel.recurring import Crontab
from celery_wheel.requests.schedules.definitions import definition_of
from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS
from tests.benchmarks.child import Child
from tests.benchmarks.databases import databases
from tests.benchmarks.figure import Figure
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import PROBES, Probes, part
from tests.kit.servers.redis import RedisServer

HERD, QUEUE = 100_000, "bench.herd"

#: Seconds from the creation of the herd to its instant, at least.
LEAD_S, CREATING_S, IDLE_S = 120, 40, 20

less = partial(Figure, "recurring", less_is_better=True)
TARGETS = {"create_s": 10, "queued_s": 8, "late_ms": 250, "idle_percent": 1, "idle_mb": 400, "restart_s": 3}


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = min(HERD, rows)
    with RedisServer(folder / "redis") as server, databases(folder) as found:
        for measure, number in ((_herd, count), (_idle, 10 * count)):
            for name, make in found.items():
                yield from measure(server, name, make().url, number)
                server.client().flushall()


def _herd(server: RedisServer, name: str, store: str, count: int) -> Iterator[Figure]:
    client = server.client()
    at = datetime.fromtimestamp(math.ceil(time.time() + (CREATING_S + LEAD_S) * count / HERD + 15), UTC)
    with (
        make_app(server.url, store) as app,
        closing(app.wheel),
        Child(server.url, store) as child,
        Probes(server, store) as probes,
    ):
        began = time.perf_counter()
        pairs = ((f"daily/{number}", _arguments(number, at)) for number in range(count))
        answers = app.wheel.schedules.create_many(pairs, timeout=60)
        created_s = time.perf_counter() - began
        assert [one.result for one in answers.values()] == ["done"] * count
        target = TARGETS["create_s"] * count / HERD
        yield less(f"{count:,} created by the API, {name}", created_s, "s", target=target)
        quiet_s, cpu_s = time.time(), child.status().cpu_s
        time.sleep(max(0, at.timestamp() - 0.05 - time.time()))
        ahead_s = child.status().cpu_s - cpu_s
        while client.llen(QUEUE) < count:
            time.sleep(0.02)
            assert time.time() < at.timestamp() + 300, "not all messages arrive"
        queued_s = time.time() - at.timestamp()
        end_s = child.status().cpu_s
        time.sleep(2)
        assert client.llen(QUEUE) == count
    late = probes.between(at.timestamp() - 0.5, at.timestamp() + queued_s + 1)
    before = probes.between(quiet_s + 1, at.timestamp() - 0.5)
    yield less(f"… in their queues after their instant, {name}", queued_s, "s", target=TARGETS["queued_s"])
    message_us = (end_s - cpu_s) / count * 1e6
    yield Figure("recurring", f"… CPU a message, made ahead and dispatched, {name}", message_us, "µs")
    yield Figure("recurring", f"… of it before their instant, {name}", ahead_s / count * 1e6, "µs")
    for percent in (50, 99):
        both = part(late, percent), "ms", "before it", part(before, percent), TARGETS["late_ms"]
        yield less(f"lateness of other tasks meanwhile, {percent} %, {name}", *both)


def _arguments(number: int, at: datetime) -> dict[str, Any]:
    return {
        "recurrence": Crontab(str(at.minute), str(at.hour), second=str(at.second)),
        "zone": "UTC",
        "task": "shop.reports.tasks.send_daily",
        "args": (number, f"customer{number}@example.org"),
        "kwargs": {"template": "daily"},
        "queue": QUEUE,
    }


def _idle(server: RedisServer, name: str, store: str, count: int) -> Iterator[Figure]:
    with Child(server.url, store) as child:
        none_percent = _idle_percent(child)
    _fill(store, count)
    with make_app(server.url, store) as app:
        app.send_task("bench.probe", queue=PROBES, countdown=0.5)
    time.sleep(0.5)
    began = time.perf_counter()
    with Child(server.url, store) as child:
        child.until("dispatched", 1)
        started_s = time.perf_counter() - began
        percent, rss = _idle_percent(child), child.status().rss_peak
    words = f"{count:,} schedules: %s, {name}"
    yield less(words % "idle, of a core", percent, "%", "with none", none_percent, TARGETS["idle_percent"])
    yield less(words % "memory", rss / 1e6, "MB", target=TARGETS["idle_mb"])
    yield less(words % "start to first dispatch", started_s, "s", target=TARGETS["restart_s"])


def _idle_percent(child: Child) -> float:
    time.sleep(2)
    before, began = child.status(), time.perf_counter()
    time.sleep(IDLE_S)
    return (child.status().cpu_s - before.cpu_s) / (time.perf_counter() - began) * 100


def _fill(url: str, count: int) -> None:
    """Add schedules that are due within a month, from tomorrow on, in another order than that of their ids."""
    definition = json.dumps(definition_of(make_app("redis://", url), _arguments(1, datetime.now(UTC))))
    false, month_ms = ("false" if url.startswith("postgresql") else "0"), 30 * DAY_MS
    next_ms = f"{int(time.time() * 1_000) + DAY_MS} + n * 7919 - n * 7919 / {month_ms} * {month_ms}"
    values = f"n * 256, 0, 'daily/' || n, '{definition}', 'api', 1, {next_ms}, 0, NULL, {false}, '', {false}, NULL"
    numbers = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT * FROM s"
    numbers = f"generate_series(1::bigint, {count}) AS s(n)" if url.startswith("postgresql") else f"({numbers})"
    with closing(open_store(url)) as store, store.database.writing(durable=False) as connection:
        connection.exec_driver_sql(f"INSERT INTO wheel_schedule SELECT {values} FROM {numbers}")
