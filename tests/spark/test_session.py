from __future__ import annotations

from pyspark.sql import SparkSession

from celery_wheel.pipeline.session import ALWAYS, session


def test_the_session_is_there_with_what_jobs_need(spark: SparkSession) -> None:
    assert session() is spark
    assert {key: spark.conf.get(key) for key in ALWAYS} == ALWAYS
    assert spark.range(5).count() == 5
