"""The closed form of a wheel's cost equals the wheel itself, and the costs by Spark; the recommendation follows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from celery_wheel.errors import WheelError
from celery_wheel.pipeline import cost_model
from celery_wheel.pipeline.cost_model import WheelShape, compute_cost, count_cascades, simulate_cost
from celery_wheel.pipeline.jobs import tune

YEAR_MS = 365 * 86_400_000

shapes = st.builds(WheelShape, st.integers(1, 1_500), st.sampled_from([2, 3, 7, 16, 20, 60, 64, 512]))
delays = st.one_of(st.integers(-50, 3_000), st.integers(0, YEAR_MS), st.sampled_from([0, 1, 20, 400, 8_000]))
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
    longest = tune.longest_delay_ms(frame)
    [row] = tune.total_costs(frame, SHAPES, longest).collect()
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
    frame = spark.createDataFrame(rows, "created timestamp, eta timestamp")
    found, rejected = tune.pairs(frame, 300_000)
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
