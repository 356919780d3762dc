"""A driver to be killed in the middle of archiving, where it then stays. Run by ``test_archive``.

python -m tests.spark.archiving URL DIR FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame

from celery_wheel.pipeline.archive import run as run_module
from celery_wheel.pipeline.archive.run import Run
from celery_wheel.pipeline.session import session
from tests.spark.killed import stay


def while_staging(merged: Any) -> Any:
    """Of two tasks one is written, and the other never."""

    def slow(*given: Any) -> DataFrame:
        rows = merged(*given)
        return rows.mapInArrow(stay, rows.schema)

    return slow


if __name__ == "__main__":
    url, path, scratch = sys.argv[1:]
    run_module.merged = while_staging(run_module.merged)
    settings = {"spark.sql.warehouse.dir": scratch, "spark.local.dir": scratch, "spark.sql.shuffle.partitions": "2"}
    settings["spark.sql.adaptive.enabled"] = "false"  # or two tasks with a few rows are one
    spark = session("local[2]", name="killed", settings=settings)
    Run(spark, url, path, mark=True, tell=lambda _: None).run()
