"""``reconcile``: the auditor. Compares scheduled, dispatched and executed tasks; no finding is the proof that all ran.

::

    findings-….parquet/   task_id, finding, eta, started, dispatches, messages; docs/pipeline-jobs.md has the kinds

    scheduled   task_id [eta] [cancelled] [in_doubt: its sending failed with an unknown result] [retries] [queue]
    dispatched  task_id [retries]: a line for each dispatch. Or --store / --input: the wheel's own history and pending
    executed    task_id started [wheel_redelivered: the header was set] [redelivered: by the broker, to another worker]
                [delivery: identifies the message] [eta] [retries] [queue]

A task is expected to run if it was scheduled, is not in doubt, cancelled or pending, and has no other outcome (expired,
rejected). A message that the broker delivers again is redelivered, and no finding. Without ``delivery`` each run that
is not redelivered counts as a message. If an id was scheduled twice, the later eta counts.

Each retry is one more message with the id of its task. ``retries`` (Celery's ``request.retries``) in the log of
executed tasks identifies them. Without it, a retry and a task that was published twice look the same. Early and late
apply to the first run. A task that ran is lost, too, where more of its messages are known than came.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.console import parameters
from celery_wheel.errors import SettingError
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress
from celery_wheel.pipeline.output import OutputFolder, first_rows
from celery_wheel.pipeline.source.options import ENVIRONMENT
from celery_wheel.values.format import format_duration

NAME = "reconcile"

KINDS = (
    *("lost", "lost_by_worker", "duplicated", "repeated", "unproven", "dispatched_twice"),
    *("early", "late", "wrong_queue", "ran_though_cancelled", "unknown"),
)
REJECTED = "rejected"

OPTIONS = (
    click.option("--scheduled", metavar="PATH", help="Log of scheduled tasks; default: the store's history."),
    click.option("--dispatched", metavar="PATH", help="Log of dispatched tasks."),
    click.option("--executed", metavar="PATH", required=True, help="Log of executed tasks."),
    inputs.store_option,
    inputs.input_option,
    inputs.output_option,
    parameters.length("--late", help="Largest lateness that is no finding."),
    inputs.duration_option("--clock", "2ms", "Largest difference of the clocks."),
    click.option("--allow", multiple=True, type=click.Choice([*KINDS, REJECTED]), help="Finding that does not fail."),
)

DISPATCHED = {"task_id": "text", "retries": "number"}
_LOGGED = {**DISPATCHED, "eta": "instant", "queue": "text"}
SCHEDULED = {**_LOGGED, "cancelled": "flag", "in_doubt": "flag"}
EXECUTED = {**_LOGGED, "started": "instant", "wheel_redelivered": "flag", "redelivered": "flag", "delivery": "text"}
HISTORY = "id long, task_id string, queue string, eta timestamp, outcome string"
PENDING = "pending"


def audit(
    scheduled: DataFrame, executed: DataFrame, dispatched: DataFrame | None = None, excused: DataFrame | None = None
) -> DataFrame:
    """Return a row for each task, joined from the three logs; ``excused`` ids are pending or have a final outcome.

    ``retries`` and ``queue`` may be absent. The wheel's own history has ``id``, which identifies the message.
    """
    tasks = _expectations(scheduled).join(_runs(executed), "task_id", "full")
    if dispatched is not None:
        tasks = tasks.join(_dispatches(dispatched), "task_id", "full")
    else:
        null = f.lit(None).cast("long")
        ran = f.coalesce("attempts", "arrivals")
        tasks = tasks.withColumns({"dispatches": null, "sent": null, "sent_retries": null, "sent_messages": ran})
    if excused is not None:
        tasks = tasks.join(excused.select("task_id").distinct().withColumn("excused", f.lit(True)), "task_id", "left")
    else:
        tasks = tasks.withColumn("excused", f.lit(False))
    flags = ("scheduled", "cancelled", "in_doubt", "excused")
    return tasks.withColumns(
        {
            **{name: f.coalesce(name, f.lit(False)) for name in flags},
            "ran": f.col("started").isNotNull(),
            "arrived": f.col("started" if dispatched is None else "dispatches").isNotNull(),
            "eta": f.coalesce("scheduled_eta", "logged_eta"),
        }
    )


def findings(audited: DataFrame, late_ms: int | None = None, clock_ms: int = 2) -> DataFrame:
    """Return (task_id, finding, eta, started, dispatches, messages): a row for each task and kind."""
    expected = f.col("scheduled") & ~f.col("cancelled") & ~f.col("in_doubt") & ~f.col("excused")
    # An attempt of which the log has the redelivery alone counts no message, and permits none.
    permitted = f.when(f.col("attempts").isNull(), 1).otherwise(f.col("own_attempts"))
    several = f.coalesce(f.col("messages") > permitted, f.lit(False))
    marked = f.col("marks") >= f.col("messages") - permitted
    unproven = f.col("attempts").isNull() & f.coalesce(f.col("messages") <= f.col("sent"), f.lit(False))
    # One message of a task that ran. A comparison with an unknown number, which is null, finds nothing.
    unsent = f.col("scheduled_retries") > f.col("sent_messages")
    absent = (f.col("sent_retries") > f.col("attempts")) | (f.col("sent_messages") > f.col("arrivals"))
    conditions: dict[str, Column] = {
        "lost": expected & (~f.col("arrived") | unsent),
        "lost_by_worker": expected & f.col("arrived") & (~f.col("ran") | absent),
        "duplicated": several & ~unproven & ~marked,
        "repeated": several & ~unproven & marked,
        "unproven": several & unproven,
        "dispatched_twice": f.col("dispatches") > f.col("sent"),
        "early": lateness() < -clock_ms,
        "late": f.lit(False) if late_ms is None else lateness() > late_ms,
        "wrong_queue": (f.size("queues") > 0) & (f.size(f.array_except("ran_from", "queues")) > 0),
        "ran_though_cancelled": f.col("cancelled") & f.col("ran"),
        "unknown": f.col("ran") & ~f.col("scheduled"),
    }
    kinds = f.array_compact(f.array(*(f.when(conditions[kind], f.lit(kind)) for kind in KINDS)))
    columns = ("eta", "started", "dispatches", "messages")
    return audited.select("task_id", f.explode(kinds).alias("finding"), *columns)


def lateness() -> Column:
    """Return the first run of a row of ``audit`` minus its eta, in milliseconds."""
    return f.unix_millis("started") - f.unix_millis("eta")


def _expectations(scheduled: DataFrame) -> DataFrame:
    certain = f.when(~f.coalesce("in_doubt", f.lit(False)), _optional(scheduled, "retries"))
    return scheduled.groupBy("task_id").agg(
        f.lit(True).alias("scheduled"),
        f.max_by("eta", f.struct(-f.coalesce(_optional(scheduled, "retries"), f.lit(0)), "eta")).alias("scheduled_eta"),
        f.coalesce(f.bool_or("cancelled"), f.lit(False)).alias("cancelled"),
        # A task that was sent at least once with a known result is not in doubt.
        f.bool_and(f.coalesce("in_doubt", f.lit(False))).alias("in_doubt"),
        f.when(f.count(certain) > 0, _distinct(f.coalesce(certain, f.lit(0)))).alias("scheduled_retries"),
        f.collect_set(_optional(scheduled, "queue", "string")).alias("queues"),
    )


def _optional(frame: DataFrame, name: str, kind: str = "long") -> Column:
    return f.col(name) if name in frame.columns else f.lit(None).cast(kind)


def _distinct(column: Column) -> Column:
    """Count the values within a task, which are few: Spark expands all rows for several distinct counts."""
    return f.size(f.collect_set(column))


def _dispatches(dispatched: DataFrame) -> DataFrame:
    """Return a row for each task; ``sent_messages`` and ``sent_retries`` are null where the log does not tell them."""
    ids, retries = _optional(dispatched, "id"), _optional(dispatched, "retries")
    sent = _distinct(f.coalesce(ids, retries, f.lit(0)))
    return dispatched.groupBy("task_id").agg(
        f.count("*").alias("dispatches"),
        sent.alias("sent"),
        f.when((f.count(ids) == 0) & (f.count(retries) > 0), sent).alias("sent_retries"),
        f.when(f.count(f.coalesce(ids, retries)) > 0, sent).alias("sent_messages"),
    )


def _runs(executed: DataFrame) -> DataFrame:
    """Return a row for each task that ran: its first run, its number of messages, and how many of them are marked.

    ``arrivals`` is the most messages that the runs may be of, with those of which the log has the redelivery alone.
    """
    own = ~f.coalesce("redelivered", f.lit(False))
    by_message = (
        executed.withColumn("own", own)
        .withColumn("marked", f.coalesce("wheel_redelivered", f.lit(False)))
        .withColumn("retries", _optional(executed, "retries"))
        .groupBy("task_id", "retries", "delivery")
        .agg(
            f.min("started").alias("started"),
            f.min("eta").alias("logged_eta"),
            f.count("*").alias("lines"),
            f.count_if("own").alias("runs"),
            f.count_if(f.col("own") & f.col("marked")).alias("marks"),
            f.collect_set(_optional(executed, "queue", "string")).alias("ran_from"),
        )
    )
    # Without ``delivery`` the runs of several messages are in one row, and each counts.
    several = f.col("delivery").isNull()
    attempt = f.coalesce("retries", f.lit(0))
    tasks = by_message.groupBy("task_id").agg(
        f.min("started").alias("started"),
        f.min("logged_eta").alias("logged_eta"),
        f.sum(f.when(several, f.col("runs")).otherwise(f.least("runs", f.lit(1)))).alias("messages"),
        f.sum(f.when(several, f.col("marks")).otherwise(f.least("marks", f.lit(1)))).alias("marks"),
        f.when(f.count("retries") > 0, _distinct(attempt)).alias("attempts"),
        _distinct(f.when(f.col("runs") > 0, attempt)).alias("own_attempts"),
        f.sum(f.when(several, f.col("lines")).otherwise(1)).alias("most"),
        f.array_distinct(f.flatten(f.collect_list("ran_from"))).alias("ran_from"),
    )
    exact = f.col("messages") + f.col("attempts") - f.col("own_attempts")
    return tasks.withColumn("arrivals", f.coalesce(exact, f.col("most"))).drop("most")


def readable(log: DataFrame, name: str, *required: str) -> tuple[DataFrame, DataFrame]:
    """Return (readable lines, the rest as (log, task_id, line, reason))."""
    reasons = {"not JSON": f.col(inputs.BROKEN).isNotNull(), "no task_id": f.col("task_id").isNull()}
    reasons |= {f"no {column}": f.col(column).isNull() for column in required}
    lines, rejected = inputs.split_usable(log, reasons)
    line = f.col(inputs.BROKEN).alias("line")
    return lines.drop(inputs.BROKEN), rejected.select(f.lit(name).alias("log"), "task_id", line, "reason")


def check(options: Options) -> None:
    has_events = _has_events(options)
    if has_events:
        inputs.check_table(options)
    if options["dispatched"] and has_events:
        raise SettingError("--dispatched excludes --store and --input: use the one that has the dispatched tasks")
    if not options["scheduled"] and not has_events:
        raise SettingError(
            f"--scheduled, --store or --input must name the scheduled tasks; without logs, {ENVIRONMENT} may"
        )


def _has_events(options: Options) -> bool:
    """Whether the history of the wheel is read; with a log, the store of the environment is not."""
    logs = options["scheduled"] or options["dispatched"]
    return bool(options["store"] or options["input"] or (os.environ.get(ENVIRONMENT) and not logs))


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    executed, rejected = readable(inputs.read_log(spark, options["executed"], EXECUTED), "executed", "started")
    scheduled, dispatched, excused, events = None, None, None, None
    if _has_events(options):
        events = _wheel_events(spark, options).persist()
        scheduled, dispatched, excused = _split_events(events)
    if options["dispatched"]:
        dispatched, more = readable(inputs.read_log(spark, options["dispatched"], DISPATCHED), "dispatched")
        rejected = rejected.unionByName(more)
    if options["scheduled"]:
        scheduled, more = readable(inputs.read_log(spark, options["scheduled"], SCHEDULED), "scheduled")
        rejected = rejected.unionByName(more)
    assert scheduled is not None  # noqa: S101 - for the type checker; see check()
    audited = audit(scheduled, executed, dispatched, excused).persist()
    try:
        progress("comparing")
        late_ms = None if options["late"] is None else round(options["late"] * 1_000)
        found = findings(audited, late_ms, round(options["clock"] * 1_000))
        written = output.table("findings", found.orderBy("task_id", "finding"))
        progress("counting unreadable lines")
        facts: dict[str, Any] = {**_totals(audited), "findings": by_kind(written), "rejects": output.rejects(rejected)}
    finally:
        for frame in filter(None, (audited, events)):
            frame.unpersist()
    facts["picture"] = output.picture(lambda plot: plot.reconcile(by_day(written)))
    return output.finish(JobSummary(NAME, facts, *_summarise(facts, options["allow"])))


def _wheel_events(spark: SparkSession, options: Options) -> DataFrame:
    events = inputs.read_table(spark, options, "history", HISTORY)
    if not options["input"]:
        pending = inputs.read_table(spark, options, "pending", HISTORY.removesuffix(", outcome string"))
        events = events.unionByName(pending.withColumn("outcome", f.lit(PENDING)))
    # A rejected message may be unreadable, and then has no task id.
    return events.where("task_id != ''")


def _split_events(events: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    # A retry is a message of its own with the id of its task: the eta of the first message counts, and a task is
    # cancelled only if all of its messages are.
    cancelled = f.bool_or(f.col("outcome") == "cancelled").alias("cancelled")
    queues = f.collect_set("queue").alias("queues")
    messages = events.groupBy("task_id", "id").agg(f.max("eta").alias("eta"), cancelled, queues)
    firsts = f.min("eta").alias("eta"), f.bool_and("cancelled").alias("cancelled")
    tasks = messages.groupBy("task_id").agg(*firsts, f.collect_list("queues").alias("queues"))
    scheduled = tasks.select("*", f.explode_outer(f.flatten("queues")).alias("queue")).drop("queues")
    scheduled = scheduled.withColumn("in_doubt", f.lit(False))
    excused = events.where(f.col("outcome").isin(PENDING, "cancelled", "expired", "rejected"))
    return scheduled, events.where("outcome = 'dispatched'").select("task_id", "id"), excused


def _totals(audited: DataFrame) -> dict[str, int | None]:
    [row] = audited.agg(
        f.count_if(f.col("scheduled") & ~f.col("in_doubt")).alias("scheduled"),
        f.count_if(f.col("dispatches").isNotNull()).alias("dispatched"),
        f.count_if("ran").alias("ran"),
        f.max(lateness()).alias("latest_ms"),
    ).collect()
    return dict(row.asDict())


def by_kind(found: DataFrame) -> dict[str, int]:
    counts = {row["finding"]: row["count"] for row in found.groupBy("finding").count().collect()}
    return {kind: counts[kind] for kind in KINDS if kind in counts}


def by_day(found: DataFrame) -> list[dict[str, Any]]:
    day = f.coalesce(f.date_format("eta", "yyyy-MM-dd"), f.lit("no eta")).alias("day")
    counts = found.groupBy(day, "finding").agg(f.count("*").alias("n"))
    return first_rows(counts.orderBy(f.desc("day"), "finding"), 1_000)


def _summarise(facts: Mapping[str, Any], allowed: tuple[str, ...]) -> tuple[list[str], int]:
    """Return (words, the number of findings that are a failure)."""
    counts = dict(facts["findings"])
    if facts["rejects"]:
        counts[REJECTED] = sum(facts["rejects"].values())
    words = [
        f"{facts['scheduled']:,} scheduled, {facts['ran']:,} ran, "
        f"latest {format_duration(facts['latest_ms'])} after its eta"
    ]
    words += [f"{kind}: {count:,}{' (allowed)' if kind in allowed else ''}" for kind, count in counts.items()]
    if not counts:
        words.append("no finding: no task was lost, duplicated, early, or ran though it was cancelled")
    return words, sum(count for kind, count in counts.items() if kind not in allowed)
