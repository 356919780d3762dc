"""The rows of django-celery-beat, unchanged: the wheel that follows them beside the package's own scheduler.

::

    start    from a start of beat on an empty store to the first task of a row that is due each second
    follow   until all rows are in the store; edits of other rows meanwhile, one after the other, until each is live
    edit     of a row; of a crontab that a tenth of the rows share: until the first row and all of them have it
    restart  the same start with all rows in the store
    herd     all rows of that crontab due at one instant: until each is in its queue, with the lateness of other tasks

An edit is live when a store's schedule has it; for the package, when the messages of a row that is due each second have
it.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import redis

from celery_wheel.store import open_store
from tests.benchmarks.figure import Figure
from tests.benchmarks.stream import Probes, part
from tests.kit.servers.redis import RedisServer
from tests.kit.site.running import environment, migrated

#: Rows that are due each second, at even distances among the others; each SHARE-th row has the shared crontab.
FAST, SHARE = 10, 10
MOST_S = 1_800.0
#: Seconds between two edits while the rows are followed for the first time.
EDIT_EVERY_S = 2.0

less = partial(Figure, "tables", less_is_better=True)
TARGETS = {"first_s": 10, "live_s": 1, "mb": 500, "herd_s": 5, "late_ms": 250}


class Site:
    def __init__(self, folder: Path, server: RedisServer, rows: int) -> None:
        self.rows, self.server = rows, server
        self.client: redis.Redis = server.client()
        self.store_url = f"sqlite:///{folder}/wheel.sqlite3"
        more = {"SITE_APPS": "django_celery_beat", "SITE_STORE": self.store_url}
        migrated(folder, "", **more)
        self._environment = os.environ | environment(folder, "", SITE_BROKER=server.url, **more)
        self._database = sqlite3.connect(folder / "site.sqlite3", isolation_level=None, timeout=60)
        self._folder = folder
        self._fill()

    def _fill(self) -> None:
        now, run = datetime.now(UTC).replace(tzinfo=None), self._database.execute
        old = now - timedelta(days=1)
        table = "django_celery_beat_crontabschedule"
        fields = "id, minute, hour, day_of_week, day_of_month, month_of_year, timezone"
        for number in (1, 2):
            run(f"INSERT INTO {table} ({fields}) VALUES ({number}, '0', '{number}', '*', '1', '1', 'UTC')")
        run("INSERT INTO django_celery_beat_intervalschedule VALUES (1, 1, 'seconds')")
        every = max(1, self.rows // FAST)
        columns = [row[1] for row in run("PRAGMA table_info(django_celery_beat_periodictask)")]
        fixed = {
            "name": "CASE WHEN n % :every = 1 THEN 'fast ' ELSE 'row ' END || n",
            "task": "'site.nothing'",
            "args": "'[' || n || ']'",
            "kwargs": "'{}'",
            "enabled": "1",
            "total_run_count": "0",
            "date_changed": ":old",
            "description": "''",
            "interval_id": "CASE WHEN n % :every = 1 THEN 1 END",
            "crontab_id": f"CASE WHEN n % :every = 1 THEN NULL WHEN n % {SHARE} = 0 THEN 2 ELSE 1 END",
            "one_off": "0",
            "headers": "'{}'",
            "id": "n",
        }
        values = ", ".join(fixed.get(name, "NULL") for name in columns)
        numbers = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :rows) SELECT n FROM s"
        run(
            f"INSERT INTO django_celery_beat_periodictask SELECT {values} FROM ({numbers})",
            {"rows": self.rows, "every": every, "old": str(old)},
        )
        self.mark()

    def mark(self) -> None:
        """Move the package's change marker, as a save does."""
        now = str(datetime.now(UTC).replace(tzinfo=None))
        self._database.execute("INSERT OR REPLACE INTO django_celery_beat_periodictasks VALUES (1, ?)", (now,))

    def edit(self, number: int, queue: str) -> None:
        now = str(datetime.now(UTC).replace(tzinfo=None))
        table = "django_celery_beat_periodictask"
        self._database.execute(f"UPDATE {table} SET queue = ?, date_changed = ? WHERE id = ?", (queue, now, number))
        self.mark()

    def edit_shared(self, **fields: str) -> None:
        text = ", ".join(f"{name} = :{name}" for name in fields)
        self._database.execute(f"UPDATE django_celery_beat_crontabschedule SET {text} WHERE id = 2", fields)
        self.mark()

    @contextmanager
    def beat(self, scheduler: str) -> Iterator[psutil.Process]:
        celery = [sys.executable, "-m", "celery", "-A", "tests.kit.site", "beat", "--pidfile", "", "-l", "ERROR"]
        process = subprocess.Popen([*celery, "-S", scheduler], env=self._environment, start_new_session=True)
        try:
            yield psutil.Process(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def definitions(self, names: list[str]) -> list[dict[str, Any]]:
        with closing(open_store(self.store_url, shards=None, create=False)) as store:
            return [json.loads(one.definition) for _, one in store.schedules_named(names)]

    def count(self) -> int:
        with closing(open_store(self.store_url, shards=None, create=False)) as store:
            return store.browse.schedule_counts().total

    def shared(self, upto: int) -> list[str]:
        every = max(1, self.rows // FAST)
        found = (f"row {n}" for n in range(SHARE, upto + 1, SHARE) if n % every != 1)
        return list(found)


def run(folder: Path, rows: int) -> Iterator[Figure]:
    with RedisServer(folder / "redis") as server:
        site = Site(folder, server, rows)
        own_first_s, own_live_s, own_mb = _package(site)
        server.client().flushall()
        with site.beat("wheel") as process:
            first_s = _first(site)
            yield less(f"{rows:,} rows: start to first dispatch", first_s, "s", "the package", own_first_s, 10)
            took_s, lives_s = _follow(site)
            yield less("… until all are followed", took_s, "s")
            yield less("… an edit is live meanwhile, worst", max(lives_s), "s", target=TARGETS["live_s"])
            live_s = _live(site, 3, "later")
            yield less("an edit is live", live_s, "s", "the package", own_live_s, TARGETS["live_s"])
            site.edit_shared(minute="30")
            yield less(f"… of a crontab of {rows // SHARE:,} rows: the first", _minutes(site, 100), "s")
            yield less("… all of them", _minutes(site, rows), "s")
            mb = process.memory_info().rss / 1e6
            yield less("memory", mb, "MB", "the package", own_mb, TARGETS["mb"])
            cpu_s = sum(process.cpu_times()[:2])
            time.sleep(30)
            yield less("idle, of a core", (sum(process.cpu_times()[:2]) - cpu_s) / 30 * 100, "%")
        site.client.delete("celery")
        with site.beat("wheel"):
            yield less("restart to first dispatch", _first(site), "s", target=TARGETS["first_s"])
            yield less("an edit is live after a restart", _live(site, 5, "again"), "s", target=TARGETS["live_s"])
            yield from _herd(site, server)


def _until(state: Callable[[], bool], text: str) -> float:
    began_s = time.monotonic()
    while not state():
        assert time.monotonic() < began_s + MOST_S, text
        time.sleep(0.02)
    return time.monotonic() - began_s


def _first(site: Site) -> float:
    return _until(lambda: bool(site.client.llen("celery")), "no task of a row is sent")


def _package(site: Site) -> tuple[float, float, float]:
    with site.beat("django_celery_beat.schedulers:DatabaseScheduler") as process:
        first_s = _first(site)
        site.edit(1, "edited")
        live_s = _until(lambda: bool(site.client.llen("edited")), "the edit is not live")
        found = first_s, live_s, process.memory_info().rss / 1e6
    site.edit(1, "celery")
    return found


def _live(site: Site, number: int, queue: str) -> float:
    site.edit(number, queue)
    names = [f"row {number}", f"fast {number}"]
    return _until(
        lambda: any(one.get("options", {}).get("queue") == queue for one in site.definitions(names)),
        f"row {number} is not live",
    )


def _follow(site: Site) -> tuple[float, list[float]]:
    began_s, lives_s, number = time.monotonic(), list[float](), 0
    while site.count() < site.rows:
        number += 1
        lives_s.append(_live(site, site.rows * number * 7 % site.rows + number + 1, f"edit{number}"))
        time.sleep(EDIT_EVERY_S)
    return time.monotonic() - began_s, lives_s or [0.0]


def _minutes(site: Site, upto: int) -> float:
    names = site.shared(min(upto, site.rows))
    names = names[:50] + names[-50:]

    def are_new() -> bool:
        return all(one["recurrence"]["spec"]["minute"] == "30" for one in site.definitions(names))

    return _until(are_new, "the crontab is not live")


def _herd(site: Site, server: RedisServer) -> Iterator[Figure]:
    at = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=3 + site.rows // 200_000)
    day = {"day_of_month": str(at.day), "month_of_year": str(at.month)}
    with Probes(server, site.store_url) as probes:
        site.edit_shared(minute=str(at.minute), hour=str(at.hour), **day)
        count = len(site.shared(site.rows))
        site.client.delete("celery")
        time.sleep(max(0, at.timestamp() - time.time() - 0.5))
        fast = site.client.llen("celery")
        queued_s = _until(lambda: site.client.llen("celery") >= count + fast, "the herd is not sent")
    late = probes.between(at.timestamp() - 1, at.timestamp() + queued_s)
    yield less(f"{count:,} due at one instant, until in their queue", queued_s - 0.5, "s", target=TARGETS["herd_s"])
    yield less("lateness of other tasks meanwhile, 99 %", part(late, 99), "ms", target=TARGETS["late_ms"])
