"""``lateness``, ``forecast`` and ``tune``: small examples, and a log that DuckDB generated and evaluates as well."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, lateness, tune
from tests.kit import agreement, duck

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
    return spark.createDataFrame(rows, lateness.COLUMNS)


def test_an_hour_has_its_percentiles_and_its_missed_objective(spark: SparkSession) -> None:
    dispatched, rejected = lateness.usable(history(spark))
    found = lateness.hours(dispatched, {"app.report": 1_000, "mail": 500, "*": 5_000}).orderBy("task", "hour", "queue")
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
    dispatched, _ = lateness.usable(history(spark))
    assert {row.missed for row in lateness.hours(dispatched).select("missed").collect()} == {False}
    limits = {"app.mail": 700}  # one of a hundred is later, which is permitted
    [row] = lateness.hours(dispatched, limits).where("task = 'app.mail' and n = 100").collect()
    assert (row.over, row.missed) == (1, False)


def test_hours_are_merged_by_their_sketches(spark: SparkSession) -> None:
    dispatched, _ = lateness.usable(history(spark))
    rows = {row.queue: row for row in lateness.merge_hours(lateness.hours(dispatched), ["queue"]).collect()}
    assert {queue: (row.n, row.p50_ms, row.p99_ms, row.max_ms) for queue, row in rows.items()} == {
        "mail": (102, 10, 700, 900),
        None: (1, 2_000, 2_000, 2_000),
    }


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


ROWS = 60_000
LIMITS = {"queue_1": 300, "app.task_2": 100, "*": 1_000}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return duck.generate(tmp_path_factory.mktemp("log") / "history", ROWS, days=2)


def test_lateness_agrees(spark: SparkSession, path: str) -> None:
    dispatched, _ = lateness.usable(spark.read.parquet(path))
    limits = {"queue_1": 300, "*": 1_000}
    assert agreement.lateness(lateness.hours(dispatched, limits), path, limits) > 1_000


def test_herds_agree(spark: SparkSession, path: str) -> None:
    due, _ = forecast.due(spark.read.parquet(path))
    found = forecast.herds(due, duck.START_MS // 1_000, duck.START_MS // 1_000, 20, {})
    assert agreement.herds(found, path, 20) > 50
    assert agreement.minutes(forecast.minutes(due, 0, 2**40), path) > 2_000


def test_the_costs_of_wheels_agree(spark: SparkSession, path: str) -> None:
    pairs, _ = tune.pairs(spark.read.parquet(path))
    shapes = [WheelShape(1, 512), WheelShape(10, 20), WheelShape(1_000, 16)]
    assert agreement.geometry(pairs, shapes, path) == ROWS
    assert agreement.bursts(pairs, [1, 10, 1_000], path) > 1
