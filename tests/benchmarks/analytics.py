"""The pipeline's jobs against DuckDB: a history of ``rows`` in Parquet by day, both on this machine, both warm.

::

    session    starting Spark, and its first query; DuckDB has neither
    lateness   n, percentiles, max and objective of each task, queue and hour. Spark: KLL sketches, which it keeps;
               DuckDB: exact
    forecast   due by minute, and herds
    tune       16 shapes of a wheel, and the greatest number of tasks in one tick, for 4 ticks

The bench first runs each query on both and compares the results, so that the timed runs are warm. The log is generated
from hashes (``tests.kit.duck``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from celery_wheel.operations.bench.figure import Figure
from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, lateness, tune
from celery_wheel.pipeline.session import session
from tests.kit import agreement, duck

LIMITS = {"queue_1": 300, "*": 1_000}
TICKS = (1, 10, 100, 1_000)
SHAPES = [WheelShape(tick, size) for tick in TICKS for size in (16, 64, 256, 512)]
FROM_S = duck.START_MS // 1_000
HERD = 100

Question = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]  #: agree, Spark, DuckDB


def run(folder: Path, rows: int) -> Iterator[Figure]:
    path = duck.generate(folder / "history", rows)
    began = time.perf_counter()
    spark = _session(folder)
    spark.range(1).count()
    yield Figure("analytics", "session and first query", time.perf_counter() - began, "s", less_is_better=True)
    try:
        log = spark.read.parquet(path)
        for name in QUESTIONS:
            agree, ours, theirs = QUESTIONS[name](log, path)
            agree()
            against = _seconds(theirs)
            yield Figure("analytics", name, _seconds(ours), "s", "DuckDB", against, less_is_better=True)
    finally:
        spark.stop()


def _session(folder: Path) -> SparkSession:
    settings = {"spark.driver.memory": "4g", "spark.local.dir": str(folder / "spark"), "spark.log.level": "ERROR"}
    return session("local[*]", name="benchmark", settings=settings)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ask(*queries: str) -> None:
    with duck.connect() as connection:
        for query in queries:
            connection.execute(query).fetchall()


def _lateness(log: DataFrame, path: str) -> Question:
    hours = lateness.hours(lateness.usable(log)[0], LIMITS)
    return partial(agreement.lateness, hours, path, LIMITS), hours.toArrow, partial(_ask, duck.lateness(path, LIMITS))


def _forecast(log: DataFrame, path: str) -> Question:
    def found() -> tuple[DataFrame, DataFrame, DataFrame]:
        due = forecast.due(log)[0].persist()
        return due, forecast.minutes(due, 0, 2**40), forecast.herds(due, FROM_S, FROM_S, HERD, {})

    def agree() -> None:
        due, minutes, herds = found()
        agreement.minutes(minutes, path)
        assert agreement.herds(herds, path, HERD), "the log has herds"
        due.unpersist()

    def ours() -> None:
        due, *tables = found()
        for table in tables:
            table.toArrow()
        due.unpersist()

    sql = duck.herds(path, FROM_S, HERD, forecast.WINDOW_S, forecast.DEVIATIONS)
    return agree, ours, partial(_ask, duck.minutes(path), sql)


def _tune(log: DataFrame, path: str) -> Question:
    pairs = tune.pairs(log)[0]

    def agree() -> None:
        agreement.geometry(pairs, SHAPES, path)
        agreement.bursts(pairs, TICKS, path)

    def ours() -> Any:
        costs = tune.total_costs(pairs, SHAPES, tune.longest_delay_ms(pairs))
        return costs.collect(), tune.bursts(pairs, TICKS).collect()

    longest = f"select max(epoch_ms(eta) - epoch_ms(created)) from {duck.source(path)}"

    def theirs() -> None:
        with duck.connect() as connection:
            [row] = duck.rows(connection, longest)
            connection.execute(duck.geometry(path, SHAPES, max(row.values()))).fetchall()
            for tick in TICKS:
                connection.execute(duck.bursts(path, tick)).fetchall()

    return agree, ours, theirs


QUESTIONS: dict[str, Callable[[DataFrame, str], Question]] = {
    "lateness": _lateness,
    "forecast": _forecast,
    "tune": _tune,
}
