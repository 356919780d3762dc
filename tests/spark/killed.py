"""The work that a driver leaves half done when it is killed: a load, a stream into a store, and a run of ``archive``.

Each has two parts, of which one is written, and the other waits for ever. The folder has a store of each, and the files
of the stream.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import folder as folder_module
from celery_wheel.pipeline.tables import write
from tests.spark import streamed
from tests.spark.test_write import ROWS, reminders


def url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder}/{name}.sqlite3"


def leave_half_done(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # else Spark joins two small tasks into one
    folder_module.sort_events = stop_one_task(folder_module.sort_events)
    arguments = ["archive", "--store", url(folder, "archived"), "--output", str(folder / "archive")]
    streamed.start(spark, url(folder, "streamed"), folder, through=streamed.stay)
    Thread(target=load, args=(spark, folder), daemon=True).start()
    Thread(target=CliRunner().invoke, args=(cli.main, arguments), daemon=True).start()


def load(spark: SparkSession, folder: Path) -> None:
    rows = reminders(spark, ROWS, 2)
    write(rows.mapInArrow(streamed.stay_in_part_1, rows.schema), "monday", url(folder, "loaded"), key="order")


def stop_one_task(sort_events: Any) -> Any:
    """Let one of two tasks write its file, and stop the other for ever."""

    def slow(rows: DataFrame, _files: int) -> DataFrame:
        return sort_events(rows, 2).mapInArrow(streamed.stay_in_part_1, rows.schema)

    return slow
