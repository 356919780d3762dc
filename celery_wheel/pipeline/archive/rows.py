"""Events as rows of an archive: each once, and in order. Functions from DataFrame to DataFrame, yours to use."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

#: The folder's name, and the column that readers make of it.
DAY = "day"

#: What makes an event one: without a batch it is an outcome, whose position is its own. Numbers are unique in a store.
IDENTITY = ("lane", "due_ms", "seq", "batch")


def events(history: DataFrame) -> DataFrame:
    """Each event with its day (of UTC)."""
    return history.withColumn(DAY, f.date_format("at", "yyyy-MM-dd"))


def merged(found: DataFrame, kept: DataFrame | None) -> DataFrame:
    """Each event of both once; of two with one identity they are the same."""
    both = found if kept is None else found.unionByName(kept.select(*found.columns))
    return both.dropDuplicates(list(IDENTITY))


def arranged(rows: DataFrame, files: int) -> DataFrame:
    """In ``files`` parts, one after the other in order, so that a day's files are sorted and follow each other.

    Within a shard the order is that of numbers, and not of instants: a clock may be put back.
    """
    number = f.coalesce("batch", "seq")
    order = (f.col(DAY), f.col("shard"), number, f.col("lane"), f.col("due_ms"), f.col("seq"))
    return rows.repartitionByRange(files, *order).sortWithinPartitions(*order)
