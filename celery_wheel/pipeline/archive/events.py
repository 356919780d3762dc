"""Events as rows of an archive: sorted by day, queue and task. DataFrame to DataFrame, public for other programs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from celery_wheel.pipeline.columns import HISTORY_SCHEMA

#: The version of the columns. A new column needs the next one; no column is ever removed, renamed or changed.
VERSION = 1
COLUMNS = {field.name: field.dataType.simpleString() for field in HISTORY_SCHEMA.fields}

#: The name of a day's folder, and the column that readers derive from it.
DAY = "day"
#: With the type of DAY, because Spark would read it as a date.
SCHEMA = StructType([*HISTORY_SCHEMA.fields]).add(DAY, StringType())

#: Identifies an event: an outcome has no batch and a position of its own. Numbers are unique in a store.
IDENTITY = ("lane", "due_ms", "seq", "batch")

#: The order of a shard's events, which is that of its numbers, not of instants: a clock may be set back. The messages
#: of one key are in one shard.
ORDER = ("shard", "coalesce(batch, seq)", "lane", "due_ms", "seq")


def with_day(history: DataFrame) -> DataFrame:
    """Return each event with its day in UTC."""
    return history.withColumn(DAY, f.date_format("at", "yyyy-MM-dd"))


def sort_events(rows: DataFrame, files: int) -> DataFrame:
    """Sort into ``files`` partitions that follow each other, so that a day's files are sorted and follow each other."""
    order = (f.col(DAY), f.col("queue"), f.col("task"), *map(f.expr, ORDER))
    parts = rows.repartitionByRange(files, *order) if files > 1 else rows.repartition(1)
    return parts.sortWithinPartitions(*order)
