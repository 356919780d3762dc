"""An archive is read by its manifest, by pyarrow, DuckDB, Polars and Spark: with old files, and no more than needed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from celery_wheel import archive
from celery_wheel.archive.reader import DataFile, Manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline import archive as archive_module
from celery_wheel.pipeline.archive import COLUMNS, SCHEMA, VERSION, ArchiveFolder, read_archive, with_day

DAYS, QUEUES, TASKS, ROWS = ("2027-01-15", "2027-01-16"), 4, 5, 4_000
ALL = pc.CountOptions(mode="all")  # nulls, too
#: The columns of version 1, in their types. A new version adds columns behind these.
VERSION_1 = (
    "shard int lane bigint due_ms bigint seq bigint id bigint task_id string task string queue string key string "
    "group string "
    "eta timestamp created timestamp accepted timestamp dispatched timestamp lateness_ms bigint outcome string "
    "reason string at timestamp epoch bigint settlement bigint size int"
)


def made(spark: SparkSession, schema: StructType) -> Any:
    n = f.col("id")
    at = f.timestamp_seconds(f.lit(1_800_000_000) + (n % len(DAYS)) * 86_400)
    values = {
        "id": n,
        "seq": n,
        "shard": f.lit(0),
        "queue": f.concat(f.lit("queue_"), n % QUEUES),
        "task": f.concat(f.lit("task_"), n % TASKS),
        "outcome": f.lit("dispatched"),
        "at": at,
        "size": f.lit(7),
    }
    columns = [
        values.get(field.name, f.lit(None)).cast(field.dataType).alias(field.name)
        for field in schema
        if field.name != "day"
    ]
    return with_day(spark.range(ROWS).select(*columns))


def put(folder: ArchiveFolder, files: list[DataFile], serial: int = 1) -> None:
    folder.put(Manifest(serial, "test", "a store", {0: ROWS}, VERSION, COLUMNS, tuple(files)))


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive whose files have row groups of 100 rows, beside a file that no manifest names."""
    monkeypatch.setitem(archive_module.WRITE, "parquet.block.row.count.limit", "100")
    folder = ArchiveFolder(spark, f"{tmp_path}/archive")
    files = folder.write(made(spark, SCHEMA), "20270117T080000Z-1", ROWS)
    folder.write(made(spark, SCHEMA), "20270117T080000Z-killed", ROWS)
    put(folder, files)
    return folder.path


def test_rows_are_read_by_day_task_and_queue(path: str) -> None:
    whole = archive.read(path)
    assert whole.num_rows == ROWS
    assert str(whole.schema.field("at").type) == "timestamp[us, tz=UTC]"
    found = archive.read(path, days=DAYS[1], queue="queue_1", columns=["id", "day", "queue"])
    assert sorted(found["id"].to_pylist()) == [n for n in range(ROWS) if n % 2 == 1 and n % QUEUES == 1]
    assert {*found["day"].to_pylist()} == {DAYS[1]}
    several = archive.read(path, days=DAYS, task=["task_1", "task_2"], queue="queue_0")
    assert several.num_rows == sum(n % TASKS in (1, 2) and n % QUEUES == 0 for n in range(ROWS))
    assert archive.read(path, days=("2027-01-17", "2027-02-01")).num_rows == 0


def test_readers_agree_and_skip_row_groups(spark: SparkSession, path: str) -> None:
    """Each has the rows of the manifest, and not those of the killed run."""
    files, wanted = archive.files(path), f"task = 'task_1' and queue = 'queue_1' and day = '{DAYS[1]}'"
    expected = sum(n % TASKS == 1 and n % QUEUES == 1 and n % 2 == 1 for n in range(ROWS))
    assert duckdb.read_parquet(files, hive_partitioning=True).filter(wanted).count("*").fetchall() == [(expected,)]
    found = polars.scan_parquet(files, hive_partitioning=True).filter(
        polars.col("task") == "task_1", polars.col("queue") == "queue_1", polars.col("day").cast(str) == DAYS[1]
    )
    assert found.collect().height == expected
    rows = read_archive(spark, path)
    assert rows is not None
    assert rows.where(wanted).count() == expected
    groups = [
        metadata.row_group(number)
        for metadata in (pq.read_metadata(file) for file in archive.files(path, DAYS[1]))
        for number in range(metadata.num_row_groups)
    ]
    names = {group.column(n).path_in_schema: n for group in groups[:1] for n in range(group.num_columns)}
    queue, task = ([group.column(names[name]).statistics for group in groups] for name in ("queue", "task"))
    needed = [
        one.min <= "queue_1" <= one.max and two.min <= "task_1" <= two.max for one, two in zip(queue, task, strict=True)
    ]
    assert (len(groups), needed.count(True)) == (20, 2), "a reader with statistics reads 2 of 20 row groups"


def test_the_columns_of_the_first_version_stay() -> None:
    words = VERSION_1.split()
    assert list(COLUMNS.items())[: len(words) // 2] == list(zip(words[::2], words[1::2], strict=True))
    assert (len(COLUMNS) == len(words) // 2) == (VERSION == 1), "a new column needs a new version"


@pytest.mark.slow
def test_a_new_column_is_null_in_olds(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version had no ``size``; this one reads its archive, and appends to it."""
    folder = ArchiveFolder(spark, f"{tmp_path}/archive")
    with monkeypatch.context() as patch:
        older = StructType([field for field in SCHEMA if field.name != "size"])
        patch.setattr(archive_module, "SCHEMA", older)
        old = folder.write(made(spark, older), "20270117T080000Z-1", ROWS)
    new = folder.write(made(spark, SCHEMA), "20270117T090000Z-2", ROWS)
    put(folder, [*old, *new])
    expected = {None: ROWS, 7: ROWS}
    sizes = archive.read(folder.path, columns=["size"]).group_by("size").aggregate([("size", "count", ALL)])
    assert {row["size"]: row["size_count"] for row in sizes.to_pylist()} == expected
    rows = read_archive(spark, folder.path)
    assert rows is not None
    assert {row.size: row["count"] for row in rows.groupBy("size").count().collect()} == expected
    files = archive.files(folder.path)
    by_duck = duckdb.read_parquet(files, hive_partitioning=True, union_by_name=True).aggregate("size, count(*)")
    assert dict(by_duck.fetchall()) == expected
    by_polars = polars.scan_parquet(files, hive_partitioning=True, missing_columns="insert", extra_columns="ignore")
    assert by_polars.collect().height == 2 * ROWS


def test_an_archive_of_a_later_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = ArchiveFolder(spark, str(tmp_path))
    folder.put(Manifest(1, "test", "a store", {}, VERSION + 1, {**COLUMNS, "colour": "string"}))
    with pytest.raises(FileUnusable, match=r"columns of version 2, .* pip install -U celery-wheel"):
        folder.last()
    assert archive.read(str(tmp_path)).schema.field("colour").type == pa.string(), "a reader needs no new version"
    folder.put(Manifest(2, "test", "a store", {}, VERSION + 1, {**COLUMNS, "colour": "binary"}))
    with pytest.raises(FileUnusable, match="columns of the types binary"):
        archive.read(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "is no archive: it has no manifest"),
        ("{", "is not the manifest of an archive"),
        ('{"format": 1}', "is not the manifest of an archive"),
        ('{"format": 99}', "was written by another version"),
    ],
)
def test_a_folder_without_a_usable_manifest_is_an_error(tmp_path: Path, line: str | None, message: str) -> None:
    if line is not None:
        (tmp_path / "_manifest/00000000/1").mkdir(parents=True)
        (tmp_path / "_manifest/00000000/1/part-0.txt").write_text(line)
    with pytest.raises(FileUnusable, match=message):
        archive.files(str(tmp_path))


def test_reading_an_archive_needs_pyarrow_only(path: str) -> None:
    program = (
        "import json, sys; from celery_wheel import archive; rows = archive.read(sys.argv[1], days='2027-01-15');"
        "print(json.dumps([rows.num_rows, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    command = [sys.executable, "-c", program, path]
    rows, loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert rows == ROWS // len(DAYS)
    assert not {"pyspark", "py4j", "celery", "kombu", "sqlalchemy", "django"} & {*loaded}
