"""The session of the jobs."""

from __future__ import annotations

from pyspark.sql import SparkSession

from celery_wheel.pipeline.session import ALWAYS, session


def test_the_running_session_is_returned_with_the_settings_of_the_jobs(spark: SparkSession) -> None:
    assert session() is spark
    assert {key: spark.conf.get(key) for key in ALWAYS} == ALWAYS
    assert spark.range(5).count() == 5
