"""The pipeline's jobs on Spark: their answers and times against DuckDB, and the memory of a driver.

Spark runs in one process (``local[2]``) and as a cluster of a driver and two executors. Each run has processes of its
own, whose greatest memory is a figure too.
"""

import json
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
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, lateness, tune
from celery_wheel.pipeline.session import session
from tests.benchmarks.figure import Figure
from tests.kit import agreement, duck

LIMITS = {"queue_1": 300, "*": 1_000}
TICKS = (1, 10, 100, 1_000)
SHAPES = [WheelShape(tick, size) for tick in TICKS for size in (16, 64, 256, 512)]
FROM_S = duck.START_MS // 1_000
HERD = 100
MASTERS = ("local[2]", CLUSTER := "local-cluster[2,1,2048]")


def analytics(folder: Path, rows: int) -> Iterator[Figure]:
    """The jobs against DuckDB: a history of ``rows`` in Parquet by day, all on this machine, all warm.

    ::

        session    starting Spark, and its first query; DuckDB has neither
        lateness   n, percentiles, max and objective of each task, queue and hour. Spark: KLL sketches, which it keeps;
                   DuckDB: exact
        forecast   due by minute, and herds
        tune       16 shapes of a wheel, and the greatest number of tasks in one tick, for 4 ticks

    Each query first runs on both, and the results are compared, so that the timed runs are warm. The log is generated
    from hashes (``tests.kit.duck``).
    """
    path = duck.generate(folder / "history", rows)
    rival = {name: _apart(_ask_duckdb, name, path) for name in QUESTIONS}
    for master in MASTERS:
        for name, ours in _apart(_ask_spark, master, folder, path)[0].items():
            system, theirs = ("DuckDB", rival[name]) if name in rival else ("", (None, None))
            for unit, value, against in zip(("s", "MB"), ours, theirs, strict=True):
                yield Figure("analytics", f"{name}, {master}", value, unit, system, against, less_is_better=True)


def _apart(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, work, *arguments).result()


def _measured(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    return work(*arguments), _peak_mb("self")


def _session(master: str, folder: Path, **driver: str) -> SparkSession:
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings = {f"spark.driver.{name}": value for name, value in driver.items()}
    settings |= {"spark.executor.memory": "2g", "spark.local.dir": str(folder / "spark"), "spark.log.level": "ERROR"}
    return session(master, name="benchmark", settings=settings)


def _ask_spark(master: str, folder: Path, path: str) -> dict[str, tuple[float, float]]:
    began = time.perf_counter()
    spark = _session(master, folder, memory="4g")
    spark.range(1).count()
    found = {"session and first query": (time.perf_counter() - began, _memory_mb())}
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


class Question(NamedTuple):
    agree: Callable[[DataFrame, str], object]  #: raises where the two results differ
    spark: Callable[[DataFrame], object]
    duckdb: Callable[[str], object]


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
    "forecast": Question(
        _agree_on_forecast,
        _forecast,
        lambda path: _ask(duck.minutes(path), duck.herds(path, FROM_S, HERD, forecast.WINDOW_S, forecast.DEVIATIONS)),
    ),
    "tune": Question(_agree_on_costs, _tune, _tune_by_duckdb),
}

QUEUES, A_SECOND = 100, 100
#: 2027-01-15T08:00Z
NOW_S = 1_800_000_000


def drivers(folder: Path, rows: int) -> Iterator[Figure]:
    """The driver of a Spark cluster, with 512 MB: its memory must not grow with the rows.

    ::

        forecast    a task of each of 100 queues in each second: a row of the table of seconds for each task
        reconcile   a log of which nothing ran: a finding for each task

    Each job runs as a whole, from Parquet to its folder, with a fiftieth of the rows and with all. The figure is the
    most memory that was in use after a garbage collection of the driver; with all rows beside it the value with few.
    """
    for job in JOBS:
        few, all_ = (_collected_mb(job, folder / f"{job}-{count}", count) for count in (rows // 50, rows))
        name = f"{job}, driver's memory after a collection"
        yield Figure("drivers", name, all_, "MB", f"{rows // 50:,} rows", few, less_is_better=True)


def _collected_mb(job: str, folder: Path, rows: int) -> float:
    folder.mkdir(parents=True)
    _apart(_run, job, folder, rows)
    return float(max(map(int, re.findall(r"->(\d+)M\(", (folder / "gc.log").read_text()))))


def _run(job: str, folder: Path, rows: int) -> None:
    spark = _session(CLUSTER, folder, memory="512m", extraJavaOptions=f"-Xlog:gc:file={folder}/gc.log")
    try:
        arguments = JOBS[job](spark, str(folder), rows)
        done = CliRunner().invoke(main, [job, *arguments, "--output", str(folder / "results"), "--json"])
        summary: dict[str, Any] = json.loads(done.stdout or "{}")
        assert rows in (summary.get("pending"), summary.get("findings", {}).get("lost")), done.output
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
    finally:
        spark.stop()


def _pending(spark: SparkSession, folder: str, rows: int) -> list[str]:
    queue = f.concat(f.lit("queue_"), f.col("id") % QUEUES).alias("queue")
    due_ms = ((NOW_S + f.floor(f.col("id") / A_SECOND)) * 1_000).alias("due_ms")
    spark.range(rows).select(queue, f.lit("app.mail").alias("task"), due_ms).write.parquet(f"{folder}/pending")
    times = ["--now", f"{NOW_S * 1_000}", "--to", f"{(NOW_S + rows // A_SECOND + 1) * 1_000}", "--seconds", "30d"]
    return ["--input", f"{folder}/pending", "--rate", "1/s", *times]


def _lost(spark: SparkSession, folder: str, rows: int) -> list[str]:
    ids = spark.range(rows).select(f.col("id").cast("string").alias("task_id"))
    ids.withColumn("eta", f.timestamp_seconds(f.lit(NOW_S))).write.parquet(f"{folder}/scheduled")
    ids.limit(0).withColumn("started", f.timestamp_seconds(f.lit(NOW_S))).write.parquet(f"{folder}/executed")
    return ["--scheduled", f"{folder}/scheduled", "--executed", f"{folder}/executed"]


#: Job → the function that makes its input in a folder, and returns its arguments.
JOBS: dict[str, Callable[[SparkSession, str, int], list[str]]] = {"forecast": _pending, "reconcile": _lost}
