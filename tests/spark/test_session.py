"""The session of the jobs."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from celery_wheel.pipeline.session import ALWAYS, session
from celery_wheel.pipeline.source import WheelDataSource


def test_the_running_session_is_returned_with_the_settings_of_the_jobs(spark: SparkSession) -> None:
    assert session() is spark
    assert {key: spark.conf.get(key) for key in ALWAYS} == ALWAYS
    assert spark.range(5).count() == 5


def test_the_data_source_is_registered_where_spark_has_not_found_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the Python that looks for data sources is killed: Spark never looks again."""
    monkeypatch.setattr(WheelDataSource, "name", lambda: "wheel_that_is_not_found")
    session()
    with pytest.raises(PySparkException) as caught:
        spark.read.format("wheel_that_is_not_found").load()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR", "known by this name, which only a worker refuses"
