"""The folder of an archive: sorted data files written, counted and removed, and its manifests, by Spark alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from celery_wheel.archive.reader import GROUP, MANIFESTS, DataFile, Manifest, last_manifest, parse_manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA

#: A file of about 100 MB, and its row groups: readers skip a group by its minima and maxima.
ROWS_A_FILE, ROWS_A_GROUP = 1_000_000, 100_000
WRITE = {"compression": "zstd", "parquet.block.row.count.limit": str(ROWS_A_GROUP)}
#: No file ``_SUCCESS``: it says nothing that the manifest does not.
SILENT = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Data files, and those that a killed writer had not moved to their place yet. Spark lists no empty ones.
DATA = "run=*/{day=*,_temporary/0/*/day=*,_temporary/0/_temporary/*/day=*}/*"

T = TypeVar("T")


class ArchiveFolder:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path.rstrip("/")

    def refuse_stream_output(self) -> None:
        """Refuse the folder of a stream: Spark reads it by a file list, which would lack the events of the archive."""
        if none_if_absent(lambda: self._spark.read.text(f"{self.path}/_spark_metadata").schema) is not None:
            raise FileUnusable(f"--output {self.path} is the output of a stream; give the archive a folder of its own")

    def read(self, files: Iterable[DataFile]) -> DataFrame:
        """Return the events of some files, with ``day``; columns that a file lacks are null."""
        paths = [f"{self.path}/{file.path}" for file in files]
        if not paths:
            return self._spark.createDataFrame([], SCHEMA)
        return self._spark.read.schema(SCHEMA).option("basePath", self.path).parquet(*paths).select(*SCHEMA.names)

    def write(self, rows: DataFrame, run: str, count: int) -> list[DataFile]:
        """Write about ``count`` rows into the folder of a run, and return the files as they were read back."""
        folder, observed = f"{self.path}/run={run}", Observation()
        files = sort_events(rows, -(-count // ROWS_A_FILE)).observe(observed, f.count(f.lit(1)).alias("rows"))
        files.write.partitionBy(DAY).options(**WRITE, **SILENT).parquet(folder)
        written = self._spark.read.schema(SCHEMA).option("basePath", self.path).parquet(folder)
        found: dict[str, DataFile] = {}
        for row in written.groupBy("_metadata.file_path", DAY, "outcome").count().collect():
            path = f"run={run}/{row.file_path.rpartition(f'/run={run}/')[2]}"
            found.setdefault(path, DataFile(path, row[DAY], {})).outcomes[row.outcome] = row["count"]
        if sum(file.events for file in found.values()) != observed.get["rows"]:
            raise FileUnusable(
                f"{folder} has {sum(file.events for file in found.values()):,} events, but {observed.get['rows']:,} "
                "were written; nothing else was changed; does another program remove files there? Run the job again"
            )
        return [replace(file, outcomes=dict(sorted(file.outcomes.items()))) for _, file in sorted(found.items())]

    def runs(self) -> set[str]:
        """Return the names of the runs that have any file here, complete or not."""
        paths = self._paths(f"{self.path}/{DATA}")
        return {path.rpartition("/run=")[2].partition("/")[0] for path in paths}

    def remove(self, folder: str) -> None:
        """Remove the files of a folder. Spark overwrites them with none; on a file system the empty folder stays."""
        nothing = self._spark.createDataFrame([], SCHEMA)
        nothing.write.mode("overwrite").partitionBy(DAY).options(**SILENT).parquet(f"{self.path}/{folder}")

    def last(self) -> Manifest | None:
        """Return the manifest that counts; None of a new archive. Raises FileUnusable for that of a later version."""
        path = last_manifest(self._manifests())
        if path is None:
            return None
        [row] = self._spark.read.text(path).collect()
        found = parse_manifest(row.value, path)
        if found.schema > VERSION or any(COLUMNS.get(name, kind) != kind for name, kind in found.columns.items()):
            raise FileUnusable(
                f"the archive {self.path} has columns of version {found.schema}, and this version of celery-wheel "
                f"writes version {VERSION}; nothing was changed; run: pip install -U celery-wheel"
            )
        return found

    def put(self, manifest: Manifest) -> None:
        """Write a manifest, as one file. The first one of a group removes those before the last two groups."""
        rows = self._spark.createDataFrame([(manifest.to_line(),)], "value string").coalesce(1)
        rows.write.options(**SILENT).text(f"{self.path}/{manifest.folder}")
        if manifest.serial % GROUP:
            return
        oldest = f"{manifest.serial // GROUP - 1:08}"
        for group in sorted({path.split("/")[-3] for path in self._manifests()}):
            if group < oldest:
                self.remove(f"{MANIFESTS}/{group}")

    def _manifests(self) -> Sequence[str]:
        return self._paths(f"{self.path}/{MANIFESTS}/*/*")

    def _paths(self, pattern: str) -> list[str]:
        """Return the paths of the files in the folders of a pattern; Spark opens none of them."""
        read = self._spark.read.format("binaryFile")
        rows = none_if_absent(lambda: read.load(pattern).select("path").collect())
        return [row.path for row in rows or []]


def read_archive(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the events of an archive, with ``day``; None where ``path`` is none."""
    folder = ArchiveFolder(spark, path)
    last = folder.last()
    return None if last is None else folder.read(last.files)


def none_if_absent(read: Callable[[], T]) -> T | None:
    """Return the result of ``read``, or None where its path does not exist."""
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


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
