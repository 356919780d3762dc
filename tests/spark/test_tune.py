from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from celery_wheel.errors import WheelError
from celery_wheel.pipeline import geometry
from celery_wheel.pipeline.geometry import Shape
from celery_wheel.pipeline.jobs import tune

SHAPES = [Shape(tick, size) for tick in (1, 7, 1_000) for size in (2, 20, 64)]


def pairs() -> list[tuple[int, int]]:
    """Before 1970, already due, due in the tick in which they were made, near and far."""
    rng = random.Random(3)
    made = [rng.randrange(-5_000, 10**12) for _ in range(200)]
    return [(at, at + int(10 ** rng.uniform(0, 9)) - 3) for at in made] + [(-5_000, -4_999), (5, 5), (0, 450)]


def test_spark_says_what_the_closed_form_says(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pairs(), "created_ms long, due_ms long")
    longest = tune.longest_ms(frame)
    [row] = tune.geometry(frame, SHAPES, longest).collect()
    assert row.n == len(pairs())
    for shape in SHAPES:
        expected = geometry.sums(pairs(), shape)
        found = row[f"placed_{shape.tick_ms}"], row[f"cascades_{shape.tick_ms}_{shape.wheel_size}"]
        assert (*found, row[f"rounding_{shape.tick_ms}"]) == (expected.placed, expected.cascades, expected.rounding_ms)


def test_bursts_are_counted_by_the_tick(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0, due) for due in (-1, 0, 1, 9, 10, 11, 11, 40)], "created_ms long, due_ms long")
    found = sorted(tuple(row) for row in tune.bursts(frame, [1, 10]).collect())
    assert found == [(1, 1, 6), (1, 2, 1), (10, 1, 1), (10, 2, 2), (10, 3, 1)]


def test_a_window_lets_tasks_into_the_wheel_so_long_before(spark: SparkSession) -> None:
    at = datetime(2027, 1, 15, 8, tzinfo=UTC)
    rows = [(at, at + timedelta(hours=1)), (at, at + timedelta(seconds=1)), (None, at), (at, None)]
    frame = spark.createDataFrame(rows, "created timestamp, eta timestamp")
    found, rejected = tune.pairs(frame, 300_000)
    assert sorted(row.due_ms - row.created_ms for row in found.collect()) == [1_000, 300_000]
    assert sorted(row.reason for row in rejected.collect()) == ["no eta", "no instant at which it was made"]


def test_a_closed_form_that_the_wheel_contradicts_recommends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune.check(pairs(), SHAPES) == len(SHAPES) * len(pairs())
    monkeypatch.setattr(geometry, "cascades", lambda created, due, shape: 0)
    with pytest.raises(WheelError, match=r"the closed form says .* the wheel"):
        tune.check(pairs(), SHAPES)


def row(tick_ms: int, wheel_size: int, cascades: float, rounding_ms: float) -> dict[str, Any]:
    shape = {"tick_ms": tick_ms, "wheel_size": wheel_size, "buckets": 3 * wheel_size}
    return {**shape, "cascades_a_task": cascades, "rounding_ms": rounding_ms}


def test_the_coarsest_tick_within_reason_and_the_smallest_size_that_is_as_good() -> None:
    rows = [row(1, 16, 4.5, 0), row(10, 64, 2.4, 5), row(10, 256, 1.8, 5), row(10, 512, 1.7, 5), row(100, 512, 1, 50)]
    assert tune.recommend(rows, 10) is rows[2]
    assert tune.recommend(rows, 100) is rows[4]
    assert tune.recommend(rows[1:], 0) is rows[2]
