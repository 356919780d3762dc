"""Where a job's tables come from: a store, Parquet that another job wrote, or logs in Parquet or JSON lines.

::

    --store URL     pending and history of a store, by the data source; else environment CELERY_WHEEL_STORE
    --input PATH    the same columns as Parquet: what ``archive`` and ``tail`` write, history by day=YYYY-MM-DD

    log(spark, path, wanted)   a log: Parquet, or JSON lines where the name ends in .jsonl, .json, .ndjson (or with .gz)

In logs an instant may be a timestamp, a text in ISO 8601 (UTC if it names no zone), or ``<name>_ms``: milliseconds.

``sound`` parts rows that a job can use from those that it cannot, which keep all they have and a reason: nothing that
was read is dropped unseen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, DataType, LongType, NumericType, StringType, TimestampType

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.pipeline.source.options import ENVIRONMENT
from celery_wheel.pipeline.tables import read

BROKEN = "_broken"
JSON = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
WANTED = {"text": StringType(), "instant": TimestampType(), "flag": BooleanType(), "number": LongType()}


def table(spark: SparkSession, given: Mapping[str, Any], name: str, schema: str, **options: Any) -> DataFrame:
    """``pending`` or ``history``, with the columns of ``schema`` ("task string, eta timestamp")."""
    url, path = given.get("store"), given.get("input")
    if url and path:
        raise SettingError("--store and --input exclude each other; give the one that this run is to read")
    if path:
        return _columns(parquet(spark, path), schema, path)
    if not url and not os.environ.get(ENVIRONMENT):
        raise SettingError(f"--store or --input must say what to read; or set the environment variable {ENVIRONMENT}")
    # Spark keeps the conditions that went to a source with the table they were asked of: whoever uses that table again,
    # in another query or beside it in the same one, gets the rows of those conditions (seen with 4.3.0). Jobs do that.
    return read(spark, name, url, schema=schema, pushdown=False, **options)


def parquet(spark: SparkSession, path: str) -> DataFrame:
    try:
        found = spark.read.parquet(path)
        found.schema  # noqa: B018 - over Spark Connect it is looked at only now
    except PySparkException as error:
        if "TIMESTAMP(NANOS" not in str(error):
            raise
        raise FileUnusable(
            f"{path} has instants in nanoseconds, which Spark does not read; write it with microseconds "
            "(pandas: to_parquet(…, coerce_timestamps='us', allow_truncated_timestamps=True))"
        ) from error
    return found


def _columns(frame: DataFrame, schema: str, path: str) -> DataFrame:
    wanted = [part.split() for part in schema.split(",")]
    if missing := [name for name, _ in wanted if name not in frame.columns]:
        raise FileUnusable(f"{path} must have the columns {schema}, and has no {', '.join(missing)}")
    return frame.select(*(f.col(name).cast(kind).alias(name) for name, kind in wanted))


def span(frame: DataFrame, column: str, given: Mapping[str, Any]) -> DataFrame:
    """Only what lies in --from … --to."""
    if given.get("from_ms") is not None:
        frame = frame.where(f.col(column) >= f.timestamp_millis(f.lit(given["from_ms"])))
    if given.get("to_ms") is not None:
        frame = frame.where(f.col(column) < f.timestamp_millis(f.lit(given["to_ms"])))
    return frame


def sound(frame: DataFrame, reasons: Mapping[str, Column]) -> tuple[DataFrame, DataFrame]:
    """(what none of the reasons is true of, the rest with the first that is)."""
    why = f.coalesce(*(f.when(wrong, f.lit(reason)) for reason, wrong in reasons.items()))
    return frame.where(why.isNull()), frame.withColumn("reason", why).where(f.col("reason").isNotNull())


def log(spark: SparkSession, path: str, wanted: Mapping[str, str]) -> DataFrame:
    """A log with the columns of ``wanted``, name to kind; what it has not is null. Unreadable lines are in BROKEN."""
    if path.endswith(JSON):
        # Said, so that no pass over the log is needed to find it; an instant by both the names it may have.
        fields = [f"{name} string" for name in wanted]
        fields += [f"{name}_ms long" for name, kind in wanted.items() if kind == "instant"]
        schema = ", ".join([*fields, f"{BROKEN} string"])
        found = spark.read.schema(schema).option("columnNameOfCorruptRecord", BROKEN).json(path)
    else:
        found = parquet(spark, path).withColumn(BROKEN, f.lit(None).cast("string"))
    if not {*wanted} & {name.removesuffix("_ms") for name in found.columns}:
        raise FileUnusable(f"{path} must have columns of {', '.join(wanted)}, and has {', '.join(found.columns)}")
    return found.select(*(_one(found, name, kind).alias(name) for name, kind in wanted.items()), BROKEN)


def _one(found: DataFrame, name: str, kind: str) -> Column:
    types: dict[str, DataType] = {field.name: field.dataType for field in found.schema.fields}
    choices = []
    if name in types:
        column = f.col(name)
        if kind == "instant" and isinstance(types[name], NumericType):
            raise FileUnusable(f"the column {name} must be an instant; call it {name}_ms where it is milliseconds")
        # try_: what cannot be read is null here, and a reason later, instead of the end of the job.
        choices.append(column.try_cast(WANTED[kind]))
    if kind == "instant" and f"{name}_ms" in types:
        choices.append(f.timestamp_millis(f.col(f"{name}_ms").try_cast("long")))
    return f.coalesce(*choices) if choices else f.lit(None).cast(WANTED[kind])
