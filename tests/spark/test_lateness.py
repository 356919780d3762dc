"""``lateness``: percentiles and objectives by task, queue and hour."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline.jobs.lateness import COLUMNS, hours, merge_hours, usable

HOUR = datetime(2027, 1, 15, 8, tzinfo=UTC)


def history(spark: SparkSession) -> DataFrame:
    """A hundred rows of mail in hour 8, three of them late; one in hour 9; three unusable rows; one cancelled."""
    at, rows = HOUR.replace(minute=59), []
    rows += [("app.mail", "mail", at, 10 if number else 900, "dispatched") for number in range(98)]
    rows += [("app.mail", "mail", at, 700, "dispatched"), ("app.mail", "mail", at, 501, "dispatched")]
    rows += [("app.mail", "mail", at.replace(hour=9), 500, "dispatched")]
    rows += [("app.report", "mail", at, 600, "dispatched"), ("app.report", None, at, 2_000, "dispatched")]
    rows += [(None, "mail", at, 1, "dispatched"), ("app.mail", "mail", None, 1, "dispatched")]
    rows += [("app.mail", "mail", at, None, "dispatched"), ("app.mail", "mail", None, None, "cancelled")]
    return spark.createDataFrame(rows, COLUMNS)


def test_an_hour_has_its_percentiles_and_its_missed_objective(spark: SparkSession) -> None:
    dispatched, rejected = usable(history(spark))
    found = hours(dispatched, {"app.report": 1_000, "mail": 500, "*": 5_000}).orderBy("task", "hour", "queue")
    rows = [tuple(row)[:-1] for row in found.collect()]
    hour = HOUR.replace(tzinfo=None)
    assert rows == [
        ("app.mail", "mail", hour, 100, 10, 10, 700, 900, 500, 3, True),
        ("app.mail", "mail", hour.replace(hour=9), 1, 500, 500, 500, 500, 500, 0, False),
        ("app.report", None, hour, 1, 2_000, 2_000, 2_000, 2_000, 1_000, 1, True),
        ("app.report", "mail", hour, 1, 600, 600, 600, 600, 500, 1, True),
    ]
    reasons = sorted(row.reason for row in rejected.collect())
    assert reasons == ["no dispatch time", "no lateness", "no task"]


def test_no_hour_misses_an_absent_objective_and_one_task_in_a_hundred_may_be_late(spark: SparkSession) -> None:
    dispatched, _ = usable(history(spark))
    assert {row.missed for row in hours(dispatched).select("missed").collect()} == {False}
    limits = {"app.mail": 700}  # one of a hundred is later, which is permitted
    [row] = hours(dispatched, limits).where("task = 'app.mail' and n = 100").collect()
    assert (row.over, row.missed) == (1, False)


def test_hours_are_merged_by_their_sketches(spark: SparkSession) -> None:
    dispatched, _ = usable(history(spark))
    rows = {row.queue: row for row in merge_hours(hours(dispatched), ["queue"]).collect()}
    assert {queue: (row.n, row.p50_ms, row.p99_ms, row.max_ms) for queue, row in rows.items()} == {
        "mail": (102, 10, 700, 900),
        None: (1, 2_000, 2_000, 2_000),
    }
