"""The folder of an archive: its days are read, staged, replaced and counted.

::

    DIR/day=2026-11-20/part-….parquet
    DIR/_staging/<run>/day=…               of the current run; readers skip names with an underscore
    DIR/.spark-staging-…                   remains of a run that was killed while it replaced days: readers skip it, and
                                           it may be removed while no run is active

``replace`` is Spark's own overwrite: it removes the days, then moves in the files that it wrote beside them. In between
a day is absent, and it stays absent if the driver is killed: therefore days are staged, and the next run replaces them.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.events import DAY
from celery_wheel.pipeline.archive.state import none_if_absent
from celery_wheel.pipeline.columns import HISTORY_SCHEMA

#: With the type of DAY, because Spark would read it as a date.
SCHEMA = StructType([*HISTORY_SCHEMA.fields]).add(DAY, StringType())

#: (day, outcome) → events.
Counts = dict[tuple[str, str], int]


class ArchiveFolder:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path

    def refuse_stream_output(self) -> None:
        """Refuse the folder of a stream: Spark reads it by a file list, which would lack the days of the archive."""
        if none_if_absent(lambda: self._spark.read.text(f"{self.path}/_spark_metadata").schema) is not None:
            raise FileUnusable(f"--output {self.path} is the output of a stream; give the archive a folder of its own")

    def days(self, days: Collection[str]) -> DataFrame | None:
        """Return the archived events of some days; None where there is no archive yet."""
        events = self._read(self.path)
        return None if events is None else events.where(f.col(DAY).isin([*days]))

    def stage(self, rows: DataFrame, run: str) -> DataFrame:
        """Write the days of ``rows`` beside the archive, and read them back."""
        writer = rows.write.mode("overwrite").partitionBy(DAY).option("compression", "zstd")
        writer.parquet(self._staging(run))
        return self.staged(run)

    def staged(self, run: str) -> DataFrame:
        """Return the staged days of a run. Raises FileUnusable where they are absent."""
        path = self._staging(run)
        events = self._read(path)
        if events is None:
            raise FileUnusable(
                f"{path} is absent, though it was staged: another run has finished it, or it was removed; no day was "
                f"changed; if it was removed, remove {self.path}/_state too: the next run then reads the whole store"
            )
        return events

    def replace(self, rows: DataFrame) -> None:
        """Replace the days that occur in ``rows``, and no others."""
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(DAY)
        writer.option("compression", "zstd").parquet(self.path)

    def clear(self) -> None:
        """Remove the staged days, after they were replaced."""
        self._spark.createDataFrame([], SCHEMA).write.mode("overwrite").parquet(self._staging())

    def _staging(self, run: str = "") -> str:
        return f"{self.path}/_staging/{run}".rstrip("/")

    def _read(self, path: str) -> DataFrame | None:
        def read() -> DataFrame:
            events = self._spark.read.schema(SCHEMA).parquet(path)
            _ = events.columns  # Spark Connect reads the path only now
            return events

        return none_if_absent(read)


def count_events(rows: DataFrame | None) -> Counts:
    if rows is None:
        return {}
    return {(row[DAY], row.outcome): row["count"] for row in rows.groupBy(DAY, "outcome").count().collect()}


def sum_by_day(counts: Counts) -> dict[str, int]:
    days = dict.fromkeys(sorted(day for day, _ in counts), 0)
    for (day, _), count in counts.items():
        days[day] += count
    return days
