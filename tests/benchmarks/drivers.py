"""The driver of a Spark cluster, with 512 MB: its memory must not grow with the rows.

::

    forecast    a task of each of 100 queues in each second: a row of the table of seconds for each task
    reconcile   a log of which nothing ran: a finding for each task

Each job runs as a whole, from Parquet to its folder, on a driver and two executors (``local-cluster``), with a
fiftieth of the rows and with all. The figure is the most memory that was in use after a garbage collection of the
driver; with all rows beside it the value with few. The driver's memory is limited to 512 MB in both.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyspark
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from celery_wheel.operations.figure import Figure
from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.session import session

MASTER = "local-cluster[2,1,2048]"
DRIVER = "512m"
QUEUES, A_SECOND = 100, 100
#: 2027-01-15T08:00Z
NOW_S = 1_800_000_000

_AFTER = re.compile(r"->(\d+)M\(")

#: Makes the input of a job in a folder; returns the job's arguments.
Make = Callable[[SparkSession, str, int], list[str]]


def run(folder: Path, rows: int) -> Iterator[Figure]:
    for job in JOBS:
        few, all_ = (_apart(job, folder / f"{job}-{count}", count) for count in (rows // 50, rows))
        name = f"{job}, driver's memory after a collection"
        yield Figure("drivers", name, all_, "MB", f"{rows // 50:,} rows", few, less_is_better=True)


def _apart(job: str, folder: Path, rows: int) -> float:
    """Run the job in a new process, which has a Java of its own; returns MB."""
    folder.mkdir(parents=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_run, job, folder, rows).result()
    return float(max(int(found) for found in _AFTER.findall((folder / "gc.log").read_text())))


def _run(job: str, folder: Path, rows: int) -> None:
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    settings = {
        "spark.driver.memory": DRIVER,
        "spark.driver.extraJavaOptions": f"-Xlog:gc:file={folder}/gc.log",
        "spark.executor.memory": "2g",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
    }
    spark = session(MASTER, name="benchmark", settings=settings)
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


JOBS: dict[str, Make] = {"forecast": _pending, "reconcile": _lost}
