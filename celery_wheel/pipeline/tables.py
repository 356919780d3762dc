"""The store's tables as DataFrames, in one call, with the settings that suit the session.

::

    pending = read(spark, "pending", url, queue="mail", dueTo="2027-01-15")
    query   = tail(spark, url, "history/", checkpoint="history.checkpoint/")  new history to Parquet, as a stream
    write(rows, "trials-2026-11-21", url, key="trial")                        all of the rows as tasks, or none
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from celery_wheel.pipeline.session import activate
from celery_wheel.pipeline.source import WheelDataSource
from celery_wheel.pipeline.source.options import ENVIRONMENT, check_columns
from celery_wheel.pipeline.source.statements import HISTORY
from celery_wheel.pipeline.spark_errors import unwrap_errors


def read(spark: SparkSession, table: str, url: str | None = None, **options: Any) -> DataFrame:
    """Return ``pending`` or ``history``; ``options`` of ``source.options``, and ``schema`` for fewer columns.

    All queries of one DataFrame see the moment of its first query: call ``read`` again for a later moment.
    """
    schema = options.pop("schema", None)
    reader = _register(spark).read.format(WheelDataSource.name())
    if schema:
        reader = reader.schema(schema)
    return reader.options(**_as_texts(options, url, table=table)).load()


def stream(spark: SparkSession, url: str | None = None, **options: Any) -> DataFrame:
    """Return the history of the store at ``url`` as a stream: each row once."""
    reader = _register(spark).readStream.format(WheelDataSource.name())
    return reader.options(**_as_texts(options, url, table=HISTORY)).load()


@unwrap_errors()
def write(rows: DataFrame, batch: str, url: str | None = None, **options: Any) -> None:
    """Schedule the rows as the batch of this name: all of them, or none. ``source.options`` has the ``options``.

    Each partition is sorted by due time, so that a scheduler, which accepts the rows in this order, adds them to a few
    pages of the store's index of due times, and not to one page each.

    Raises:
        SettingError: an option or a column is wrong; nothing was written.
        BadRow: a row cannot be scheduled; nothing of the batch is scheduled.
        StoreError: the store cannot be used, or failed; nothing of the batch is scheduled.
    """
    activate(_register(rows.sparkSession))
    check_columns(rows.schema, options.get("key"))  # else Spark would tell in its own words what it cannot sort
    in_order = rows.sortWithinPartitions("eta" if "eta" in rows.columns else "eta_ms")
    writer = in_order.write.format(WheelDataSource.name()).mode("append")
    writer.options(**_as_texts(options, url, batch=batch)).save()


def tail(
    spark: SparkSession, url: str | None, target: str, checkpoint: str, *, every: str | None = None, **options: Any
) -> StreamingQuery:
    """Write the history to Parquet files in ``target``, in folders by day of ``at``: each row once, also after a kill.

    Args:
        checkpoint: folder in which Spark keeps its progress; a new one begins from the start.
        every: run until stopped, with a micro-batch in each such time ("10 seconds"); None: write the present history.
    """
    by_day = stream(spark, url, **options).withColumn("day", f.to_date("at"))
    writer = by_day.writeStream.format("parquet").partitionBy("day").option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    return writer.start(target)


def _register(spark: SparkSession) -> SparkSession:
    """Register the data source, for installations where Spark does not discover it; elsewhere it is the same class."""
    spark.dataSource.register(WheelDataSource)
    return spark


def _as_texts(options: dict[str, Any], url: str | None, **named: str) -> dict[str, str]:
    # The environment is read in this process: Spark's own may be that of another machine.
    values = {**options, **named, "url": url or os.environ.get(ENVIRONMENT)}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }
