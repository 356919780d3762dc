"""The pipeline's jobs against DuckDB: a history of ``rows`` in Parquet by day, all on this machine, all warm.

::

    session    starting Spark, and its first query; DuckDB has neither
    lateness   n, percentiles, max and objective of each task, queue and hour. Spark: KLL sketches, which it keeps;
               DuckDB: exact
    forecast   due by minute, and herds
    tune       16 shapes of a wheel, and the greatest number of tasks in one tick, for 4 ticks

The bench first runs each query on both and compares the results, so that the timed runs are warm. The log is generated
from hashes (``tests.kit.duck``). Spark runs in one process (``local[2]``) and as a cluster of a driver and two
executors; each of these, and each question to DuckDB, has processes of its own, whose greatest memory is a figure too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyspark
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.operations.figure import Figure
from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, lateness, tune
from celery_wheel.pipeline.session import session
from tests.kit import agreement, duck

LIMITS = {"queue_1": 300, "*": 1_000}
TICKS = (1, 10, 100, 1_000)
SHAPES = [WheelShape(tick, size) for tick in TICKS for size in (16, 64, 256, 512)]
FROM_S = duck.START_MS // 1_000
HERD = 100
MASTERS = ("local[2]", "local-cluster[2,1,2048]")
START = "session and first query"


class Question(NamedTuple):
    agree: Callable[[DataFrame, str], object]  #: raises where the two results differ
    spark: Callable[[DataFrame], object]
    duckdb: Callable[[str], object]


def run(folder: Path, rows: int) -> Iterator[Figure]:
    path = duck.generate(folder / "history", rows)
    rival = {name: _apart(_ask_duckdb, name, path) for name in QUESTIONS}
    for master in MASTERS:
        for name, ours in _apart(_ask_spark, master, folder, path)[0].items():
            system, theirs = ("DuckDB", rival[name]) if name in rival else ("", (None, None))
            for unit, value, against in zip(("s", "MB"), ours, theirs, strict=True):
                yield Figure("analytics", f"{name}, {master}", value, unit, system, against, less_is_better=True)


def _apart(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what a new process returns, and the greatest memory of that process in MB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, work, *arguments).result()


def _measured(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    found = work(*arguments)
    return found, _peak_mb("self")


def _ask_spark(master: str, folder: Path, path: str) -> dict[str, tuple[float, float]]:
    """Return for each question its seconds, and the greatest memory so far of Spark's processes, in MB."""
    began = time.perf_counter()
    spark = _session(master, folder)
    spark.range(1).count()
    found = {START: (time.perf_counter() - began, _memory_mb())}
    try:
        log = spark.read.parquet(path)
        for name, question in QUESTIONS.items():
            question.agree(log, path)
            found[name] = _seconds(question.spark, log), _memory_mb()
    finally:
        spark.stop()
    return found


def _ask_duckdb(name: str, path: str) -> float:
    return _seconds(QUESTIONS[name].duckdb, path)


def _session(master: str, folder: Path) -> SparkSession:
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings = {"spark.driver.memory": "4g", "spark.local.dir": str(folder / "spark"), "spark.log.level": "ERROR"}
    settings |= {"spark.executor.memory": "2g"}
    return session(master, name="benchmark", settings=settings)


def _memory_mb() -> float:
    """Return the sum of the greatest memory of each process that runs Spark, its Python workers included."""
    peak = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it has ended
            peak += _peak_mb(process.pid)
    return peak


def _peak_mb(process: int | str) -> float:
    """Return the greatest memory of a process. A process that ends has no such line any more."""
    return sum(map(int, re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{process}/status").read_text()))) / 1_024


def _seconds(work: Callable[..., object], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def _ask(*queries: str) -> None:
    with duck.connect() as connection:
        for query in queries:
            connection.execute(query).fetchall()


def _hours(log: DataFrame) -> DataFrame:
    return lateness.hours(lateness.usable(log)[0], LIMITS)


def _forecast_of(log: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    due = forecast.due(log)[0].persist()
    return due, forecast.minutes(due, 0, 2**40), forecast.herds(due, FROM_S, FROM_S, HERD, {})


def _agree_on_forecast(log: DataFrame, path: str) -> None:
    due, minutes, herds = _forecast_of(log)
    agreement.minutes(minutes, path)
    assert agreement.herds(herds, path, HERD), "the log has herds"
    due.unpersist()


def _forecast(log: DataFrame) -> None:
    due, *tables = _forecast_of(log)
    for table in tables:
        table.toArrow()
    due.unpersist()


def _forecast_by_duckdb(path: str) -> None:
    _ask(duck.minutes(path), duck.herds(path, FROM_S, HERD, forecast.WINDOW_S, forecast.DEVIATIONS))


def _agree_on_costs(log: DataFrame, path: str) -> None:
    pairs = tune.pairs(log)[0]
    agreement.geometry(pairs, SHAPES, path)
    agreement.bursts(pairs, TICKS, path)


def _tune(log: DataFrame) -> None:
    pairs = tune.pairs(log)[0]
    tune.total_costs(pairs, SHAPES, tune.longest_delay_ms(pairs)).collect()
    tune.bursts(pairs, TICKS).collect()


def _tune_by_duckdb(path: str) -> None:
    with duck.connect() as connection:
        [row] = duck.rows(connection, f"select max(epoch_ms(eta) - epoch_ms(created)) from {duck.source(path)}")
        connection.execute(duck.geometry(path, SHAPES, max(row.values()))).fetchall()
        for tick in TICKS:
            connection.execute(duck.bursts(path, tick)).fetchall()


QUESTIONS = {
    "lateness": Question(
        lambda log, path: agreement.lateness(_hours(log), path, LIMITS),
        lambda log: _hours(log).toArrow(),
        lambda path: _ask(duck.lateness(path, LIMITS)),
    ),
    "forecast": Question(_agree_on_forecast, _forecast, _forecast_by_duckdb),
    "tune": Question(_agree_on_costs, _tune, _tune_by_duckdb),
}
