"""Real flights of the days on which the clocks change, scheduled by the example: each once, at its instant."""

import csv
import io
import zipfile
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.core.management.base import CommandError
from flights import timetable, year
from flights.instants import count_misplaced
from flights.jobs import LAST, JobRunner
from pyspark.sql import SparkSession

from tests.spark.stores import Site, loaded_messages

YEAR = 2030
FORWARD, BACK = date(2013, 3, 10), date(2013, 11, 3)
FLIGHTS = 908 + 902


def expected() -> dict[str, int]:
    """The instant of each task id, from the local columns of the file and the rules of the zone."""
    found = {}
    with zipfile.ZipFile(timetable._data_file()) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            day = date(int(row["year"]), int(row["month"]), int(row["day"]))
            if day in (FORWARD, BACK):
                hour, minute = divmod(int(row["sched_dep_time"]), 100)
                local = datetime(YEAR, day.month, day.day, hour, minute, tzinfo=ZoneInfo("America/New_York"))
                key = f"{row['carrier']}-{row['flight']}-{local:%Y-%m-%d}-{row['origin']}"
                found[key] = round(local.timestamp() * 1_000)
    return found


@pytest.fixture
def jobs(spark: SparkSession, tmp_path: Path, one: Site) -> JobRunner:
    return JobRunner(tmp_path, one.url, tmp_path)


@pytest.mark.slow
def test_each_departure_is_pending_once_at_its_instant(
    jobs: JobRunner, one: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = year.write_year(tmp_path, [*timetable.flights_on(FORWARD), *timetable.flights_on(BACK)], YEAR)
    assert (written.rows, written.keys) == (FLIGHTS, FLIGHTS)
    options = ("--store", jobs.store, "--rows", tmp_path / year.TIMETABLE, "--id", "task_id", "--batch", "two-days")
    found = jobs.run("schedule", *options, "--gap", "reject", "--fold", "reject", lines=LAST)
    assert (found["rows"], found["loaded"], found["rejects"]) == (FLIGHTS, FLIGHTS, {})
    messages = loaded_messages(one.store)
    assert len(messages) == FLIGHTS
    assert {sent.task_id: sent.eta_ms for sent in messages} == expected()
    assert {(sent.task, sent.queue) for sent in messages} == {(year.DEPART, year.QUEUE)}
    output = capsys.readouterr().out
    assert output.startswith("$ celery-wheel-pipeline schedule --store sqlite:///wheel.sqlite3 --rows timetable --id")
    assert "s  1,810 tasks are scheduled as the batch two-days" in output
    steps = [line for line in output.splitlines() if line.startswith("          schedule: ")]
    said = [step.split(" (")[0].split(": ")[1] for step in steps]
    assert said == ["starting Spark", "reading", "computing the load", "scheduling"]

    holder = one.holder
    rows = [holder.row(sent.eta_ms, task_id=sent.task_id, task=sent.task) for sent in messages]
    holder.apply(rows=rows[2:])
    later = rows[1].message
    holder.accept(later.eta_ms + 3_600_000, task_id=later.task_id, task=later.task)
    expected_rows = tmp_path / year.EXPECTED
    assert count_misplaced(jobs.store, expected_rows, year.DEPART) == 2, "one is missing, and one is an hour later"


def test_a_job_that_fails_raises_its_error_line(jobs: JobRunner, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"^schedule: --batch must name this load"):
        jobs.run("schedule", "--store", jobs.store, "--rows", tmp_path)
