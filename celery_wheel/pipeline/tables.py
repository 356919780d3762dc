"""The store's tables as DataFrames, in one call, with the settings that suit the session.

::

    pending = read(spark, "pending", url, queue="mail", dueTo="2027-01-15")
    history = read(spark, "history", url, schema="task string, lateness_ms long")
    query   = tail(spark, url, "history/", checkpoint="history.checkpoint/")  history as it comes, to Parquet
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from celery_wheel.pipeline.columns import HISTORY
from celery_wheel.pipeline.source import WheelDataSource
from celery_wheel.pipeline.source.options import ENVIRONMENT


def read(spark: SparkSession, table: str, url: str | None = None, **options: Any) -> DataFrame:
    """``pending`` or ``history`` of the store at ``url``.

    ``options`` are those of ``source.options``, and ``schema`` for fewer columns. All queries of one DataFrame see the
    moment of its first one: read anew for a later one.
    """
    given = dict(options)
    reader = _register(spark).read.format(WheelDataSource.name())
    if schema := given.pop("schema", None):
        reader = reader.schema(schema)
    return reader.options(**_texts(given, url, table)).load()


def stream(spark: SparkSession, url: str | None = None, **options: Any) -> DataFrame:
    """The history of the store at ``url`` as a stream: each row once."""
    reader = _register(spark).readStream.format(WheelDataSource.name())
    return reader.options(**_texts(options, url, HISTORY)).load()


def tail(
    spark: SparkSession,
    url: str | None,
    target: str,
    checkpoint: str,
    *,
    every: str | None = None,
    **options: Any,
) -> StreamingQuery:
    """Write the history to Parquet files in ``target``, a folder a day of ``at``: each row once, whatever is killed.

    Spark notes in ``target`` which files count: read it with Spark. Another reader sees also what attempts that were
    killed have left there.

    Args:
        checkpoint: folder in which Spark keeps how far it is; with a new one, it begins from the start.
        every: go on for good, with a micro-batch in each of these times ("10 seconds"); None: all there is, once.
    """
    by_day = stream(spark, url, **options).withColumn("day", f.to_date("at"))
    writer = by_day.writeStream.format("parquet").partitionBy("day").option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    return writer.start(target)


def _register(spark: SparkSession) -> SparkSession:
    """For where Spark does not find it by itself. Where it does, this one is the same."""
    spark.dataSource.register(WheelDataSource)
    return spark


def _texts(options: dict[str, Any], url: str | None, table: str) -> dict[str, str]:
    # The environment of this process: Spark's own may be that of another machine.
    named = {**options, "table": table, "url": url or os.environ.get(ENVIRONMENT)}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in named.items()
        if value is not None
    }
