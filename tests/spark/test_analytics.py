"""The jobs and DuckDB have the same results, over a log that DuckDB generated."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from celery_wheel.pipeline.cost_model import WheelShape
from celery_wheel.pipeline.jobs import forecast, lateness, tune
from tests.kit import agreement, duck

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
