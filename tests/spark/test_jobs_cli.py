"""``celery-wheel-pipeline JOB``: from the command line to the results. The jobs have tests of their own."""

import json
import logging
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.results import figures
from celery_wheel.results.reader import JobResults
from tests.kit import duck
from tests.kit.holder import NOW
from tests.spark.stores import Site

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return duck.generate(tmp_path_factory.mktemp("log") / "history", 4_000, days=1)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_the_help_lists_every_job() -> None:
    shown = call("--help").output
    assert "\nJobs:\n" in shown
    for name, text in JOBS.items():
        assert name == cli.import_module(f"celery_wheel.pipeline.jobs.{name}").NAME
        assert name in shown
        assert text in " ".join(call(name, "--help").output.split())


@pytest.mark.slow
def test_lateness_of_an_archive(spark: SparkSession, archive: str, tmp_path: Path) -> None:
    objectives = ("--objective", "queue_1=300ms", "--objective", "*=5s")
    arguments = ("lateness", "--input", archive, "--output", tmp_path / "out", *objectives)
    done = call(*arguments, "--from", "2026-11-01T00:00", "--to", "2026-11-01T12:00")
    assert done.exit_code == 0, done.output
    assert "missed their objective" in done.stdout
    assert re.search(r"^lateness: starting Spark \(\d+ s\)$", done.stderr, re.MULTILINE)
    found = JobResults(tmp_path / "out")
    with duck.connect() as connection:
        half_day = "dispatched between '2026-11-01' and '2026-11-01 11:59:59.999'"
        expected = len(duck.rows(connection, f"select * from {duck.source(archive)} where {half_day}"))
    rows = found.rows("hours", ["hour", "queue", "n", "objective_ms", "missed"])
    assert sum(row["n"] for row in rows) == found.summary["tasks"] == expected
    assert {row["objective_ms"] for row in rows if row["queue"] == "queue_1"} == {300}
    assert sum(row["missed"] for row in rows) == found.summary["missed"] > 0
    assert {row["hour"].isoformat()[:10] for row in rows} == {"2026-11-01"}
    assert found.summary["rejects"] == {}
    page = figures.lateness_page(found, None, None, 0, 1_000)
    assert (page.n, page.missed, page.judged, page.left_out) == (expected, found.summary["missed"], len(rows), 0)
    assert sum(len(line.last) for line in page.lines) == sum(line.hours for line in page.lines) == len(rows)
    assert Path(found.summary["picture"]).read_bytes().startswith(PNG)


@pytest.mark.slow
def test_tune_of_an_archive(spark: SparkSession, archive: str, tmp_path: Path) -> None:
    done = call("tune", "--input", archive, "--output", tmp_path, "--ticks", "1,1000", "--sizes", "20,64", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["tasks"] == 4_000
    assert summary["words"][0].startswith("take wheel_tick = 0.001, wheel_size = 20:")
    assert summary["checked"] == 4 * 300
    rows = JobResults(tmp_path).rows("shapes")
    assert [row["wheel_size"] for row in rows if row["recommended"]] == [20]
    assert {row["levels"] for row in rows if row["wheel_size"] == 20} == {2, 5}  # with a window of 5 minutes
    assert (tmp_path / "tune.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_forecast_of_a_store(spark: SparkSession, filled: Site, tmp_path: Path) -> None:
    options = ["--store", filled.url, "--now", NOW + 1_000, "--to", NOW + 60_000, "--rate", "2/s", "--herd", 2]
    done = call("forecast", *options, "--output", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["pending"], summary["overdue"], summary["beyond"], summary["herds"]) == (4, 0, 0, 0)
    found = JobResults(tmp_path / "out")
    assert sum(row["n"] for row in found.rows("minutes")) == sum(row["n"] for row in found.rows("seconds")) == 4
    assert {row["queue"]: row["n"] for row in found.rows("drain")} == {"by.key": 1, "celery": 3}
    page = figures.due_counts(found, None, NOW, NOW + 3_600_000)
    assert (sum(page.minutes.values()), page.queues) == (4, ["by.key", "celery"])
    assert figures.largest_herds(found, None, 0, 10) == ([], 0)
    assert [row["queue"] for row in figures.longest_drains(found, "celery", 10)[0]] == ["celery"]
    assert (tmp_path / "out" / "forecast.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lateness", "--objective", "emails"], "must be NAME=LENGTH, like emails=500ms"),
        (["lateness", "--objective", "a=soon"], "must be a length of time"),
        (["forecast", "--rate", "fast"], "must be like 500/s"),
        (["tune", "--sizes", "1,2"], "must be whole numbers from 2 on"),
        (["reconcile"], "Missing option '--executed'"),
        (["sleep"], "No such command 'sleep'"),
        *((job, "--store or --input must name the data to read") for job in (["lateness"], ["forecast"], ["tune"])),
        (["lateness", "--store", "sqlite:////a", "--input", "b"], "--store and --input exclude each other"),
        (["archive", "--output", "a"], "must name the store, as wheel_store does"),
        (["tail", "--output", "a", "--every", "1ms"], "--every must be 100ms or more"),
        (["compact", "--archive", "a", "--keep", "5m"], "--keep must be 1h or more"),
        (["erase", "--archive", "a"], "erase must have one of --task-id, --key and --group"),
        (["reconcile", "--executed", "a"], "must name the scheduled tasks"),
        (["reconcile", "--executed", "a", "--dispatched", "b", "--input", "c"], "--dispatched excludes --store"),
        (["schedule", "--rows", "a.csv"], "--batch must name this load"),
        (["schedule", "--dry-run"], "one of --rows and --jdbc must name the rows"),
        (["schedule", "--dry-run", "--jdbc", "a"], "--table must name the table of --jdbc"),
        (["schedule", "--dry-run", "--rows", "a.csv", "--table", "b"], "--table must go with --jdbc"),
        (["schedule", "--dry-run", "--rows", "a.csv", "--zone", "Mars/Phobos"], "--zone must be a time zone"),
    ],
)
def test_wrong_usage_is_exit_code_2_before_spark_starts(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CELERY_WHEEL_STORE", raising=False)
    done = call(*arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert "starting Spark" not in done.stderr


def test_an_unusable_input_is_an_error_of_one_line(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "other"))
    done = call("lateness", "--input", tmp_path / "other")
    assert done.exit_code == 1
    assert "has no task, queue, dispatched, lateness_ms, outcome" in done.stderr.splitlines()[-1]
    done = call("forecast", "--store", f"sqlite:///{tmp_path}/none.sqlite3")
    assert done.exit_code == 1
    assert str(tmp_path) in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_process_prints_an_error_of_one_line_and_none_of_java(java: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "celery_wheel.pipeline", "tune", "--input", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *steps, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert all(step.startswith("tune: ") for step in steps)
    assert last.startswith("Error: [PATH_NOT_FOUND]"), done.stderr
    assert "celery-wheel-spark-" in last
    Path(last.split("messages: ")[1].rstrip(")")).unlink()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_one_line_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, number: int, status: int
) -> None:
    """PySpark's own handler and its bridge would print fifty lines."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def stopped(*_: object) -> None:
        assert [*tmp_path.iterdir()], "the messages of Java"
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")  # noqa: LOG015 - as py4j does
            raise

    ignoring = lambda *_: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    monkeypatch.setattr("celery_wheel.pipeline.session.session", ignoring)
    monkeypatch.setattr("celery_wheel.pipeline.jobs.lateness.run", stopped)
    done = call("lateness", "--input", "nowhere")
    *_, last = done.stderr.splitlines()
    assert (done.exit_code, last.partition(".")[0], done.stdout) == (status, "Stopped", "")
    assert ([*tmp_path.iterdir()], signal.getsignal(signal.SIGTERM)) == ([], before)
    assert not caplog.records
