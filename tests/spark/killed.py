"""A driver that loads a table, streams into a store, and archives: each is half done when the tests kill it.

python -m tests.spark.killed FOLDER      FOLDER: a store of each, loaded, streamed and archived; the files of the stream
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

from click.testing import CliRunner
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import folder as folder_module
from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import write
from tests.spark import streamed
from tests.spark.settings import settings
from tests.spark.test_write import ROWS, reminders


def stay(batches: Iterator[Any]) -> Iterator[Any]:
    """Part 1 waits for ever, until this process and its children are killed."""
    context = TaskContext.get()
    while context is not None and context.partitionId() == 1:
        signal.pause()
    yield from batches


def stop_one_task(sort_events: Any) -> Any:
    """Let one of two tasks write its file, and stop the other for ever."""

    def slow(rows: DataFrame, _files: int) -> DataFrame:
        return sort_events(rows, 2).mapInArrow(stay, rows.schema)

    return slow


def url(folder: Path, name: str) -> str:
    return f"sqlite:///{folder}/{name}.sqlite3"


def load(spark: SparkSession, folder: Path) -> None:
    rows = reminders(spark, ROWS, 2)
    write(rows.mapInArrow(stay, rows.schema), "monday", url(folder, "loaded"), key="order")


if __name__ == "__main__":
    here = Path(sys.argv[1])
    folder_module.sort_events = stop_one_task(folder_module.sort_events)
    apart = {"spark.sql.adaptive.enabled": "false"}  # else Spark joins two small tasks into one
    spark = session("local[8]", name="killed", settings=settings(here) | apart)
    Thread(target=load, args=(spark, here), daemon=True).start()
    streamed.start(spark, url(here, "streamed"), here, through=streamed.stay)
    CliRunner().invoke(cli.main, ["archive", "--store", url(here, "archived"), "--output", str(here / "archive")])
