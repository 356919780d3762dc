"""``lateness``, ``forecast`` and ``tune``: small examples, and a log that DuckDB generated and evaluates as well.

The closed form of a wheel's cost equals the wheel itself, and the costs by Spark; the recommendation follows.
"""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.errors import WheelError
from celery_wheel.pipeline import cost_model
from celery_wheel.pipeline.cost_model import WheelShape, compute_cost, count_cascades, simulate_cost
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
    assert sorted(row.reason for row in rejected.collect()) == ["no dispatch time", "no lateness", "no task"]


def test_no_hour_misses_an_absent_objective_and_one_task_in_a_hundred_may_be_late(spark: SparkSession) -> None:
    dispatched, _ = lateness.usable(history(spark))
    assert {row.missed for row in lateness.hours(dispatched).select("missed").collect()} == {False}
    limits = {"app.mail": 700}  # one of a hundred is later, which is permitted
    [row] = lateness.hours(dispatched, limits).where("task = 'app.mail' and n = 100").collect()
    assert (row.over, row.missed) == (1, False)


def test_hours_are_merged_by_their_sketches(spark: SparkSession) -> None:
    dispatched, _ = lateness.usable(history(spark))
    rows = {row.queue: row for row in lateness.merge_hours(lateness.hours(dispatched), ["queue"]).collect()}
    found = {queue: (row.n, row.p50_ms, row.p99_ms, row.max_ms) for queue, row in rows.items()}
    assert found == {"mail": (102, 10, 700, 900), None: (1, 2_000, 2_000, 2_000)}


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
    herd: Rows = [("mail", "app.campaign", 700_000)] * 80 + [("mail", "app.remind", 700_999)] * 15
    alone: Rows = [(None, "app.remind", 5_000)] * 30
    rows = due(spark, steady(range(1_500)) + herd + alone)
    found = forecast.herds(rows, NOW, NOW, 20, {"mail": 10.0}).orderBy("second").collect()
    assert [(row.queue, row.second, row.n) for row in found] == [(None, at(5), 30), ("mail", at(700), 100)]
    first, second = found
    assert (first.usual, first.jitter_s) == (0.0, 2)  # 30 over 2 s: no longer 20 in one
    assert (second.usual, second.limit, second.jitter_s) == (5.0, 19.0, 19)  # 95 more; the queue has room for 5
    assert [tuple(task) for task in second.tasks] == [(80, "app.campaign"), (15, "app.remind"), (5, "app.mail")]


@pytest.mark.slow
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


@pytest.mark.slow
def test_herds_agree(spark: SparkSession, path: str) -> None:
    due, _ = forecast.due(spark.read.parquet(path))
    found = forecast.herds(due, duck.START_MS // 1_000, duck.START_MS // 1_000, 20, {})
    assert agreement.herds(found, path, 20) > 50
    assert agreement.minutes(forecast.minutes(due, 0, 2**40), path) > 2_000


@pytest.mark.slow
def test_the_costs_of_wheels_agree(spark: SparkSession, path: str) -> None:
    pairs, _ = tune.pairs(spark.read.parquet(path))
    shapes = [WheelShape(1, 512), WheelShape(10, 20), WheelShape(1_000, 16)]
    assert agreement.geometry(pairs, shapes, path) == ROWS
    assert agreement.bursts(pairs, [1, 10, 1_000], path) > 1


shapes = st.builds(WheelShape, st.integers(1, 1_500), st.sampled_from([2, 3, 7, 16, 20, 60, 64, 512]))
delays = st.one_of(st.integers(-50, 3_000), st.integers(0, 365 * 86_400_000), st.sampled_from([0, 1, 20, 400, 8_000]))
random_pairs = st.lists(st.tuples(st.integers(-5_000, 40_000), delays), max_size=40).map(
    lambda delays: [(created, created + delay) for created, delay in delays]
)


@given(random_pairs, shapes)
@example([(0, 450), (0, 446), (0, 455), (0, 473), (0, 350)], WheelShape(1, 20))
@example([(19, 39), (0, 400), (399, 799)], WheelShape(1, 20))
def test_the_closed_form_equals_the_wheel(random_pairs: list[tuple[int, int]], shape: WheelShape) -> None:
    simulated, levels = simulate_cost(random_pairs, shape)
    assert compute_cost(random_pairs, shape) == simulated
    longest = max((due - created for created, due in random_pairs), default=0)
    assert levels <= shape.levels(max(longest, 0))


@pytest.mark.parametrize(("due", "expected"), [(19, 0), (20, 0), (21, 1), (350, 1), (400, 0), (401, 1), (450, 2)])
def test_the_cascades_of_the_worked_example(due: int, expected: int) -> None:
    assert count_cascades(0, due, WheelShape(1, 20)) == expected


@pytest.mark.parametrize(
    ("shape", "longest", "levels"),
    [(WheelShape(1, 20), 18, 1), (WheelShape(1, 20), 379, 2), (WheelShape(1, 512), 300_000, 3)],
)
def test_the_levels_and_buckets_of_a_delay(shape: WheelShape, longest: int, levels: int) -> None:
    assert shape.levels(longest) == levels
    assert shape.buckets(longest) == levels * (shape.wheel_size - 1)


SHAPES = [WheelShape(tick, size) for tick in (1, 7, 1_000) for size in (2, 20, 64)]


def pairs() -> list[tuple[int, int]]:
    """Timers before 1970, already due, due in the tick of their creation, near and far."""
    rng = random.Random(3)
    created = [rng.randrange(-5_000, 10**12) for _ in range(200)]
    return [(at, at + int(10 ** rng.uniform(0, 9)) - 3) for at in created] + [(-5_000, -4_999), (5, 5), (0, 450)]


def test_spark_computes_the_closed_form(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pairs(), "created_ms long, due_ms long")
    [row] = tune.total_costs(frame, SHAPES, tune.longest_delay_ms(frame)).collect()
    assert row.n == len(pairs())
    for shape in SHAPES:
        expected = cost_model.compute_cost(pairs(), shape)
        found = row[f"placed_{shape.tick_ms}"], row[f"cascades_{shape.tick_ms}_{shape.wheel_size}"]
        assert (*found, row[f"rounding_{shape.tick_ms}"]) == (expected.placed, expected.cascades, expected.rounding_ms)


def test_bursts_are_counted_by_the_tick(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0, due) for due in (-1, 0, 1, 9, 10, 11, 11, 40)], "created_ms long, due_ms long")
    found = sorted(tuple(row) for row in tune.bursts(frame, [1, 10]).collect())
    assert found == [(1, 1, 6), (1, 2, 1), (10, 1, 1), (10, 2, 2), (10, 3, 1)]


def test_a_task_enters_the_wheel_one_window_before_it_is_due(spark: SparkSession) -> None:
    at = datetime(2027, 1, 15, 8, tzinfo=UTC)
    rows = [(at, at + timedelta(hours=1)), (at, at + timedelta(seconds=1)), (None, at), (at, None)]
    found, rejected = tune.pairs(spark.createDataFrame(rows, "created timestamp, eta timestamp"), 300_000)
    assert sorted(row.due_ms - row.created_ms for row in found.collect()) == [1_000, 300_000]
    assert sorted(row.reason for row in rejected.collect()) == ["no creation time", "no eta"]


def test_a_difference_from_the_wheel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune.compare_with_wheel(pairs(), SHAPES) == len(SHAPES) * len(pairs())
    monkeypatch.setattr(cost_model, "count_cascades", lambda created, due, shape: 0)
    with pytest.raises(WheelError, match=r"the closed form gives .* the wheel"):
        tune.compare_with_wheel(pairs(), SHAPES)


def row(tick_ms: int, wheel_size: int, cascades: float, rounding_ms: float) -> dict[str, Any]:
    shape = {"tick_ms": tick_ms, "wheel_size": wheel_size, "buckets": 3 * wheel_size}
    return {**shape, "cascades_a_task": cascades, "rounding_ms": rounding_ms}


def test_the_coarsest_permitted_tick_and_the_smallest_good_size_are_recommended() -> None:
    rows = [row(1, 16, 4.5, 0), row(10, 64, 2.4, 5), row(10, 256, 1.8, 5), row(10, 512, 1.7, 5), row(100, 512, 1, 50)]
    assert tune.recommend(rows, 10) is rows[2]
    assert tune.recommend(rows, 100) is rows[4]
    assert tune.recommend(rows[1:], 0) is rows[2]
