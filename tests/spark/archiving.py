"""A driver that stops in the middle of writing, for ``test_archive`` to kill it.

python -m tests.spark.archiving URL DIR FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

from click.testing import CliRunner
from pyspark.sql import DataFrame

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import folder as folder_module
from celery_wheel.pipeline.session import session
from tests.spark.killed import stay
from tests.spark.settings import settings


def stop_one_task(sort_events: Any) -> Any:
    """Let one of two tasks write its file, and stop the other for ever."""

    def slow(rows: DataFrame, _files: int) -> DataFrame:
        return sort_events(rows, 2).mapInArrow(stay, rows.schema)

    return slow


if __name__ == "__main__":
    url, path, scratch = sys.argv[1:]
    folder_module.sort_events = stop_one_task(folder_module.sort_events)
    apart = {"spark.sql.adaptive.enabled": "false"}  # else Spark joins two small tasks into one
    session("local[2]", name="killed", settings=settings(scratch) | apart)
    CliRunner().invoke(cli.main, ["archive", "--store", url, "--output", path])
