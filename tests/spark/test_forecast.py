"""``forecast``: herds, counts and drains of due tasks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline.jobs import forecast

#: 2027-01-15T08:00Z
NOW = 1_800_000_000
Rows = list[tuple[str | None, str, int]]


def due(spark: SparkSession, rows: Rows) -> DataFrame:
    """The due tasks of rows (queue, task, milliseconds from NOW)."""
    values = [(queue, task, NOW * 1_000 + ms) for queue, task, ms in rows]
    return forecast.due(spark.createDataFrame(values, forecast.COLUMNS))[0]


def steady(seconds: range, a_second: int = 5) -> Rows:
    return [("mail", "app.mail", second * 1_000 + at) for second in seconds for at in range(a_second)]


def at(second: float) -> datetime:
    return datetime.fromtimestamp(NOW + second, UTC).replace(tzinfo=None)


def test_a_herd_exceeds_the_ten_minutes_before_it(spark: SparkSession) -> None:
    """A herd has its usual load, its limit, its largest tasks, and a jitter."""
    herd: Rows = [("mail", "app.campaign", 700_000)] * 80 + [("mail", "app.remind", 700_999)] * 15
    alone: Rows = [(None, "app.remind", 5_000)] * 30
    rows = due(spark, steady(range(1_500)) + herd + alone)
    found = forecast.herds(rows, NOW, NOW, 20, {"mail": 10.0}).orderBy("second").collect()
    assert [(row.queue, row.second, row.n) for row in found] == [(None, at(5), 30), ("mail", at(700), 100)]
    first, second = found
    assert (first.usual, first.jitter_s) == (0.0, 2)  # 30 over 2 s: no longer 20 in one
    assert (second.usual, second.limit, second.jitter_s) == (5.0, 19.0, 19)  # 95 more; the queue has room for 5
    assert [tuple(task) for task in second.tasks] == [(80, "app.campaign"), (15, "app.remind"), (5, "app.mail")]


def test_the_first_second_of_a_steady_load_is_no_herd(spark: SparkSession) -> None:
    """Neither without knowledge of the time before it, nor with the ten minutes before it."""
    rows = due(spark, steady(range(700), 30))
    assert forecast.herds(rows, NOW, NOW, 20, {}).count() == 0
    assert forecast.herds(rows, NOW + 600, NOW, 20, {}).count() == 0
    # Where the time before it is known to be empty, the first second is a herd.
    assert forecast.herds(rows, NOW, NOW - 600, 20, {}).count() > 0


def test_due_tasks_are_counted_by_second_and_minute(spark: SparkSession) -> None:
    rows = due(spark, [("a", "t", -1), ("a", "t", 0), ("a", "u", 999), ("b", "t", 59_999), ("a", "t", 60_000)])
    assert sorted(map(tuple, forecast.seconds(rows, NOW, NOW + 60).collect())) == [(at(0), "a", 2), (at(59), "b", 1)]
    by_minute = sorted(map(tuple, forecast.minutes(rows, NOW, NOW + 61).collect()))
    assert by_minute == [(at(0), "a", 2), (at(0), "b", 1), (at(60), "a", 1)]


def test_a_queue_drains_at_its_rate(spark: SparkSession) -> None:
    """Overdue tasks are served first, and an idle second saves up no capacity."""
    rows: Rows = [("mail", "t", -90_000)] * 25 + [("mail", "t", 1_000)] * 5 + [("mail", "t", 100_000)] * 42
    rows += [("slow", "t", 0)] * 3 + [("none", "t", 0)]
    found = {row.queue: row for row in forecast.drain(due(spark, rows), NOW, {"mail": 10.0, "slow": 0.5}).collect()}
    assert sorted(found) == ["mail", "slow"]
    mail = found["mail"]
    # 0 s: 25 due, 15 remain; 1 s: 5 more, 10 remain, drained at 3 s. 100 s: 42 due, 32 remain, drained at 104.2 s.
    assert (mail.n, mail.worst_backlog, mail.worst_at) == (72, 32, at(100))
    assert (mail.longest_wait_s, mail.drained_at) == (pytest.approx(3.2), at(104.2))
    assert (found["slow"].worst_backlog, found["slow"].drained_at) == (3, at(6))


def test_a_row_without_a_due_time_is_rejected(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("mail", "t", None), ("mail", "t", -1)], forecast.COLUMNS)
    rows, rejected = forecast.due(frame)
    assert [row.second for row in rows.collect()] == [-1]
    assert [row.reason for row in rejected.collect()] == ["no due time"]
