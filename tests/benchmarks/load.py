"""A bulk load from Spark against a loop of ``apply_async`` and against ``schedule_many``, in one run.

::

    apply_async     a real Redis, one call after the other                                     the yardstick
    schedule_many   the same tasks into SQLite, and PostgreSQL, fsync on                       one process
    Spark           the same from a DataFrame with a key column, local[2], until it is committed
    intake          a scheduler ingests the load: rows with their three indexes

Spark is warm: the cost of its first use in a process is a figure of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from celery_wheel.console.output import ProgressBar, progress
from celery_wheel.operations.bench import Pace
from celery_wheel.operations.figure import Figure
from celery_wheel.store import open_store
from tests.benchmarks.child import Child
from tests.benchmarks.databases import Make, stores
from tests.benchmarks.many import YARDSTICK, _load, _loop, insert_again, intake
from tests.kit.servers.redis import RedisServer

TURNS = 3
TARGETS = {"SQLite": 60_000, "PostgreSQL": 150_000}
TARGET_RATIO = 50
MANY = "schedule_many"
WARM = 2_000


def run(folder: Path, rows: int) -> Iterator[Figure]:
    count = max(100_000, rows // 2)
    with (
        RedisServer(folder / "redis") as server,
        progress("load", 2 * TURNS + 2) as bar,
        stores("load", folder) as found,
    ):
        mine, others = ({name: make() for name, make in found.items()} for _ in range(2))
        yield from _figures(server, mine, others, count, folder, bar)
        yield from _intake(server, mine, found, bar)


def _figures(
    server: RedisServer, urls: dict[str, str], others: dict[str, str], count: int, folder: Path, bar: ProgressBar
) -> Iterator[Figure]:
    """Measure all ways alternately, so that other load of this machine affects all alike; the best of each counts.

    Args:
        others: stores for ``schedule_many``.
    """
    from celery_wheel.pipeline.session import session

    bar(0, doing="Spark starts")
    began = time.perf_counter()
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = session("local[2]", name="bench", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    frame = _frame(spark, count, folder)
    try:
        for store in urls.values():
            open_store(store).close()
            _save(frame.limit(WARM).drop("trial"), store, "warm", key=None)
        yield Figure("load", "Spark started, and its first loads", time.perf_counter() - began, "s")
        paces: dict[str, list[float]] = {name: [] for name in urls}
        loops: list[Pace] = []
        many: dict[str, list[Pace]] = {name: [] for name in urls}
        for turn in range(TURNS):
            bar(0, doing="apply_async")
            loops.append(_loop(server.url, urls["SQLite"]))
            for name, store in urls.items():
                bar(0, doing=f"{MANY}, {name}")
                many[name].append(_load(server.url, others[name], 20_000))
                bar(0, doing=f"Spark, {name}")
                began = time.perf_counter()
                _save(frame, store, f"turn {turn}")
                paces[name].append(count / (time.perf_counter() - began))
            bar(0, done=turn + 1)
    finally:
        spark.stop()
    loop = max(loops, key=attrgetter("per_s")).per_s
    yield Figure("load", YARDSTICK, loop, "rows/s")
    for name, found in paces.items():
        best = max(one.per_s for one in many[name])
        target = max(TARGETS[name], TARGET_RATIO * loop) if name == "PostgreSQL" else TARGETS[name]
        yield Figure("load", f"{count:,} rows by Spark into {name}", max(found), "rows/s", YARDSTICK, loop, target)
        yield Figure("load", f"… {name}", max(found), "rows/s", f"{MANY}, one process", best)


def _frame(spark: Any, count: int, folder: Path) -> Any:
    """Write the tasks as files, like data from elsewhere, and return the DataFrame that reads them."""
    from pyspark.sql import functions

    start_ms = int(time.time() * 1_000) + 86_400_000
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


def _save(frame: Any, store: str, batch: str, key: str | None = "trial") -> None:
    named = {} if key is None else {"key": key}
    frame.write.format("wheel").options(url=store, batch=batch, **named).mode("append").save()


def _intake(server: RedisServer, urls: dict[str, str], makes: dict[str, Make], bar: ProgressBar) -> Iterator[Figure]:
    """Measure the intake of one load: the other loads have the same keys, and the store ignores known keys."""
    for number, (name, url) in enumerate(urls.items()):
        bar(0, doing=f"intake, {name}")
        store = open_store(url, create=False)
        oldest = min(one.rows for one in store.loads.latest() if one.rows > WARM)
        store.close()
        server.client().flushall()  # a broker keeps the offset of one store
        with Child({"broker": server.url, "store": url, "ahead_ms": 0}) as child:
            child.until("held", 1)
            before, began = child.status(), time.perf_counter()
            count = min(oldest, 200_000)
            after = child.until("accepted", count + before.accepted)
            took = time.perf_counter() - began
            child.stop()
        by_insert = insert_again(url, makes[name], count)
        yield from intake("load", f"accepted by the scheduler, {name}", before, after, took, by_insert)
        bar(0, done=TURNS + number + 1)
