"""A driver that stops in the middle of staging, for ``test_archive`` to kill it.

python -m tests.spark.archiving URL DIR FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame

from celery_wheel.pipeline.archive import run as run_module
from celery_wheel.pipeline.archive.run import ArchiveRun
from celery_wheel.pipeline.session import session
from tests.spark.killed import stay
from tests.spark.settings import settings


def stop_one_task(merge_events: Any) -> Any:
    """Let one of two tasks write, and stop the other for ever."""

    def slow(*frames: Any) -> DataFrame:
        rows = merge_events(*frames)
        return rows.mapInArrow(stay, rows.schema)

    return slow


if __name__ == "__main__":
    url, path, scratch = sys.argv[1:]
    run_module.merge_events = stop_one_task(run_module.merge_events)
    apart = {"spark.sql.adaptive.enabled": "false"}  # else Spark joins two small tasks into one
    spark = session("local[2]", name="killed", settings=settings(scratch) | apart)
    ArchiveRun(spark, url, path, mark=True, progress=lambda _: None).run()
