"""The options that jobs share, and what a job reads: tables of a store, Parquet that another job wrote, and logs.

A log is Parquet, or JSON lines where the name ends in .jsonl, .json, .ndjson (or with .gz). In it an instant may be a
timestamp, a text in ISO 8601 (UTC if it names no zone), or ``<name>_ms``: milliseconds. ``split_usable`` separates the
rows that a job can use from the rest, which get a reason: no row is dropped silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, DataType, LongType, NumericType, StringType, TimestampType

from celery_wheel.console import parameters
from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.pipeline.archive import read_archive
from celery_wheel.pipeline.source.options import ENVIRONMENT, store_url
from celery_wheel.pipeline.tables import read
from celery_wheel.values.text import whole_number

BROKEN = "_broken"
JSON = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
LOG_TYPES = {"text": StringType(), "instant": TimestampType(), "flag": BooleanType(), "number": LongType()}


def check_table(options: Mapping[str, Any]) -> None:
    """Check the options of ``read_table``. Raises SettingError."""
    url, path = options.get("store"), options.get("input")
    if url and path:
        raise SettingError("--store and --input exclude each other; use the one that this run should read")
    if not url and not path and not os.environ.get(ENVIRONMENT):
        raise SettingError(
            f"--store or --input must name the data to read; or set the environment variable {ENVIRONMENT}"
        )


def read_table(spark: SparkSession, options: Mapping[str, Any], name: str, schema: str, **source: Any) -> DataFrame:
    """Return ``pending`` or ``history``, with the columns of ``schema`` ("task string, eta timestamp")."""
    url, path = options.get("store"), options.get("input")
    if path:
        archive, columns = read_archive(spark, path), [part.split() for part in schema.split(",")]
        frame = read_parquet(spark, path) if archive is None else archive
        if missing := [column for column, _ in columns if column not in frame.columns]:
            raise FileUnusable(f"{path} must have the columns {schema}, and has no {', '.join(missing)}")
        return frame.select(*(f.col(column).cast(type_).alias(column) for column, type_ in columns))
    return read(spark, name, url, schema=schema, **source)


def read_parquet(spark: SparkSession, path: str) -> DataFrame:
    try:
        frame = spark.read.parquet(path)
        frame.schema  # noqa: B018 - Spark Connect reads the path only now
    except PySparkException as error:
        if "TIMESTAMP(NANOS" not in str(error):
            raise
        raise FileUnusable(
            f"{path} has instants in nanoseconds, which Spark does not read; write it with microseconds "
            "(pandas: to_parquet(…, coerce_timestamps='us', allow_truncated_timestamps=True))"
        ) from error
    return frame


def within_span(frame: DataFrame, column: str, options: Mapping[str, Any]) -> DataFrame:
    from_, to = (f.timestamp_millis(f.lit(options[name])) for name in ("from_ms", "to_ms"))
    frame = frame if options["from_ms"] is None else frame.where(f.col(column) >= from_)
    return frame if options["to_ms"] is None else frame.where(f.col(column) < to)


def split_usable(frame: DataFrame, reasons: Mapping[str, Column]) -> tuple[DataFrame, DataFrame]:
    """Return (usable rows, rejected rows with their ``reason``: the first of ``reasons`` whose condition holds)."""
    reason = f.coalesce(*(f.when(condition, f.lit(text)) for text, condition in reasons.items()))
    return frame.where(reason.isNull()), frame.withColumn("reason", reason).where(f.col("reason").isNotNull())


def read_log(spark: SparkSession, path: str, columns: Mapping[str, str]) -> DataFrame:
    """Return a log with ``columns``, name to kind; a missing one is null. BROKEN holds the unreadable lines."""
    if path.endswith(JSON):
        # With a schema Spark needs no extra pass over the log; an instant is looked up by both of its names.
        fields = [f"{name} string" for name in columns]
        fields += [f"{name}_ms long" for name, kind in columns.items() if kind == "instant"]
        schema = ", ".join([*fields, f"{BROKEN} string"])
        frame = spark.read.schema(schema).option("columnNameOfCorruptRecord", BROKEN).json(path)
    else:
        frame = read_parquet(spark, path).withColumn(BROKEN, f.lit(None).cast("string"))
    if not {*columns} & {name.removesuffix("_ms") for name in frame.columns}:
        raise FileUnusable(f"{path} must have columns of {', '.join(columns)}, and has {', '.join(frame.columns)}")
    return frame.select(*(_log_column(frame, name, kind).alias(name) for name, kind in columns.items()), BROKEN)


def _log_column(frame: DataFrame, name: str, kind: str) -> Column:
    types: dict[str, DataType] = {field.name: field.dataType for field in frame.schema.fields}
    choices = []
    if name in types:
        if kind == "instant" and isinstance(types[name], NumericType):
            raise FileUnusable(f"the column {name} must be an instant; call it {name}_ms where it is milliseconds")
        # try_cast: an unreadable value is null here, and a rejected row later, instead of the end of the job.
        choices.append(f.col(name).try_cast(LOG_TYPES[kind]))
    if kind == "instant" and f"{name}_ms" in types:
        choices.append(f.timestamp_millis(f.col(f"{name}_ms").try_cast("long")))
    return f.coalesce(*choices) if choices else f.lit(None).cast(LOG_TYPES[kind])


Option = Callable[[Any], Any]

store_option: Option = click.option(
    "--store", metavar="URL", help="Store, as wheel_store names it; default: environment CELERY_WHEEL_STORE."
)
input_option: Option = click.option(
    "--input", metavar="PATH", help="Archive, or Parquet with the columns of tail, to read instead of a store."
)
output_option: Option = click.option("--output", metavar="DIR", help="Folder for tables, picture and summary.json.")
archive_option: Option = click.option(
    "--archive", metavar="DIR", required=True, help="Folder of the archive, the --output of the job archive."
)
span_options: tuple[Option, ...] = (
    parameters.instant("--from", "from_ms", help="First instant: ISO 8601, Unix ms, -1h."),
    parameters.instant("--to", "to_ms", help="Instant before which the rows lie."),
)
herd_option: Option = click.option(
    "--herd", "least", type=click.IntRange(2), default=100, show_default=True, help="Least number of tasks of a herd."
)


def choice_option(name: str, choices: Sequence[str], help_text: str) -> Option:
    """Return an option with some choices; the first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help_text)


def duration_option(name: str, default: str, help_text: str) -> Option:
    """Return an option whose value is a duration; the job gets seconds."""
    return parameters.length(name, default=default, show_default=True, help=help_text)


def named_option(name: str, argument: str, parse: Callable[..., Any], metavar: str, help_text: str) -> Option:
    """Return an option that may be given several times; the job gets what ``parse`` returns of all values."""
    return click.option(name, argument, multiple=True, callback=parse, metavar=metavar, help=help_text)


history_options: tuple[Option, ...] = (store_option, input_option, output_option, *span_options)


def resolve_store(option: str | None) -> str:
    """Return the URL of ``--store``, or of this process's environment: a remote Spark has another."""
    return store_url({"url": option or ""})


def parse_objectives(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for value in values:
        name, sign, length = value.rpartition("=")
        if not sign or not name:
            raise click.BadParameter(f"must be NAME=LENGTH, like emails=500ms or *=5s, got {value!r}", ctx, param)
        if name in limits:
            raise click.BadParameter(f"must have one objective a name, got {name!r} twice", ctx, param)
        limits[name] = round(parameters.DurationParameter().convert(length, param, ctx) * 1_000)
    return limits


_RATE = re.compile(r"(?:(.+)=)?(\d+(?:\.\d+)?)/(s|m|h)").fullmatch


def parse_rates(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """Parse [QUEUE=]NUMBER/s to tasks a second by queue; ``*`` without a queue: all other queues."""
    per_second: dict[str, float] = {}
    for value in values:
        match = _RATE(value)
        if not match or float(match[2]) == 0:
            raise click.BadParameter(f"must be like 500/s, emails=100/s or reports=30/m, got {value!r}", ctx, param)
        per_second[match[1] or "*"] = float(match[2]) / {"s": 1, "m": 60, "h": 3_600}[match[3]]
    return per_second


def numbers_parser(least: int) -> Callable[[click.Context, click.Parameter, str], list[int]]:
    """Return a callback that parses 1,10,100 to whole numbers of at least ``least``."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
        numbers = {whole_number(part.strip()) for part in value.split(",")}
        found = {number for number in numbers if number is not None and number >= least}
        if found != numbers:
            raise click.BadParameter(f"must be whole numbers from {least} on, like 1,10,100, got {value!r}", ctx, param)
        return sorted(found)

    return parse
