"""``lateness``: how much later than asked tasks left, by task, queue and hour; which of them missed an objective.

::

    history ──► dispatched rows ──► hours ──► sketches are merged: a day, a week, a queue     ``merged``
                     └─ rejected: no task, no lateness, …

    hours-….parquet   task, queue, hour (UTC, of the dispatch), n, p50_ms, p90_ms, p99_ms, max_ms,
                      objective_ms (null: none), over (tasks later than it), missed (more than 1 % of n), sketch
    rejects-….parquet only where there are some: the rows with a reason
    lateness.png      heat map: p99 of task by hour, and the hours that missed
    summary.json      tasks, hours, latest_ms, missed, worst, rejects

An objective is ``NAME=LENGTH``: NAME is a queue, a task, or ``*`` for all others. A queue goes before a task of that
name. It is met in an hour where at least 99 of 100 tasks left within it: counted, not estimated.

n, max, over and missed are exact. The percentiles come from a KLL sketch (k = 1000) that lies beside them: a p99 is the
value of a task whose rank is within about 0.3 % of n, at worst. ``sketch`` is Spark's own, so merging needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs.outer import history_options, objectives
from celery_wheel.pipeline.output import Output
from celery_wheel.pipeline.summary import Summary
from celery_wheel.present import duration

NAME = "lateness"
HELP = "How late tasks left: by task, queue and hour, against objectives."
OPTIONS = (
    *history_options,
    click.option(
        "--objective",
        "objectives",
        multiple=True,
        callback=objectives,
        metavar="NAME=LENGTH",
        help="99 of 100 leave within it: of a queue, a task, or * for all others. emails=500ms",
    ),
)

COLUMNS = "task string, queue string, dispatched timestamp, lateness_ms long, outcome string"
SKETCH_K = 1_000
PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
#: Of the tasks of an hour so many hundredths may be over the objective.
ALLOWED = 1


def usable(history: DataFrame) -> tuple[DataFrame, DataFrame]:
    """(what left, what of it cannot be used: with a reason). What became something else is no matter of lateness."""
    left = history.where("outcome = 'dispatched'")
    wrong = {
        "no task": f.col("task").isNull(),
        "no instant at which it left": f.col("dispatched").isNull(),
        "no lateness": f.col("lateness_ms").isNull(),
    }
    return inputs.sound(left, wrong)


def hours(left: DataFrame, limits: Mapping[str, int] | None = None) -> DataFrame:
    """A row a task, queue and hour; ``limits`` are the objectives in milliseconds, by name."""
    objective = limit_of(limits or {})
    found = (
        left.withColumn("hour", f.date_trunc("hour", "dispatched"))
        .withColumn("objective_ms", objective)
        .groupBy("task", "queue", "hour")
        .agg(
            f.count("*").alias("n"),
            f.max("lateness_ms").alias("max_ms"),
            f.first("objective_ms").alias("objective_ms"),
            f.count_if(f.col("lateness_ms") > f.col("objective_ms")).alias("over"),
            f.kll_sketch_agg_bigint("lateness_ms", SKETCH_K).alias("sketch"),
        )
    )
    return _shown(found, "task", "queue", "hour")


def merged(hours: DataFrame, by: Sequence[str]) -> DataFrame:
    """Rows of ``hours`` taken together: ``by`` is ["queue"], or ["task", "day"] of a column that you added."""
    found = hours.groupBy(*by).agg(
        f.sum("n").alias("n"),
        f.max("max_ms").alias("max_ms"),
        f.first("objective_ms").alias("objective_ms"),
        f.sum("over").alias("over"),
        f.kll_merge_agg_bigint("sketch", SKETCH_K).alias("sketch"),
    )
    return _shown(found, *by)


def limit_of(limits: Mapping[str, int]) -> Column:
    """The objective of a row: that of its queue, else of its task, else of all others, else none."""
    found = [f.when(f.col(column) == name, ms) for column in ("queue", "task") for name, ms in limits.items()]
    return f.coalesce(*found, f.lit(limits.get("*"))).cast("long")


def _shown(found: DataFrame, *by: str) -> DataFrame:
    ranks = f.array(*map(f.lit, PERCENTILES.values()))
    values = found.withColumn("values", f.kll_sketch_get_quantile_bigint("sketch", ranks))
    percentiles = [f.col("values")[at].alias(name) for at, name in enumerate(PERCENTILES)]
    missed = f.coalesce(f.col("over") * 100 > f.col("n") * ALLOWED, f.lit(False)).alias("missed")
    return values.select(*by, "n", *percentiles, "max_ms", "objective_ms", "over", missed, "sketch")


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    output = Output(given["output"], NAME)
    history = inputs.table(spark, given, "history", COLUMNS)
    left, rejected = usable(inputs.span(history, "dispatched", given))
    tell("percentiles of every task, queue and hour")
    table = output.table("hours", hours(left, given["objectives"]).orderBy("hour", "queue", "task"))
    tell("rows that cannot be used")
    rejects = output.rejects(rejected)
    rows = table.drop_columns(["sketch"]).to_pylist()
    tell("the picture")

    def draw() -> Any:
        from celery_wheel.pipeline.plot import lateness

        return lateness(rows)

    facts = {**_facts(rows), "rejects": rejects, "picture": output.picture(draw)}
    summary = Summary(NAME, facts, _words(rows, facts))
    output.finish(summary)
    return summary


def _facts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    missed = [row for row in rows if row["missed"]]
    worst = sorted(missed or rows, key=lambda row: -row["p99_ms"])[:5]
    return {
        "tasks": sum(row["n"] for row in rows),
        "hours": len(rows),
        "latest_ms": max((row["max_ms"] for row in rows), default=None),
        "missed": len(missed),
        "judged": sum(row["objective_ms"] is not None for row in rows),
        "worst": [{**row, "hour": row["hour"].isoformat()} for row in worst],
    }


def _words(rows: list[dict[str, Any]], facts: Mapping[str, Any]) -> list[str]:
    if not rows:
        return ["nothing left in this time"]
    words = [f"{facts['tasks']:,} tasks left, the latest {duration(facts['latest_ms'])} after its time"]
    if facts["judged"]:
        words.append(f"{facts['missed']:,} of {facts['judged']:,} task/queue/hours missed their objective")
        words += [
            f"  {row['hour'][:13]}h {row['task']} on {row['queue']}: {row['over']:,} of {row['n']:,} later than "
            f"{duration(row['objective_ms'])}, p99 {duration(row['p99_ms'])}"
            for row in facts["worst"]
            if row["missed"]
        ]
    if facts["rejects"]:
        words.append(f"rejected: {', '.join(f'{count:,} {why}' for why, count in facts['rejects'].items())}")
    return words
