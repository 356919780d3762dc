"""A Spark query of the project's own: whether the pending tasks have their expected instants."""

from pathlib import Path

from pyspark.sql import functions as f

from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read


def count_misplaced(store: str, expected: Path, task: str) -> int:
    """Return the number of rows of ``expected`` (task_id, eta_ms) that are not pending, or at another instant."""
    spark = session()
    pending = read(spark, "pending", store, task=task, schema="task_id string, eta timestamp")
    both = spark.read.parquet(str(expected)).join(pending, "task_id", "left")
    return both.where(~f.col("eta_ms").eqNullSafe(f.unix_millis("eta"))).count()
