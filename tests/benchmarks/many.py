"""Many tasks in one call: loads by ``schedule_many`` and Spark, their intake, and completion by keys.

::

    python -m tests.benchmarks.many '{"broker": …, "store": …, "rows": 200000}'      a load in a process of its own
        {"count": 200000, "wall_s": 7.1}
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from celery_wheel.engine.round import Limits
from celery_wheel.operations.bench import Pace
from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.sql.changes import ChangeStatements
from celery_wheel.store.sql.schema import timer
from tests.benchmarks.child import Child, measured
from tests.benchmarks.databases import POSTGRESQL, SQLITE, Database, databases
from tests.benchmarks.figure import Figure, pace
from tests.benchmarks.letters import UNUSED
from tests.benchmarks.parts import make_app
from tests.benchmarks.stream import Probes, part
from tests.kit.servers.redis import RedisServer

TURNS, LOOP, CALM_S = 3, 2_000, 5
YARDSTICK = "apply_async to Redis"
INSERTED = "executemany or COPY of the rows"
SIGNATURES = f"{SQLITE}, as signatures made meanwhile"


def many(folder: Path, rows: int) -> Iterator[Figure]:
    """``schedule_many`` against a loop of ``apply_async``, and the effect of such a load on the scheduler beside it.

    ::

        apply_async    a real Redis, one call after the other                                 the yardstick
        load           the same tasks through schedule_many into SQLite, and PostgreSQL, fsync on
        drain          a scheduler ingests the load                                         the yardstick: a mere insert
        lateness       of probes on an idle scheduler, and while a process loads and the scheduler ingests
    """
    count = max(20_000, rows // 10)
    with RedisServer(folder / "redis") as server, databases(folder) as found:
        urls = {name: make().url for name, make in found.items()}
        loops: list[Pace] = []
        loads: dict[str, list[Pace]] = {name: [] for name in [*urls, SIGNATURES]}
        for _ in range(TURNS):  # alternately, so that other load of this machine affects all alike; the best counts
            loops.append(_loop(server.url))
            for name, store in urls.items():
                loads[name].append(_load(server.url, store, count // TURNS))
            loads[SIGNATURES].append(_load(server.url, urls[SQLITE], count // TURNS, as_signatures=True))
        loop = _best(loops)
        for name, paces in loads.items():
            best, target = _best(paces), None if name == SIGNATURES else 20 * loop.per_s
            yield Figure("many", f"schedule_many into {name}", best.per_s, "rows/s", YARDSTICK, loop.per_s, target)
            yield Figure("many", "… CPU", best.cpu_us, "µs/row", YARDSTICK, loop.cpu_us, less_is_better=True)
        server.client().flushall()
        yield from _beside(server, urls[SQLITE], found[SQLITE], count)


def _best(paces: list[Pace]) -> Pace:
    return max(paces, key=attrgetter("per_s"))


def _app_and_task(broker: str, store: str) -> tuple[Any, Any]:
    app = make_app(broker, store)

    def remind(user: int, address: str, *, template: str) -> None: ...

    return app, app.task(name="shop.accounts.tasks.remind_of_trial", shared=False)(remind)


def _task_rows(task: Any, count: int) -> Iterator[tuple[Any, ...]]:
    start, step = datetime.now(UTC) + timedelta(days=1), timedelta(days=30) / count
    return ((task, (n, f"user{n}@example.org"), {"template": "trial-ends"}, start + n * step) for n in range(count))


def _loop(broker: str) -> Pace:
    app, task = _app_and_task(broker, UNUSED)
    given = list(_task_rows(task, LOOP))

    def work() -> None:
        for _, args, kwargs, eta in given:
            task.apply_async(args, kwargs, eta=eta)

    with app:
        task.apply_async(given[0][1], given[0][2], eta=given[0][3])  # the first call connects
        return pace(work, LOOP)


def _load(broker: str, store: str, count: int, *, as_signatures: bool = False) -> Pace:
    open_store(store).close()
    app, task = _app_and_task(broker, store)
    given: Iterator[Any] = _task_rows(task, count)
    if as_signatures:
        given = (one.signature(args, kwargs, eta=eta) for one, args, kwargs, eta in given)

    def work() -> None:
        done = app.wheel.schedule_many(given)
        assert (done.count, done.rejected) == (count, []), done

    with app, closing(app.wheel):
        return pace(work, count)


def _beside(server: RedisServer, store: str, make: Callable[[], Database], count: int) -> Iterator[Figure]:
    """Measure the scheduler: earlier loads are still in the inbox."""
    waiting = 2 * (count // TURNS) * TURNS
    with Child(server.url, store) as child:
        yield from _intake("many", "inbox accepted", child, waiting, store, make)
        calm = _late_ms(server, store, lambda: time.sleep(CALM_S))
        accepted, wall_s = child.status().accepted, 0.0

        def work() -> None:
            nonlocal wall_s
            said = measured("many", json.dumps({"broker": server.url, "store": store, "rows": count}))
            assert said["count"] == count, said
            wall_s = said["wall_s"]
            child.until("accepted", accepted + count)

        began = time.perf_counter()
        busy = _late_ms(server, store, work)
        yield Figure("many", "schedule_many beside the scheduler", count / wall_s, "rows/s")
        yield Figure("many", "… until all is taken in", count / (time.perf_counter() - began), "rows/s")
    for percent, of in ((50, "median"), (99, "99 %"), (100, "most")):
        late = part(busy, percent), "ms", "with no load", part(calm, percent)
        yield Figure("many", f"lateness during {count:,} rows, {of}", *late, less_is_better=True)


def _intake(
    bench: str, what: str, child: Child, count: int, store: str, make: Callable[[], Database]
) -> Iterator[Figure]:
    """Compare the intake of rows, from now on, with their mere insertion."""
    began, before = time.perf_counter(), child.status()
    after = child.until("accepted", count)
    rows, wall_s = after.accepted - before.accepted, time.perf_counter() - began
    by_insert = _insert_again(store, make().url, count)
    cpu_us = (after.cpu_s - before.cpu_s) / rows * 1e6
    yield Figure(bench, what, rows / wall_s, "rows/s", INSERTED, by_insert.per_s)
    yield Figure(bench, "… CPU", cpu_us, "µs/row", INSERTED, by_insert.cpu_us, less_is_better=True)


def _insert_again(url: str, empty: str, count: int) -> Pace:
    """Write accepted rows with their indexes by nothing but executemany or COPY, as many a commit as a scheduler."""
    at_once = Limits().bulk_count
    with closing(open_store(url, create=False)) as source, closing(open_store(empty)) as target:
        insert = target.database.statements.of(ChangeStatements).add_timer
        with source.database.reading() as connection:
            # As bytes: the drivers' own values, which the columns' types would turn into text.
            names = ", ".join(f'"{name}"' for name in insert.names)  # "group" is a word of SQL
            found = connection.exec_driver_sql(f"SELECT {names} FROM {timer.name} LIMIT {count}")
            rows = [tuple(row) for row in found]

        def work() -> None:
            for start in range(0, len(rows), at_once):
                with target.database.writing() as connection:
                    insert.many(connection, rows[start : start + at_once])

        return pace(work, len(rows))


def _late_ms(server: RedisServer, store: str, work: Callable[[], None]) -> list[float]:
    """Return the lateness of probes that are sent while ``work`` runs, in its order."""
    with Probes(server, store) as probes:
        work()
    return probes.between()


LOAD_TARGETS, LOAD_RATIO, WARM = {SQLITE: 60_000, POSTGRESQL: 150_000}, 50, 2_000


def load(folder: Path, rows: int) -> Iterator[Figure]:
    """A bulk load from Spark against a loop of ``apply_async`` and against ``schedule_many``, in one run.

    ::

        apply_async     a real Redis, one call after the other                                     the yardstick
        schedule_many   the same tasks into SQLite, and PostgreSQL, fsync on                       one process
        Spark           the same from a DataFrame with a key column, local[2], until it is committed
        intake          a scheduler ingests the load: rows with their three indexes

    Spark is warm: the cost of its first use in a process is a figure of its own.
    """
    from celery_wheel.pipeline.session import session

    count = max(100_000, rows // 2)
    with RedisServer(folder / "redis") as server, databases(folder) as found:
        urls, others = ({name: make().url for name, make in found.items()} for _ in range(2))
        began = time.perf_counter()
        settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
        spark = session("local[2]", name="bench", settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        frame = _frame(spark, count, folder)
        loops: list[Pace] = []
        loads, by_many = ({name: list[Pace]() for name in urls} for _ in range(2))
        try:
            for store in urls.values():
                open_store(store).close()
                _save(frame.limit(WARM).drop("trial"), store, "warm")
            yield Figure("load", "Spark started, and its first loads", time.perf_counter() - began, "s")
            for turn in range(TURNS):
                loops.append(_loop(server.url))
                for name, store in urls.items():
                    by_many[name].append(_load(server.url, others[name], 20_000))
                    save = lambda store=store, turn=turn: _save(frame, store, f"turn {turn}", key="trial")  # noqa: E731
                    loads[name].append(pace(save, count))
        finally:
            spark.stop()
        loop = _best(loops).per_s
        yield Figure("load", YARDSTICK, loop, "rows/s")
        for name, paces in loads.items():
            best = _best(paces).per_s
            target = max(LOAD_TARGETS[name], LOAD_RATIO * loop) if name == POSTGRESQL else LOAD_TARGETS[name]
            yield Figure("load", f"{count:,} rows by Spark into {name}", best, "rows/s", YARDSTICK, loop, target)
            yield Figure("load", f"… {name}", best, "rows/s", "schedule_many, one process", _best(by_many[name]).per_s)
        for name, url in urls.items():  # of one load: the others have the same keys, and the store ignores known keys
            with closing(open_store(url, create=False)) as loaded:
                oldest = min(one.rows for one in loaded.loads.latest() if one.rows > WARM)
            server.client().flushall()  # a broker keeps the offset of one store
            with Child(server.url, url) as child:
                what, rows = f"accepted by the scheduler, {name}", min(oldest, 200_000)
                yield from _intake("load", what, child, rows, url, found[name])


def _frame(spark: Any, count: int, folder: Path) -> Any:
    from pyspark.sql import functions

    start_ms = int(time.time() * 1_000) + DAY_MS
    rows = spark.range(0, count, 1, 2).select(
        functions.lit("shop.accounts.tasks.remind_of_trial").alias("task"),
        functions.expr("concat('[', id, ', \"user', id, '@example.org\"]')").alias("args"),
        functions.lit('{"template": "trial-ends"}').alias("kwargs"),
        functions.expr(f"timestamp_millis({start_ms}L + (id * 2592000000L) div {count})").alias("eta"),
        functions.lit("mail").alias("queue"),
        functions.expr("concat('trial-', id)").alias("trial"),
    )
    rows.write.mode("overwrite").parquet(str(folder / "reminders"))
    return spark.read.parquet(str(folder / "reminders"))


def _save(frame: Any, store: str, batch: str, **key: str) -> None:
    frame.write.format("wheel").options(url=store, batch=batch, **key).mode("append").save()


GROUP, SINGLE, DAY_S, COMPLETE_S = 5_000, 300, 86_400, 120


def complete(folder: Path, rows: int) -> Iterator[Figure]:
    """Completion across processes: each of many tasks watches a key of its own, and another process completes the keys.

    ::

        rows sent, due in days, each with a key          not timed
        app.wheel.complete(GROUP keys), repeatedly       completions/s, by the caller's wall clock
        app.wheel.complete(one key), a few hundred       time until the result

    The bench ends with an error unless each task is completed exactly once.
    """
    with databases(folder) as found:
        for name, make in found.items():
            url = make().url
            with (
                RedisServer(folder / name) as broker,  # a broker for each store: it keeps the offsets of one
                make_app(broker.url, url) as app,
                closing(app.wheel),
                Child(broker.url, url) as child,
            ):
                yield from _completed(name, app, child, rows // 20)


def _completed(name: str, app: Any, child: Child, rows: int) -> Iterator[Figure]:
    with app.producer_or_acquire() as producer:
        for n in range(rows + SINGLE):
            options = {"wheel": {"watch": f"order:{n}"}, "countdown": DAY_S + n % DAY_S, "producer": producer}
            app.send_task("shop.orders.tasks.cancel_unless_paid", (n,), **options)
    child.until("accepted", rows + SINGLE)

    def completed(first: int, last: int) -> Pace:
        def work() -> None:
            answers = app.wheel.complete([f"order:{n}" for n in range(first, last)], timeout=COMPLETE_S)
            assert sum(one.done for one in answers.values()) == last - first, answers

        return pace(work, last - first)

    took_s = sum(completed(first, min(rows, first + GROUP)).wall_s for first in range(0, rows, GROUP))
    singles_ms = sorted(completed(n, n + 1).wall_s * 1_000 for n in range(rows, rows + SINGLE))
    yield Figure("complete", f"{name}: by {GROUP:,} keys", rows / took_s, "tasks/s", target=5_000)
    yield Figure("complete", f"{name}: one key, median", statistics.median(singles_ms), "ms", less_is_better=True)
    p99 = singles_ms[int(len(singles_ms) * 0.99)]
    yield Figure("complete", f"{name}: one key, 99 of 100", p99, "ms", less_is_better=True)


def main(options: dict[str, Any]) -> None:
    app, task = _app_and_task(options["broker"], options["store"])
    began = time.perf_counter()
    done = app.wheel.schedule_many(_task_rows(task, options["rows"]))
    print(json.dumps({"count": done.count, "wall_s": time.perf_counter() - began}), flush=True)
    app.wheel.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
