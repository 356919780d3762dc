"""``schedule_many`` against a loop of ``apply_async``, and the effect of such a load on the scheduler beside it.

::

    apply_async    a real Redis, one call after the other                                 the yardstick
    load           the same tasks through schedule_many into SQLite, and PostgreSQL, fsync on
    drain          a scheduler ingests the load                                           the yardstick: insert_again
    lateness       of probes on an idle scheduler, and while a process loads and the scheduler ingests

    python -m tests.benchmarks.many '{"broker": …, "store": …, "rows": 200000}'      a load in a process of its own
        line on stdin                       begin
        {"count": 200000, "wall_s": 7.1}    the end

``insert_again`` writes the rows that a scheduler accepted into an empty store by nothing but executemany on SQLite and
COPY on PostgreSQL, with their three indexes, as many in each commit as a scheduler writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from celery_wheel.console.output import ProgressBar, progress
from celery_wheel.engine.round import Limits
from celery_wheel.operations.bench import Pace, pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from celery_wheel.store.sql.schema import timer
from tests.benchmarks.child import Child, Status
from tests.benchmarks.databases import stores
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Probes, part
from tests.kit.servers.redis import RedisServer

TARGET_RATIO = 20
TURNS = 3
LOOP = 2_000
YARDSTICK = "apply_async to Redis"
INSERTED = "executemany or COPY of the rows"
SIGNATURES = "SQLite, as signatures made meanwhile"
CALM_S = 5


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = max(20_000, rows // 10)
    with (
        RedisServer(folder / "redis") as server,
        progress("many", TURNS + 2) as bar,
        stores("many", folder) as found,
    ):
        urls = {name: make() for name, make in found.items()}
        yield from _figures(server.url, urls, count, bar)
        server.client().flushall()
        bar(0, doing="scheduler")
        yield from _beside(server, urls["SQLite"], found["SQLite"], count, lambda done: bar(0, done=TURNS + done))


def _figures(broker: str, urls: dict[str, str], count: int, bar: ProgressBar) -> Iterator[Figure]:
    """Measure all ways alternately, so that other load of this machine affects all alike; the best of each counts."""
    loops: list[Pace] = []
    loads: dict[str, list[Pace]] = {name: [] for name in [*urls, SIGNATURES]}
    for turn in range(TURNS):
        bar(0, doing="apply_async")
        loops.append(_loop(broker, urls["SQLite"]))
        for name, store in urls.items():
            bar(0, doing=name)
            loads[name].append(_load(broker, store, count // TURNS))
        loads[SIGNATURES].append(_load(broker, urls["SQLite"], count // TURNS, as_signatures=True))
        bar(0, done=turn + 1)
    loop = max(loops, key=attrgetter("per_s"))
    for name, paces in loads.items():
        best = max(paces, key=attrgetter("per_s"))
        target = None if name == SIGNATURES else TARGET_RATIO * loop.per_s
        yield Figure("many", f"schedule_many into {name}", best.per_s, "rows/s", YARDSTICK, loop.per_s, target)
        yield Figure("many", "… CPU", best.cpu_us, "µs/row", YARDSTICK, loop.cpu_us, less_is_better=True)


def _loop(broker: str, store: str) -> Pace:
    app, task = app_and_task(broker, store)
    given = list(task_rows(task, LOOP))
    try:
        task.apply_async(given[0][1], given[0][2], eta=given[0][3])  # the first call connects

        def work() -> None:
            for _, args, kwargs, eta in given:
                task.apply_async(args, kwargs, eta=eta)

        return pace(work, LOOP)
    finally:
        app.close()


def _load(broker: str, store: str, count: int, *, as_signatures: bool = False) -> Pace:
    open_store(store).close()
    app, task = app_and_task(broker, store)
    given: Iterator[Any] = task_rows(task, count)
    if as_signatures:
        given = (one.signature(args, kwargs, eta=eta) for one, args, kwargs, eta in given)

    def work() -> None:
        done = app.wheel.schedule_many(given)
        assert (done.count, done.rejected) == (count, []), done

    try:
        return pace(work, count)
    finally:
        app.wheel.close()
        app.close()


def _beside(
    server: RedisServer, store: str, make: Callable[[], str], count: int, reach: Callable[[float], None]
) -> Iterator[Figure]:
    """Measure the scheduler: earlier loads are still in the inbox."""
    waiting = 2 * (count // TURNS) * TURNS
    with Child({"broker": server.url, "store": store, "ahead_ms": 0}) as child:
        child.until("held", 1)
        began, before = time.perf_counter(), child.status()
        after = child.until("accepted", waiting)
        took_s = time.perf_counter() - began
        yield from intake("many", "inbox accepted", before, after, took_s, insert_again(store, make, waiting))
        reach(1)
        calm = _probe(server, store, lambda: time.sleep(CALM_S))
        accepted = child.status().accepted
        wall_s = 0.0

        def work() -> None:
            nonlocal wall_s
            wall_s = _load_elsewhere(server.url, store, count)
            child.until("accepted", accepted + count)

        began = time.perf_counter()
        busy = _probe(server, store, work)
        yield Figure("many", "schedule_many beside the scheduler", count / wall_s, "rows/s")
        yield Figure("many", "… until all is taken in", count / (time.perf_counter() - began), "rows/s")
        for percent, of in ((50, "median"), (99, "99 %"), (100, "most")):
            late = part(busy, percent), "ms", "with no load", part(calm, percent)
            yield Figure("many", f"lateness during {count:,} rows, {of}", *late, less_is_better=True)
        reach(2)
        child.stop()


def intake(bench: str, what: str, before: Status, after: Status, wall_s: float, by_insert: Pace) -> Iterator[Figure]:
    """Compare the intake of rows with their mere insertion."""
    rows = after.accepted - before.accepted
    cpu_us = (after.cpu_s - before.cpu_s) / rows * 1e6
    yield Figure(bench, what, rows / wall_s, "rows/s", INSERTED, by_insert.per_s)
    yield Figure(bench, "… CPU", cpu_us, "µs/row", INSERTED, by_insert.cpu_us, less_is_better=True)


def _load_elsewhere(broker: str, store: str, count: int) -> float:
    """Load in a process of its own; returns the seconds that it took."""
    options = json.dumps({"broker": broker, "store": store, "rows": count})
    command = [sys.executable, "-m", "tests.benchmarks.many", options]
    done = subprocess.run(command, input="begin\n", capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["count"] == count, said
    return float(said["wall_s"])


def _probe(server: RedisServer, store: str, work: Callable[[], None]) -> list[float]:
    """Return the lateness in ms of probes that are sent while ``work`` runs."""
    with Probes(server, store) as probes:
        work()
    return sorted(late for _, late in probes.late_ms)


#: The span of the etas, which are at least a day ahead.
SPREAD = timedelta(days=30)


def app_and_task(broker: str, store: str) -> tuple[Any, Any]:
    """Return an app, and a task of the usual kind."""
    app = make_app(broker, store)

    def remind(user: int, address: str, *, template: str) -> None: ...

    return app, app.task(name="shop.accounts.tasks.remind_of_trial", shared=False)(remind)


def task_rows(task: Any, count: int) -> Iterator[tuple[Any, ...]]:
    start, step = datetime.now(UTC) + timedelta(days=1), SPREAD / count
    return ((task, (n, f"user{n}@example.org"), {"template": "trial-ends"}, start + n * step) for n in range(count))


def main(options: dict[str, Any]) -> None:
    app, task = app_and_task(options["broker"], options["store"])
    sys.stdin.readline()
    began = time.perf_counter()
    done = app.wheel.schedule_many(task_rows(task, options["rows"]))
    print(json.dumps({"count": done.count, "wall_s": time.perf_counter() - began}), flush=True)
    app.wheel.close()


def insert_again(url: str, make: Callable[[], str], count: int) -> Pace:
    """Write ``count`` rows of the store at ``url`` into a new store."""
    at_once = Limits().bulk_count
    with closing(open_store(url, create=False)) as source, closing(open_store(make())) as target:
        insert = target.database.statements.add_timer
        with source.database.reading() as connection:
            # As bytes: the drivers' own values, which the columns' types would turn into text.
            found = connection.exec_driver_sql(f"SELECT {', '.join(insert.names)} FROM {timer.name} LIMIT {count}")
            rows = [tuple(row) for row in found]

        def work() -> None:
            for start in range(0, len(rows), at_once):
                with target.database.writing() as connection:
                    insert.many(connection, rows[start : start + at_once])

        return pace(work, len(rows))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
