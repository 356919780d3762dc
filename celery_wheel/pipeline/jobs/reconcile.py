"""``reconcile``: the auditor. Compares scheduled, dispatched and executed tasks; no finding is the proof that all ran.

::

    scheduled ─┐                        lost                    expected, and never dispatched (or never ran)
    dispatched ┼─► findings, by task    lost_by_worker          dispatched, and never ran
    executed  ─┘   and kind             duplicated              ran as several messages, and no second one is marked
                                        repeated                ran as several messages, and all but one are marked
                                        unproven                ran as several messages, which may be retries: no log
                                                                has ``retries``, and as many were dispatched
                                        dispatched_twice        occurs twice in the log of dispatches
                                        early, late             before its eta; more than --late after it
                                        ran_though_cancelled    its cancel was answered ``done``
                                        unknown                 ran without being scheduled

    findings-….parquet/ task_id, finding, eta, started, dispatches, messages
    rejects-….parquet/  the unreadable lines with log and reason, if there are any
    reconcile.png        findings by day
    summary.json         scheduled, dispatched, ran, findings {kind: n}, latest_ms, rejects

Columns of the logs, as JSON lines or Parquet; those in brackets are optional (``inputs`` has the forms of an instant):

    scheduled   task_id [eta] [cancelled] [in_doubt: its sending failed with an unknown result] [retries]
    dispatched  task_id [retries]: a line for each dispatch. Or --store / --input: the wheel's own history and pending
    executed    task_id started [wheel_redelivered: the header was set] [redelivered: by the broker, to another worker]
                [delivery: identifies the message] [eta] [retries]

A task is expected to run if it was scheduled, is not in doubt, cancelled or pending, and has no other outcome (expired,
rejected, parked). The broker delivers a message again after its worker died: that is redelivered, and no finding.
Without ``delivery`` each run that is not redelivered counts as a message. If an id was scheduled twice, the
later eta counts.

A retried task keeps its id, and each retry is one more message. ``retries`` (Celery's ``request.retries``) in the log
of executed tasks identifies them. Without it, a retry and a task that was published twice look the same: both are
``unproven`` where they ran no more often than they were dispatched. Early and late apply to the first run.

An unreadable line counts as a finding, too: without it the proof is incomplete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.console.parameters import DurationParameter
from celery_wheel.errors import SettingError
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs.options import duration_option, input_option, output_option, store_option
from celery_wheel.pipeline.output import OutputFolder, first_rows
from celery_wheel.pipeline.source.options import ENVIRONMENT
from celery_wheel.pipeline.summary import JobSummary
from celery_wheel.values.format import format_duration

NAME = "reconcile"

KINDS = (
    "lost",
    "lost_by_worker",
    "duplicated",
    "repeated",
    "unproven",
    "dispatched_twice",
    "early",
    "late",
    "ran_though_cancelled",
    "unknown",
)
REJECTED = "rejected"

OPTIONS = (
    click.option("--scheduled", metavar="PATH", help="Log of scheduled tasks; default: the store's history."),
    click.option("--dispatched", metavar="PATH", help="Log of dispatched tasks."),
    click.option("--executed", metavar="PATH", required=True, help="Log of executed tasks."),
    store_option,
    input_option,
    output_option,
    click.option("--late", type=DurationParameter(), help="Largest lateness that is no finding."),
    duration_option("--clock", "2ms", "Largest difference of the clocks."),
    click.option("--allow", multiple=True, type=click.Choice([*KINDS, REJECTED]), help="Finding that does not fail."),
)

SCHEDULED = {"task_id": "text", "eta": "instant", "cancelled": "flag", "in_doubt": "flag", "retries": "number"}
DISPATCHED = {"task_id": "text", "retries": "number"}
EXECUTED = {
    "task_id": "text",
    "started": "instant",
    "eta": "instant",
    "wheel_redelivered": "flag",
    "redelivered": "flag",
    "delivery": "text",
    "retries": "number",
}
HISTORY = "id long, task_id string, eta timestamp, outcome string"
#: Outcomes after which a task is not expected to run.
FINAL = ("cancelled", "expired", "rejected", "parked")
PENDING = "pending"
#: The most days and kinds of finding that the picture shows, the latest ones.
DRAWN = 1_000


def audit(
    scheduled: DataFrame,
    executed: DataFrame,
    dispatched: DataFrame | None = None,
    excused: DataFrame | None = None,
) -> DataFrame:
    """Return a row for each task, joined from the three logs; ``excused`` ids are pending or have a final outcome.

    ``retries`` may be absent. The wheel's own history has ``id`` instead, which identifies the message.
    """
    tasks = _expectations(scheduled).join(_runs(executed), "task_id", "full")
    if dispatched is not None:
        message = f.coalesce(_optional(dispatched, "id"), _optional(dispatched, "retries"), f.lit(0))
        counts = f.count("*").alias("dispatches"), f.count_distinct(message).alias("sent")
        tasks = tasks.join(dispatched.groupBy("task_id").agg(*counts), "task_id", "full")
    else:
        null = f.lit(None).cast("long")
        tasks = tasks.withColumns({"dispatches": null, "sent": null})
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
    permitted = f.coalesce("attempts", f.lit(1))
    several = f.coalesce(f.col("messages") > permitted, f.lit(False))
    marked = f.col("marks") >= f.col("messages") - permitted
    unproven = f.col("attempts").isNull() & f.coalesce(f.col("messages") <= f.col("sent"), f.lit(False))
    conditions: dict[str, Column] = {
        "lost": expected & ~f.col("arrived"),
        "lost_by_worker": expected & f.col("arrived") & ~f.col("ran"),
        "duplicated": several & ~unproven & ~marked,
        "repeated": several & ~unproven & marked,
        "unproven": several & unproven,
        "dispatched_twice": f.col("dispatches") > f.col("sent"),
        "early": lateness() < -clock_ms,
        "late": f.lit(False) if late_ms is None else lateness() > late_ms,
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
    return scheduled.groupBy("task_id").agg(
        f.lit(True).alias("scheduled"),
        f.max_by("eta", f.struct(-f.coalesce(_optional(scheduled, "retries"), f.lit(0)), "eta")).alias("scheduled_eta"),
        f.coalesce(f.bool_or("cancelled"), f.lit(False)).alias("cancelled"),
        # A task that was sent at least once with a known result is not in doubt.
        f.bool_and(f.coalesce("in_doubt", f.lit(False))).alias("in_doubt"),
    )


def _optional(frame: DataFrame, name: str) -> Column:
    return f.col(name) if name in frame.columns else f.lit(None).cast("long")


def _runs(executed: DataFrame) -> DataFrame:
    """Return a row for each task that ran: its first run, its number of messages, and how many of them are marked."""
    own = ~f.coalesce("redelivered", f.lit(False))
    by_message = (
        executed.withColumn("own", own)
        .withColumn("marked", f.coalesce("wheel_redelivered", f.lit(False)))
        .withColumn("retries", _optional(executed, "retries"))
        .groupBy("task_id", "retries", "delivery")
        .agg(
            f.min("started").alias("started"),
            f.min("eta").alias("logged_eta"),
            f.count_if("own").alias("runs"),
            f.count_if(f.col("own") & f.col("marked")).alias("marks"),
        )
    )
    # Without ``delivery`` the runs of several messages are in one row, and each counts.
    several = f.col("delivery").isNull()
    attempts = f.count_distinct(f.coalesce("retries", f.lit(0)))
    return by_message.groupBy("task_id").agg(
        f.min("started").alias("started"),
        f.min("logged_eta").alias("logged_eta"),
        f.sum(f.when(several, f.col("runs")).otherwise(f.least("runs", f.lit(1)))).alias("messages"),
        f.sum(f.when(several, f.col("marks")).otherwise(f.least("marks", f.lit(1)))).alias("marks"),
        f.when(f.count("retries") > 0, attempts).alias("attempts"),
    )


def readable(log: DataFrame, name: str, *required: str) -> tuple[DataFrame, DataFrame]:
    """Return (readable lines, the rest as (log, task_id, line, reason))."""
    reasons = {"not JSON": f.col(inputs.BROKEN).isNotNull(), "no task_id": f.col("task_id").isNull()}
    reasons |= {f"no {column}": f.col(column).isNull() for column in required}
    lines, rejected = inputs.split_usable(log, reasons)
    line = f.col(inputs.BROKEN).alias("line")
    return lines.drop(inputs.BROKEN), rejected.select(f.lit(name).alias("log"), "task_id", line, "reason")


def run(spark: SparkSession, options: Mapping[str, Any], progress: Callable[[str], None]) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    executed, rejected = readable(inputs.read_log(spark, options["executed"], EXECUTED), "executed", "started")
    scheduled, dispatched, excused, events = None, None, None, None
    logs = options["scheduled"] or options["dispatched"]  # with a log, the store of the environment is not read
    if options["store"] or options["input"] or (os.environ.get(ENVIRONMENT) and not logs):
        events = _wheel_events(spark, options).persist()
        scheduled, dispatched, excused = _split_events(events)
    if options["dispatched"]:
        if dispatched is not None:
            raise SettingError("--dispatched excludes --store and --input: use the one that has the dispatched tasks")
        dispatched, more = readable(inputs.read_log(spark, options["dispatched"], DISPATCHED), "dispatched")
        rejected = rejected.unionByName(more)
    if options["scheduled"]:
        scheduled, more = readable(inputs.read_log(spark, options["scheduled"], SCHEDULED), "scheduled")
        rejected = rejected.unionByName(more)
    if scheduled is None:
        raise SettingError(
            f"--scheduled, --store or --input must name the scheduled tasks; without logs, {ENVIRONMENT} may"
        )
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


def _wheel_events(spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    """Return (id, task_id, eta, outcome) of the wheel's own tables; Parquet has no pending tasks."""
    events = inputs.read_table(spark, options, "history", HISTORY)
    if not options["input"]:
        pending = inputs.read_table(spark, options, "pending", "id long, task_id string, eta timestamp")
        events = events.unionByName(pending.withColumn("outcome", f.lit(PENDING)))
    # A rejected message may be unreadable, and then has no task id.
    return events.where("task_id != ''")


def _split_events(events: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return (scheduled, dispatched, excused) by the wheel's own tables."""
    # A retry is a message of its own with the id of its task: the eta of the first message counts, and a task is
    # cancelled only if all of its messages are.
    cancelled = f.bool_or(f.col("outcome") == "cancelled").alias("cancelled")
    messages = events.groupBy("task_id", "id").agg(f.max("eta").alias("eta"), cancelled)
    firsts = f.min("eta").alias("eta"), f.bool_and("cancelled").alias("cancelled")
    scheduled = messages.groupBy("task_id").agg(*firsts).withColumn("in_doubt", f.lit(False))
    excused = events.where(f.col("outcome").isin(PENDING, *FINAL))
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
    """Return the findings of each kind and day, for the picture."""
    day = f.coalesce(f.date_format("eta", "yyyy-MM-dd"), f.lit("no eta")).alias("day")
    counts = found.groupBy(day, "finding").agg(f.count("*").alias("n"))
    return first_rows(counts.orderBy(f.desc("day"), "finding"), DRAWN)


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
