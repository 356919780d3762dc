"""A stream of reminders from a folder of files, a micro-batch for each file, into a store."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from celery_wheel.pipeline.source.write import NUMBER

SCHEMA = "task string, args string, eta timestamp, queue string, order string"
START = datetime(2031, 1, 1, tzinfo=UTC)

#: A function of the rows of a part, as ``mapInArrow`` takes it.
Pass = Callable[[Iterator[Any]], Iterator[Any]]


def write_file(folder: Path, number: int, numbers: range, size: int = 0) -> None:
    """Write the file of this micro-batch: rows with these numbers and ``size`` bytes that do not compress."""
    rows = [
        {
            "task": "shop.remind",
            "args": f'[{n}, "{random.Random(n).randbytes(size).hex()}"]',
            "eta": START + timedelta(seconds=n),
            "queue": "mail",
            "order": f"order-{n}",
        }
        for n in numbers
    ]
    path = folder / "rows" / f"{number}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    os.utime(path, (START.timestamp(), START.timestamp() + number))  # Spark takes files in the order of their times


def start(
    spark: SparkSession,
    url: str,
    folder: Path,
    *,
    parts: int = 2,
    through: Pass | None = None,
    checkpoint: str = "checkpoint",
    batch: str = "orders",
    key: str | None = "order",
) -> StreamingQuery:
    """Start the stream of the files that are new, in the order of their numbers."""
    options = {"maxFilesPerTrigger": "1"}
    rows = spark.readStream.schema(SCHEMA).options(**options).parquet(str(folder / "rows")).repartition(parts)
    if through is not None:
        rows = rows.mapInArrow(through, rows.schema)
    named = {"url": url, "batch": batch, "checkpointLocation": str(folder / checkpoint)}
    rows = rows if key else rows.drop("order")
    writer = rows.writeStream.format("wheel").options(**named, **({"key": key} if key else {}))
    return writer.trigger(availableNow=True).start()


def in_part(number: int, micro_batch: int) -> bool:
    context = TaskContext.get()
    assert context is not None
    return (context.partitionId(), context.getLocalProperty(NUMBER)) == (number, str(micro_batch))


def stay(batches: Iterator[Any]) -> Iterator[Any]:
    while in_part(1, micro_batch=1):
        signal.pause()
    yield from batches


def stay_in_part_1(batches: Iterator[Any]) -> Iterator[Any]:
    """Part 1 waits for ever, until its process is killed."""
    context = TaskContext.get()
    while context is not None and context.partitionId() == 1:
        signal.pause()
    yield from batches
