"""The days of an archive: read, staged, put into place, counted.

::

    DIR/day=2026-11-20/part-….parquet
    DIR/_staging/<run>/day=…               of the run under way; readers pass over names with an underscore
    DIR/.spark-staging-…                   left by a run that was killed while it put days in: readers pass over it,
                                           and it may be removed while no run is under way

``replace`` is Spark's: what is there of the days is removed, then what was written beside it is moved in. In between a
day is not there, and it stays so where the driver is killed: so the days were staged, and are replaced once more.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.rows import DAY
from celery_wheel.pipeline.archive.state import where_it_is
from celery_wheel.pipeline.columns import HISTORY_SCHEMA

#: Said, or Spark makes a date of what looks like one.
SCHEMA = StructType([*HISTORY_SCHEMA.fields]).add(DAY, StringType())

#: (day, outcome) → events.
Counts = dict[tuple[str, str], int]


class Folder:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path

    def refuse_a_streams(self) -> None:
        """Spark reads such a folder by a list of its own, in which what is written here would be missing."""
        if where_it_is(lambda: self._spark.read.text(f"{self.path}/_spark_metadata").schema) is not None:
            raise FileUnusable(
                f"--output {self.path} is a folder that a stream writes to; give the archive one of its own"
            )

    def days(self, days: Collection[str]) -> DataFrame | None:
        """What is in place of some days; None where there is no archive yet."""
        found = self._read(self.path)
        return None if found is None else found.where(f.col(DAY).isin([*days]))

    def stage(self, rows: DataFrame, run: str) -> DataFrame:
        path = f"{self.path}/_staging/{run}"
        rows.write.mode("overwrite").partitionBy(DAY).option("compression", "zstd").parquet(path)
        return self.staged(run)

    def staged(self, run: str) -> DataFrame:
        path = f"{self.path}/_staging/{run}"
        found = self._read(path)
        if found is None:
            raise FileUnusable(
                f"{path} is not there, though it was staged: another run has finished it, or it was removed; no day "
                f"was changed; if it was removed, remove {self.path}/_state too: then all the store has is read again"
            )
        return found

    def replace(self, rows: DataFrame) -> None:
        """The days that are in ``rows``, and no others."""
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(DAY)
        writer.option("compression", "zstd").parquet(self.path)

    def clear(self) -> None:
        """What was staged is in place."""
        self._spark.createDataFrame([], SCHEMA).write.mode("overwrite").parquet(f"{self.path}/_staging")

    def _read(self, path: str) -> DataFrame | None:
        def read() -> DataFrame:
            found = self._spark.read.schema(SCHEMA).parquet(path)
            _ = found.columns  # over Spark Connect this is when it looks
            return found

        return where_it_is(read)


def counts(rows: DataFrame | None) -> Counts:
    if rows is None:
        return {}
    return {(row[DAY], row.outcome): row["count"] for row in rows.groupBy(DAY, "outcome").count().collect()}


def by_day(found: Counts) -> dict[str, int]:
    days = dict.fromkeys(sorted(day for day, _ in found), 0)
    for (day, _), count in found.items():
        days[day] += count
    return days
