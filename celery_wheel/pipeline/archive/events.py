"""Events as rows of an archive: each once, in order. DataFrame to DataFrame, public for other programs."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

#: The name of a day's folder, and the column that readers derive from it.
DAY = "day"

#: Identifies an event: an outcome has no batch and a position of its own. Numbers are unique in a store.
IDENTITY = ("lane", "due_ms", "seq", "batch")


def with_day(history: DataFrame) -> DataFrame:
    """Return each event with its day in UTC."""
    return history.withColumn(DAY, f.date_format("at", "yyyy-MM-dd"))


def merge_events(new: DataFrame, archived: DataFrame | None) -> DataFrame:
    """Return each event of both once; two rows with one identity are equal."""
    both = new if archived is None else new.unionByName(archived.select(*new.columns))
    return both.dropDuplicates(list(IDENTITY))


def sort_events(rows: DataFrame, files: int) -> DataFrame:
    """Sort into ``files`` partitions that follow each other, so that a day's files are sorted and follow each other.

    Within a shard the order is that of numbers, not of instants: a clock may be set back.
    """
    number = f.coalesce("batch", "seq")
    order = (f.col(DAY), f.col("shard"), number, f.col("lane"), f.col("due_ms"), f.col("seq"))
    return rows.repartitionByRange(files, *order).sortWithinPartitions(*order)
