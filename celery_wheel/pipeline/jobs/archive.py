"""``archive``: history as Parquet, a folder a day, before retention takes it out of the store.

::

    store ─► events since the mark, less an hour ─┐
    archive ─► what the same days have ───────────┴─► each event once, in order ─► _staging ─► its days ─► the mark
                                                                                      └─ found whole: finished first

    archive/day=2026-11-20/part-….parquet    of UTC; sorted by ORDER, so the messages of one key are in theirs
    archive/_staging  archive/_state         of the run under way; readers pass over names with an underscore

Promises
    1. Each event is in the archive once, however often the job runs, is killed and runs again: (shard, position, batch)
       says which is which. A message that left twice, as after a replay, is two events.
    2. The order per key is kept: a key's messages are in one shard, and a shard's events are in one order.
    3. The mark moves only after the rows are read back and counted. With ``wheel_history_archive`` the store forgets
       nothing beyond it.
    4. An archived day loses nothing when the store has forgotten some of it: what is there is written again.

Non-promises
    Two runs at a time into one archive. An event that appears in the store with an instant more than an hour before the
    mark, which takes a clock that is as wrong, is not seen.

Only Spark's own readers and writers touch the archive, so it may be wherever Spark can write: a folder, HDFS, S3.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

#: What makes an event one: without a batch it is an outcome, whose position is its own.
IDENTITY = ("shard", "lane", "due_ms", "seq", "batch")
ORDER = ("shard", "at", "batch", "lane", "due_ms", "seq")
DAY = "day"

#: Events are read again for so long before the mark.
OVERLAP_MS = 3_600_000


def events(history: DataFrame, until: datetime) -> DataFrame:
    """History up to an instant, each event with its day (of UTC)."""
    return history.where(f.col("at") < f.lit(until)).withColumn(DAY, f.date_format("at", "yyyy-MM-dd"))


def merged(found: DataFrame, kept: DataFrame | None) -> DataFrame:
    """Each event of both once; of two with one identity they are the same."""
    both = found if kept is None else found.unionByName(kept.select(*found.columns))
    return both.dropDuplicates(list(IDENTITY))


def arranged(rows: DataFrame, files: int) -> DataFrame:
    """In ``files`` parts, one after the other in order, so that a day's files are sorted and follow each other."""
    order = (DAY, *ORDER)
    return rows.repartitionByRange(files, *order).sortWithinPartitions(*order)
