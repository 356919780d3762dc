"""Recurring schedules: many due at one instant, very many that are idle, and Celery's other schedulers.

::

    create     100,000 schedules by ``app.wheel.schedules.create_many``, while a scheduler runs
    herd       all of them are due at one instant: seconds until every message is in its queue, and the lateness of
               other tasks, before (occurrences are made ahead) and during it
    idle       1,000,000 schedules that are due later: CPU, memory, and seconds from a start to the first dispatch
    rivals     entries that are due at once, by the schedulers of django-celery-beat and redbeat

The herd's schedules are created two minutes before their instant, so that they can be made ahead as they are every
other day.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from celery_wheel.console.output import progress
from celery_wheel.operations.figure import Figure
from celery_wheel.recurring import Crontab
from celery_wheel.requests.schedules.definitions import definition_of
from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import stores
from tests.benchmarks.parts import make_app
from tests.benchmarks.rivals import KINDS
from tests.benchmarks.stream import PROBES, Probes, part
from tests.kit.servers.redis import RedisServer

HERD = 100_000
QUEUE = "bench.herd"

#: Seconds from the creation of the herd to its instant, at least.
LEAD_S = 120
CREATING_S = 40

IDLE_S = 20

#: Entries of the others, and the most seconds that they get.
RIVALS, RIVAL_S = 10_000, 60

less = partial(Figure, "recurring", less_is_better=True)
QUEUED = "… in their queues after their instant"

TARGETS = {"create_s": 10, "queued_s": 8, "late_ms": 250, "idle_percent": 1, "idle_mb": 400, "restart_s": 3}


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = min(HERD, rows)
    with (
        RedisServer(folder / "redis") as server,
        progress("recurring", 5) as bar,
        stores("recurring", folder) as found,
    ):
        herds: dict[str, float] = {}
        for done, (name, make) in enumerate(found.items()):
            bar(0, done=done, doing=f"herd, {name}")
            for figure in _herd(server, name, make(), count):
                if figure.name.startswith(QUEUED):
                    herds[name] = figure.value
                yield figure
            server.client().flushall()
        for done, (name, make) in enumerate(found.items(), 2):
            bar(0, done=done, doing=f"idle, {name}")
            yield from _idle(server, name, make(), 10 * count)
            server.client().flushall()
        bar(0, done=4, doing="rivals")
        yield from _rivals(server, folder, count, herds["SQLite"])


def _idle(server: RedisServer, name: str, store: str, count: int) -> Iterator[Figure]:
    """Measure a scheduler whose schedules are due tomorrow or later."""
    options = {"broker": server.url, "store": store, "ahead_ms": 0}
    with Child(options) as child:
        child.until("held", 1)
        none_percent = _idle_percent(child)
        child.stop()
    _fill(store, count)
    app = make_app(server.url, store)
    app.send_task("bench.probe", queue=PROBES, countdown=0.5)
    time.sleep(0.5)
    began = time.perf_counter()
    with Child(options) as child:
        child.until("dispatched", 1)
        started_s = time.perf_counter() - began
        percent, rss = _idle_percent(child), child.status().rss_peak
        child.stop()
    app.close()
    words = f"{count:,} schedules: %s, {name}"
    idle = percent, "%", "with none", none_percent, TARGETS["idle_percent"]
    yield less(words % "idle, of a core", *idle)
    for what, value, unit, target in (
        ("memory", rss / 1e6, "MB", TARGETS["idle_mb"]),
        ("start to first dispatch", started_s, "s", TARGETS["restart_s"]),
    ):
        yield less(words % what, value, unit, target=target)


def _idle_percent(child: Child) -> float:
    time.sleep(2)
    before, began = child.status(), time.perf_counter()
    time.sleep(IDLE_S)
    return (child.status().cpu_s - before.cpu_s) / (time.perf_counter() - began) * 100


def _fill(url: str, count: int) -> None:
    """Add schedules that are due within a month, from tomorrow on, in another order than that of their ids."""
    definition = json.dumps(definition_of(make_app("redis://", url), _arguments(1, datetime.now(UTC))))
    false, month_ms = ("false" if url.startswith("postgresql") else "0"), 30 * 86_400_000
    next_ms = f"{int(time.time() * 1_000) + 86_400_000} + n * 7919 - n * 7919 / {month_ms} * {month_ms}"
    values = f"n * 256, 0, 'daily/' || n, '{definition}', 'api', 1, {next_ms}, 0, NULL, {false}, '', {false}, NULL"
    numbers = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT * FROM s"
    numbers = f"generate_series(1::bigint, {count}) AS s(n)" if url.startswith("postgresql") else f"({numbers})"
    with closing(open_store(url)) as store, store.database.writing(durable=False) as connection:
        connection.exec_driver_sql(f"INSERT INTO wheel_schedule SELECT {values} FROM {numbers}")


def _rivals(server: RedisServer, folder: Path, count: int, queued_s: float) -> Iterator[Figure]:
    """Measure how fast the others send entries that are due, and compare with the herd."""
    for kind in KINDS:
        entries = min(RIVALS, count)
        options = {"kind": kind, "broker": server.url, "folder": str(folder), "entries": entries, "at_most_s": RIVAL_S}
        command = [sys.executable, "-m", "tests.benchmarks.rivals", json.dumps(options)]
        done = subprocess.run(command, input="begin\n", capture_output=True, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        per_s = said["sent"] / said["wall_s"]
        name = f"{count:,} due at once leave, SQLite"
        rival = f"{said['sent']:,} of {entries:,} by {kind}"
        yield Figure("recurring", name, count / queued_s, "/s", rival, per_s)
        server.client().flushall()


def _arguments(number: int, at: datetime) -> dict[str, Any]:
    return {
        "recurrence": Crontab(str(at.minute), str(at.hour), second=str(at.second)),
        "zone": "UTC",
        "task": "shop.reports.tasks.send_daily",
        "args": (number, f"customer{number}@example.org"),
        "kwargs": {"template": "daily"},
        "queue": QUEUE,
    }


def _herd(server: RedisServer, name: str, store: str, count: int) -> Iterator[Figure]:
    app, client = make_app(server.url, store), server.client()
    at = datetime.fromtimestamp(math.ceil(time.time() + (CREATING_S + LEAD_S) * count / HERD + 15), UTC)
    with Child({"broker": server.url, "store": store, "ahead_ms": 0}) as child, Probes(server, store) as probes:
        child.until("held", 1)
        began = time.perf_counter()
        pairs = ((f"daily/{number}", _arguments(number, at)) for number in range(count))
        answers = app.wheel.schedules.create_many(pairs, timeout=60)
        created_s = time.perf_counter() - began
        assert [one.result for one in answers.values()] == ["done"] * count
        target = TARGETS["create_s"] * count / HERD
        yield less(f"{count:,} created by the API, {name}", created_s, "s", target=target)
        quiet_s, cpu_s = time.time(), child.status().cpu_s
        while time.time() < at.timestamp() - 0.05:
            time.sleep(max(0, min(1, at.timestamp() - 0.05 - time.time())))
        ahead_s = child.status().cpu_s - cpu_s
        while client.llen(QUEUE) < count:
            time.sleep(0.02)
            assert time.time() < at.timestamp() + 300, "not all messages arrive"
        queued_s = time.time() - at.timestamp()
        end_s = child.status().cpu_s
        time.sleep(2)
        assert client.llen(QUEUE) == count
        child.stop()
    app.wheel.close()
    app.close()
    late = probes.between(at.timestamp() - 0.5, at.timestamp() + queued_s + 1)
    before = probes.between(quiet_s + 1, at.timestamp() - 0.5)
    yield less(f"{QUEUED}, {name}", queued_s, "s", target=TARGETS["queued_s"])
    message_us = (end_s - cpu_s) / count * 1e6
    yield Figure("recurring", f"… CPU a message, made ahead and dispatched, {name}", message_us, "µs")
    yield Figure("recurring", f"… of it before their instant, {name}", ahead_s / count * 1e6, "µs")
    for percent in (50, 99):
        both = part(late, percent), "ms", "before it", part(before, percent), TARGETS["late_ms"]
        yield less(f"lateness of other tasks meanwhile, {percent} %, {name}", *both)
