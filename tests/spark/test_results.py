"""Results are read without Spark, and the files of a run remain until the run after the next one has finished.

Tables of any size are written by executors: the driver reads a few rows, however large the input is.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.cli import main
from celery_wheel.pipeline.jobs import JobSummary
from celery_wheel.pipeline.output import OutputFolder
from celery_wheel.results.reader import JobResults


def run(folder: Path, number: int) -> JobResults:
    output = OutputFolder(str(folder), "tune")
    output._run = f"20270115T080000Z-{number}"
    output.rows("shapes", [{"tick_ms": number}])
    output.finish(JobSummary("tune", {"tasks": number}, ["take it"]))
    return JobResults(folder)


def test_a_reader_keeps_the_files_of_its_summary_while_the_next_run_writes(tmp_path: Path) -> None:
    first = run(tmp_path, 1)
    run(tmp_path, 2)
    assert first.rows("shapes") == [{"tick_ms": 1}]
    third = run(tmp_path, 3)
    assert third.rows("shapes", ["tick_ms"]) == [{"tick_ms": 3}]
    found = (third.job, third.tables, third.summary["tasks"], third.summary["words"])
    assert found == ("tune", ["shapes"], 3, ["take it"])
    said = sorted(path.name for path in tmp_path.iterdir())
    assert said == ["shapes-20270115T080000Z-2.parquet", "shapes-20270115T080000Z-3.parquet", "summary.json"]
    with pytest.raises(FileUnusable, match="has no table 'hours' of tune; it has shapes"):
        third.table("hours")


def test_a_folder_holds_the_results_of_one_job(tmp_path: Path) -> None:
    run(tmp_path, 1)
    with pytest.raises(FileUnusable, match="has the results of tune; give lateness a folder of its own"):
        OutputFolder(str(tmp_path), "lateness")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), ("{", "is not the summary"), ("[]", "format 1"), ('{"format": 2}', "got 2")],
)
def test_a_folder_without_usable_results_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(FileUnusable, match=message):
        JobResults(tmp_path)


def test_reading_needs_pyarrow_only(tmp_path: Path) -> None:
    run(tmp_path, 7)
    program = (
        "import json, sys; from celery_wheel.results.reader import JobResults;"
        "rows = JobResults(sys.argv[1]).rows('shapes');"
        "print(json.dumps([rows, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    rows, loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert rows == [{"tick_ms": 7}]
    assert not {"pyspark", "py4j", "celery", "kombu", "sqlalchemy", "django", "matplotlib"} & {*loaded}


#: 2027-01-15T08:00Z
NOW_S = 1_800_000_000
QUEUES, SECONDS = 20, 1_000
ROWS = QUEUES * SECONDS
#: The most rows that a query may return to the driver: a tenth of each table.
MOST = ROWS // 10


@pytest.fixture
def fetched(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each result that a query returned to the driver."""
    kind, sizes = type(spark.range(0)), list[int]()

    def counted(fetch: Callable[..., Any]) -> Callable[..., Any]:
        def call(frame: DataFrame, *args: Any, **options: Any) -> Any:
            found = fetch(frame, *args, **options)
            assert hasattr(found, "__len__"), f"{fetch.__name__} returns rows without a bound"
            sizes.append(len(found))
            return found

        return call

    for name in ("collect", "toArrow", "toPandas", "toLocalIterator", "take", "head", "tail", "first"):
        monkeypatch.setattr(kind, name, counted(getattr(kind, name)))
    return sizes


def call(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exit_code in (0, 1), done.output
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.slow
def test_forecast_of_many_seconds(spark: SparkSession, tmp_path: Path, fetched: list[int]) -> None:
    queue = f.concat(f.lit("queue_"), f.col("id") % QUEUES).alias("queue")
    due_ms = ((NOW_S + f.floor(f.col("id") / QUEUES)) * 1_000).alias("due_ms")
    spark.range(ROWS).select(queue, f.lit("app.mail").alias("task"), due_ms).write.parquet(f"{tmp_path}/pending")
    options = ("--now", NOW_S * 1_000, "--to", (NOW_S + SECONDS) * 1_000, "--rate", "1/s", "--output", tmp_path / "out")
    summary = call("forecast", "--input", tmp_path / "pending", *options)
    assert max(fetched) <= MOST
    assert (summary["pending"], summary["drained"], summary["busiest_second"]["n"]) == (ROWS, QUEUES, 1)
    table = JobResults(tmp_path / "out").table("seconds")
    assert table.num_rows == ROWS
    assert table.equals(table.sort_by([("second", "ascending"), ("queue", "ascending")])), "the parts are in order"


@pytest.mark.slow
def test_reconcile_of_a_large_loss(spark: SparkSession, tmp_path: Path, fetched: list[int]) -> None:
    ids = spark.range(ROWS).select(f.col("id").cast("string").alias("task_id"))
    ids.withColumn("eta", f.timestamp_seconds(f.lit(NOW_S))).write.parquet(f"{tmp_path}/scheduled")
    started = ids.where("task_id = '7'").withColumn("started", f.timestamp_seconds(f.lit(NOW_S)))
    started.write.parquet(f"{tmp_path}/executed")
    logs = ("--scheduled", tmp_path / "scheduled", "--executed", tmp_path / "executed")
    summary = call("reconcile", *logs, "--output", tmp_path / "out")
    assert max(fetched) <= MOST
    assert summary["findings"] == {"lost": ROWS - 1}
    assert JobResults(tmp_path / "out").read_rows("findings", ["task_id"], 3)[1] == ROWS - 1


@pytest.mark.slow
def test_lateness_of_many_tasks(spark: SparkSession, tmp_path: Path, fetched: list[int]) -> None:
    task = f.concat(f.lit("task_"), f.col("id") % (ROWS // 4)).alias("task")
    values = {"queue": f.lit("mail"), "dispatched": f.timestamp_seconds(f.lit(NOW_S)), "lateness_ms": f.col("id")}
    rows = spark.range(ROWS).select(task, *(value.alias(name) for name, value in values.items()))
    rows.withColumn("outcome", f.lit("dispatched")).write.parquet(f"{tmp_path}/history")
    summary = call("lateness", "--input", tmp_path / "history", "--objective", "*=5s", "--output", tmp_path / "out")
    assert max(fetched) <= MOST
    assert (summary["tasks"], summary["hours"], summary["latest_ms"]) == (ROWS, ROWS // 4, ROWS - 1)
    assert [row["p99_ms"] for row in summary["worst"]] == [*range(ROWS - 1, ROWS - 6, -1)]


def test_rows_that_get_lost_are_errors(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster whose executors write to disks of their own."""
    output = OutputFolder(str(tmp_path), "forecast")
    elsewhere = (tmp_path / "of an executor").as_uri()
    monkeypatch.setattr("celery_wheel.pipeline.output._uri", lambda _: elsewhere)
    with pytest.raises(FileUnusable, match=r"wrote 5 rows of minutes, and 0 of them .* all executors see"):
        output.table("minutes", spark.range(5).toDF("n"))


def test_the_first_and_the_last_rows_are_read_across_parts(spark: SparkSession, tmp_path: Path) -> None:
    OutputFolder(str(tmp_path), "forecast").table("minutes", spark.range(10, numPartitions=4).toDF("n"))
    [folder] = tmp_path.glob("minutes-*.parquet")
    for part in sorted(folder.glob("part-*.parquet"))[1:3]:  # several row groups each
        pq.write_table(pq.read_table(part), part, row_group_size=1)
    (tmp_path / "summary.json").write_text(json.dumps({"job": "x", "format": 1, "tables": {"minutes": folder.name}}))
    results = JobResults(tmp_path)
    for limit in range(12):
        for last in (False, True):
            table, total = results.read_rows("minutes", ["n"], limit, last=last)
            expected = [*range(10)][max(0, 10 - limit) :] if last else [*range(10)][:limit]
            assert (table["n"].to_pylist(), total) == (expected, 10)


def test_the_parts_of_the_run_before_the_last_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        output = OutputFolder(str(tmp_path), "forecast")
        output._run = f"20270115T080000Z-{number}"
        output.table("minutes", spark.range(number).toDF("n"))
        output.finish(JobSummary("forecast", {}))
    found = sorted(path.name for path in tmp_path.glob("minutes-*"))
    assert found == ["minutes-20270115T080000Z-1.parquet", "minutes-20270115T080000Z-2.parquet"]
    assert JobResults(tmp_path).rows("minutes") == [{"n": 0}, {"n": 1}]
