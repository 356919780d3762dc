"""Whether what waits in the store waits for the instants that were asked for: a question of one's own to Spark."""

from pathlib import Path

from pyspark.sql import functions as f

from celery_wheel.pipeline.session import session
from celery_wheel.pipeline.tables import read


def elsewhere(store: str, asked: Path, task: str) -> int:
    """How many of ``asked`` (task_id, eta_ms) do not wait in the store, or for another instant."""
    spark = session()
    pending = read(spark, "pending", store, task=task, schema="task_id string, eta timestamp")
    both = spark.read.parquet(str(asked)).join(pending, "task_id", "left")
    return both.where(~f.col("eta_ms").eqNullSafe(f.unix_millis("eta"))).count()
