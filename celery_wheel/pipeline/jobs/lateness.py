"""``lateness``: dispatch minus eta, by task, queue and hour, with missed objectives.

::

    hours-….parquet/   task, queue, hour (UTC, of the dispatch), n, p50_ms, p90_ms, p99_ms, max_ms,
                       objective_ms (null: none), over (tasks later than it), missed (more than 1 % of n), sketch

An objective is ``NAME=LENGTH``: NAME is a queue, a task, or ``*`` for all others; a queue takes precedence over a task.
An hour meets it where at least 99 of 100 tasks were dispatched within it: counted, not estimated. The percentiles come
from the KLL sketch (k = 1000) of the row: the rank of a p99 is off by at most about 0.3 % of n. ``merge_hours`` merges
sketches to a day, a week, a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress, describe_rejects
from celery_wheel.pipeline.output import OutputFolder, first_rows
from celery_wheel.values.format import format_duration

NAME = "lateness"
OPTIONS = (
    *inputs.history_options,
    inputs.named_option(
        "--objective",
        "objectives",
        inputs.parse_objectives,
        "NAME=LENGTH",
        "Lateness that 99 of 100 tasks of a queue, a task, or * (all others) keep: emails=500ms.",
    ),
)

COLUMNS = "task string, queue string, dispatched timestamp, lateness_ms long, outcome string"
SKETCH_K = 1_000
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
#: The most columns of the heat map, and lines: those with the most tasks. A column may combine several hours.
DRAWN_COLUMNS, DRAWN_LINES = 200, 40


def usable(history: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return (dispatched rows, rejected rows with a reason); other outcomes have no lateness and are left out."""
    dispatched = history.where("outcome = 'dispatched'")
    reasons = {
        "no task": f.col("task").isNull(),
        "no dispatch time": f.col("dispatched").isNull(),
        "no lateness": f.col("lateness_ms").isNull(),
    }
    return inputs.split_usable(dispatched, reasons)


def hours(dispatched: DataFrame, limits: Mapping[str, int] | None = None) -> DataFrame:
    """Return a row for each task, queue and hour; ``limits`` are the objectives in milliseconds, by name."""
    groups = (
        dispatched.withColumn("hour", f.date_trunc("hour", "dispatched"))
        .withColumn("objective_ms", objective_column(limits or {}))
        .groupBy("task", "queue", "hour")
        .agg(
            f.count("*").alias("n"),
            f.max("lateness_ms").alias("max_ms"),
            f.first("objective_ms").alias("objective_ms"),
            f.count_if(f.col("lateness_ms") > f.col("objective_ms")).alias("over"),
            f.kll_sketch_agg_bigint("lateness_ms", SKETCH_K).alias("sketch"),
        )
    )
    return _with_percentiles(groups, "task", "queue", "hour")


def merge_hours(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    """Merge rows of ``hours`` by columns: ["queue"], or ["task", "day"] with a column that you added."""
    groups = hours.groupBy(*by).agg(
        f.sum("n").alias("n"),
        f.max("max_ms").alias("max_ms"),
        f.first("objective_ms").alias("objective_ms"),
        f.sum("over").alias("over"),
        f.kll_merge_agg_bigint("sketch", SKETCH_K).alias("sketch"),
    )
    return _with_percentiles(groups, *by)


def objective_column(limits: Mapping[str, int]) -> Column:
    """Return the objective of a row: that of its queue, else of its task, else of all others, else null."""
    named = [f.when(f.col(column) == name, ms) for column in ("queue", "task") for name, ms in limits.items()]
    return f.coalesce(*named, f.lit(limits.get("*"))).cast("long")


def _with_percentiles(groups: DataFrame, *by: str) -> DataFrame:
    ranks = f.array(*map(f.lit, PERCENTILES.values()))
    values = groups.withColumn("values", f.kll_sketch_get_quantile_bigint("sketch", ranks))
    percentiles = [f.col("values")[at].alias(name) for at, name in enumerate(PERCENTILES)]
    missed = f.coalesce(f.col("over") * 100 > f.col("n"), f.lit(False)).alias("missed")
    return values.select(*by, "n", *percentiles, "max_ms", "objective_ms", "over", missed, "sketch")


check = inputs.check_table


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    history = inputs.read_table(spark, options, "history", COLUMNS)
    dispatched, rejected = usable(inputs.within_span(history, "dispatched", options))
    progress("computing percentiles of every task, queue and hour")
    written = output.table("hours", hours(dispatched, options["objectives"]).orderBy("hour", "queue", "task"))
    written = written.drop("sketch")
    progress("counting rejected rows")
    rejects = output.rejects(rejected)
    progress("drawing")
    picture = output.picture(lambda plot: plot.lateness(_drawn(written)))
    facts = {**_facts(written), "rejects": rejects, "picture": picture}
    return output.finish(JobSummary(NAME, facts, _words(facts)))


def _facts(written: DataFrame) -> dict[str, Any]:
    [totals] = written.agg(
        f.coalesce(f.sum("n"), f.lit(0)).alias("tasks"),
        f.count("*").alias("hours"),
        f.max("max_ms").alias("latest_ms"),
        f.count_if("missed").alias("missed"),
        f.count("objective_ms").alias("judged"),
    ).collect()
    worst = written.where("missed") if totals["missed"] else written
    rows = first_rows(worst.orderBy(f.desc("p99_ms"), "hour", "queue", "task"), 5)
    return {**totals.asDict(), "worst": [{**row, "hour": row["hour"].isoformat()} for row in rows]}


def _drawn(written: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the picture: of the tasks and queues with the most tasks, each column's worst p99."""
    hour_s = f.unix_timestamp("hour")
    [span] = first_rows(written.agg(f.min(hour_s).alias("first"), f.max(hour_s).alias("last")), 1)
    width_s = 3_600 * max(1, -(-((span["last"] or 0) - (span["first"] or 0) + 3_600) // 3_600 // DRAWN_COLUMNS))
    first_s = f.lit(span["first"] or 0)
    column = f.timestamp_seconds(hour_s - f.pmod(hour_s - first_s, f.lit(width_s))).alias("hour")
    largest = written.groupBy("task", "queue").agg(f.sum("n").alias("total")).orderBy(f.desc("total"), "task", "queue")
    largest = largest.limit(DRAWN_LINES).select(f.col("task").alias("drawn"), f.col("queue").alias("drawn_queue"))
    same = f.col("task").eqNullSafe(f.col("drawn")) & f.col("queue").eqNullSafe(f.col("drawn_queue"))
    drawn = written.join(f.broadcast(largest), same).groupBy("task", "queue", column)
    points = drawn.agg(f.max("p99_ms").alias("p99_ms"), f.bool_or("missed").alias("missed"))
    return first_rows(points, DRAWN_LINES * (DRAWN_COLUMNS + 1))


def _words(facts: Mapping[str, Any]) -> list[str]:
    if not facts["tasks"]:
        return ["no task was dispatched in this time"]
    words = [
        f"{facts['tasks']:,} tasks were dispatched, the latest {format_duration(facts['latest_ms'])} after its eta"
    ]
    if facts["judged"]:
        words.append(f"{facts['missed']:,} of {facts['judged']:,} task/queue/hours missed their objective")
        words += [
            f"  {row['hour'][:13]}h {row['task']} on {row['queue']}: {row['over']:,} of {row['n']:,} later than "
            f"{format_duration(row['objective_ms'])}, p99 {format_duration(row['p99_ms'])}"
            for row in facts["worst"]
            if row["missed"]
        ]
    return words + describe_rejects(facts["rejects"])
