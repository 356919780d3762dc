"""A driver whose load stops after one of two parts, for ``test_write`` to kill it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from celery_wheel.pipeline.session import session
from tests.spark.settings import settings
from tests.spark.test_write import ROWS, reminders


def stay(batches: Iterator[Any]) -> Iterator[Any]:
    """Part 1 waits for ever, until this process and its children are killed."""
    context = TaskContext.get()
    while context is not None and context.partitionId() == 1:
        signal.pause()
    yield from batches


if __name__ == "__main__":
    url, folder = sys.argv[1:]
    spark = session("local[2]", name="killed", settings=settings(folder))
    rows = reminders(spark, ROWS, 2)
    rows = rows.mapInArrow(stay, rows.schema)
    rows.write.format("wheel").options(url=url, batch="monday", key="order").mode("append").save()
