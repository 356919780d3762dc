"""``reconcile``: the auditor. What was scheduled, against what was dispatched, against what ran. No row is the proof.

::

    scheduled ─┐                        lost                    owed, and never dispatched (or never ran)
    dispatched ┼─► findings, by task    lost_by_worker          dispatched, and never ran
    executed  ─┘   and kind             duplicated              ran as several messages, and no second one says so
                                        repeated                ran as several messages, and the others are marked
                                        dispatched_twice        by the log of dispatches
                                        early, late             before its eta; more than --late after it
                                        ran_though_cancelled    its cancel was answered ``done``
                                        unknown                 ran, and nobody scheduled it

    findings-….parquet  task_id, finding, eta, started, dispatches, messages
    rejects-….parquet   only where there are some: lines of logs that cannot be read, with log and reason
    reconcile.png       findings by day
    summary.json        scheduled, dispatched, ran, findings {kind: n}, latest_ms, rejects

The logs, as JSON lines or Parquet; in brackets what may be absent (``inputs`` says how instants may be written):

    scheduled   task_id [eta] [cancelled] [perhaps: its sending failed, so that nobody knows] [retries]
    dispatched  task_id [retries]: a line each time. Or --store / --input: the wheel's own history and pending
    executed    task_id started [again: it came with the mark] [redelivered: by the broker, to another worker]
                [delivery: which message it was] [eta] [retries]

Owed is what was scheduled for certain, was not cancelled, does not wait, and became nothing else (expired, rejected,
parked). A worker that dies gets the same message again: that is redelivered, and no finding. Without ``delivery`` each
run that is not redelivered counts as a message. Of an id that was scheduled twice the later eta counts.

A task that is retried keeps its id, and is a message more each time. ``retries`` (Celery's ``request.retries``) tells
those apart; where the logs have it not, the wheel's own account does, which knows its messages: then a task may run as
often as messages of it left. Early and late are of the first.

A line that cannot be read counts as a finding, too: without it nothing is proved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.cli.options import Length
from celery_wheel.errors import SettingError
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs.outer import given_parquet, output, store
from celery_wheel.pipeline.output import Output
from celery_wheel.pipeline.source.options import ENVIRONMENT
from celery_wheel.pipeline.summary import Summary
from celery_wheel.present import duration

NAME = "reconcile"
HELP = "The auditor: scheduled against dispatched against executed."

KINDS = (
    "lost",
    "lost_by_worker",
    "duplicated",
    "repeated",
    "dispatched_twice",
    "early",
    "late",
    "ran_though_cancelled",
    "unknown",
)
REJECTED = "rejected"

OPTIONS = (
    click.option("--scheduled", metavar="PATH", help="Log of what was scheduled; else the store's own."),
    click.option("--dispatched", metavar="PATH", help="Log of what the broker was given."),
    click.option("--executed", metavar="PATH", required=True, help="Log of what ran."),
    store,
    given_parquet,
    output,
    click.option("--late", type=Length(), help="A task that ran more than this after its eta is a finding."),
    click.option("--clock", type=Length(), default="2ms", show_default=True, help="How far clocks may differ."),
    click.option("--allow", multiple=True, type=click.Choice([*KINDS, REJECTED]), help="Counted, and no failure."),
)

SCHEDULED = {"task_id": "text", "eta": "instant", "cancelled": "flag", "perhaps": "flag", "retries": "number"}
DISPATCHED = {"task_id": "text", "retries": "number"}
EXECUTED = {
    "task_id": "text",
    "started": "instant",
    "eta": "instant",
    "again": "flag",
    "redelivered": "flag",
    "delivery": "text",
    "retries": "number",
}
HISTORY = "id long, task_id string, eta timestamp, outcome string"
#: Of those outcomes a task owes nothing more.
SETTLED = ("cancelled", "expired", "rejected", "parked")
WAITS = "pending"


def audit(
    scheduled: DataFrame,
    executed: DataFrame,
    dispatched: DataFrame | None = None,
    settled: DataFrame | None = None,
) -> DataFrame:
    """A row a task: all that the three logs say of it. ``settled``: ids that wait, or became something else.

    ``retries`` may be absent. Of the wheel's own account ``dispatched`` has ``id`` instead: which message it was.
    """
    found = _promises(scheduled).join(_runs(executed), "task_id", "full")
    if dispatched is not None:
        which = f.coalesce(_optional(dispatched, "id"), _optional(dispatched, "retries"), f.lit(0))
        times = f.count("*").alias("dispatches"), f.count_distinct(which).alias("sent")
        found = found.join(dispatched.groupBy("task_id").agg(*times), "task_id", "full")
    else:
        none = f.lit(None).cast("long")
        found = found.withColumns({"dispatches": none, "sent": none})
    if settled is not None:
        found = found.join(settled.select("task_id").distinct().withColumn("settled", f.lit(True)), "task_id", "left")
    else:
        found = found.withColumn("settled", f.lit(False))
    flags = ("scheduled", "cancelled", "perhaps", "settled")
    return found.withColumns(
        {
            **{name: f.coalesce(name, f.lit(False)) for name in flags},
            "ran": f.col("started").isNotNull(),
            "arrived": f.col("started" if dispatched is None else "dispatches").isNotNull(),
            "eta": f.coalesce("promised", "noted"),
        }
    )


def findings(audited: DataFrame, late_ms: int | None = None, clock_ms: int = 2) -> DataFrame:
    """(task_id, finding, eta, started, dispatches, messages): a row a task and kind."""
    owed = f.col("scheduled") & ~f.col("cancelled") & ~f.col("perhaps") & ~f.col("settled")
    asked = f.coalesce("attempts", "sent", f.lit(1))
    several = f.coalesce(f.col("messages") > asked, f.lit(False))
    marked = f.col("marks") >= f.col("messages") - asked
    wrong: dict[str, Column] = {
        "lost": owed & ~f.col("arrived"),
        "lost_by_worker": owed & f.col("arrived") & ~f.col("ran"),
        "duplicated": several & ~marked,
        "repeated": several & marked,
        "dispatched_twice": f.col("dispatches") > f.col("sent"),
        "early": lateness() < -clock_ms,
        "late": f.lit(False) if late_ms is None else lateness() > late_ms,
        "ran_though_cancelled": f.col("cancelled") & f.col("ran"),
        "unknown": f.col("ran") & ~f.col("scheduled"),
    }
    kinds = f.array_compact(f.array(*(f.when(wrong[kind], f.lit(kind)) for kind in KINDS)))
    told = ("eta", "started", "dispatches", "messages")
    return audited.select("task_id", f.explode(kinds).alias("finding"), *told)


def lateness() -> Column:
    """Of a row of ``audit``: when it first ran, against its eta, in milliseconds."""
    return f.unix_millis("started") - f.unix_millis("eta")


def _promises(scheduled: DataFrame) -> DataFrame:
    return scheduled.groupBy("task_id").agg(
        f.lit(True).alias("scheduled"),
        f.max_by("eta", f.struct(-f.coalesce(_optional(scheduled, "retries"), f.lit(0)), "eta")).alias("promised"),
        f.coalesce(f.bool_or("cancelled"), f.lit(False)).alias("cancelled"),
        # Sent for certain once is enough.
        f.bool_and(f.coalesce("perhaps", f.lit(False))).alias("perhaps"),
    )


def _optional(frame: DataFrame, name: str) -> Column:
    return f.col(name) if name in frame.columns else f.lit(None).cast("long")


def _runs(executed: DataFrame) -> DataFrame:
    """A row a task that ran: when first, as how many messages, and how many of these are marked."""
    own = ~f.coalesce("redelivered", f.lit(False))
    by_message = (
        executed.withColumn("own", own)
        .withColumn("again", f.coalesce("again", f.lit(False)))
        .withColumn("retries", _optional(executed, "retries"))
        .groupBy("task_id", "retries", "delivery")
        .agg(
            f.min("started").alias("started"),
            f.min("eta").alias("noted"),
            f.count_if("own").alias("runs"),
            f.count_if(f.col("own") & f.col("again")).alias("marks"),
        )
    )
    several = f.col("delivery").isNull()
    attempts = f.count_distinct(f.coalesce("retries", f.lit(0)))
    return by_message.groupBy("task_id").agg(
        f.min("started").alias("started"),
        f.min("noted").alias("noted"),
        f.sum(f.when(several, f.col("runs")).otherwise(f.least("runs", f.lit(1)))).alias("messages"),
        f.sum(f.when(several, f.col("marks")).otherwise(f.least("marks", f.lit(1)))).alias("marks"),
        f.when(f.count("retries") > 0, attempts).alias("attempts"),
    )


def readable(log: DataFrame, name: str, *needed: str) -> tuple[DataFrame, DataFrame]:
    """(lines that can be used, the rest as (log, task_id, line, reason))."""
    wrong = {"not JSON": f.col(inputs.BROKEN).isNotNull(), "no task_id": f.col("task_id").isNull()}
    wrong |= {f"no {column}": f.col(column).isNull() for column in needed}
    found, rejected = inputs.sound(log, wrong)
    line = f.col(inputs.BROKEN).alias("line")
    return found.drop(inputs.BROKEN), rejected.select(f.lit(name).alias("log"), "task_id", line, "reason")


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    output = Output(given["output"], NAME)
    executed, rejected = readable(inputs.log(spark, given["executed"], EXECUTED), "executed", "started")
    scheduled, dispatched, settled, events = None, None, None, None
    logs = given["scheduled"] or given["dispatched"]  # who gives one is not asked what the environment's store says
    if given["store"] or given["input"] or (os.environ.get(ENVIRONMENT) and not logs):
        events = _of_wheel(spark, given).persist()
        scheduled, dispatched, settled = _told(events)
    if given["dispatched"]:
        if dispatched is not None:
            raise SettingError("--dispatched excludes --store and --input: give the one that says what left")
        dispatched, more = readable(inputs.log(spark, given["dispatched"], DISPATCHED), "dispatched")
        rejected = rejected.unionByName(more)
    if given["scheduled"]:
        scheduled, more = readable(inputs.log(spark, given["scheduled"], SCHEDULED), "scheduled")
        rejected = rejected.unionByName(more)
    if scheduled is None:
        raise SettingError(
            f"--scheduled, --store or --input must say what was scheduled; or, without logs, environment {ENVIRONMENT}"
        )
    audited = audit(scheduled, executed, dispatched, settled).persist()
    try:
        tell("the three against each other")
        late_ms = None if given["late"] is None else round(given["late"] * 1_000)
        found = findings(audited, late_ms, round(given["clock"] * 1_000))
        rows = output.table("findings", found.orderBy("task_id", "finding"))
        tell("lines that cannot be read")
        facts: dict[str, Any] = {**_totals(audited), "findings": _by_kind(rows), "rejects": output.rejects(rejected)}
    finally:
        for kept in filter(None, (audited, events)):
            kept.unpersist()
    facts["picture"] = output.picture(lambda: _picture(rows))
    summary = Summary(NAME, facts, *_verdict(facts, given["allow"]))
    output.finish(summary)
    return summary


def _of_wheel(spark: SparkSession, given: Mapping[str, Any]) -> DataFrame:
    """(id, task_id, eta, outcome) as the wheel's own tables have it; Parquet has no pending."""
    events = inputs.table(spark, given, "history", HISTORY)
    if not given["input"]:
        pending = inputs.table(spark, given, "pending", "id long, task_id string, eta timestamp")
        events = events.unionByName(pending.withColumn("outcome", f.lit(WAITS)))
    # What was rejected may have no id: it was no message that anybody could read.
    return events.where("task_id != ''")


def _told(events: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """(scheduled, dispatched, settled) by the wheel's own account."""
    # A retry has the id of its task and is a message of its own: the first one's eta counts, and a retry that was
    # cancelled does not make the task one.
    cancelled = f.bool_or(f.col("outcome") == "cancelled").alias("cancelled")
    messages = events.groupBy("task_id", "id").agg(f.max("eta").alias("eta"), cancelled)
    firsts = f.min("eta").alias("eta"), f.bool_and("cancelled").alias("cancelled")
    scheduled = messages.groupBy("task_id").agg(*firsts).withColumn("perhaps", f.lit(False))
    settled = events.where(f.col("outcome").isin(WAITS, *SETTLED))
    return scheduled, events.where("outcome = 'dispatched'").select("task_id", "id"), settled


def _totals(audited: DataFrame) -> dict[str, int | None]:
    [row] = audited.agg(
        f.count_if(f.col("scheduled") & ~f.col("perhaps")).alias("scheduled"),
        f.count_if(f.col("dispatches").isNotNull()).alias("dispatched"),
        f.count_if("ran").alias("ran"),
        f.max(lateness()).alias("latest_ms"),
    ).collect()
    return dict(row.asDict())


def _by_kind(rows: Any) -> dict[str, int]:
    kinds = rows.column("finding").to_pylist()
    return {kind: kinds.count(kind) for kind in KINDS if kind in kinds}


def _picture(rows: Any) -> Any:
    from celery_wheel.pipeline.plot import reconcile

    counts: dict[tuple[str, str], int] = {}
    for row in rows.select(["finding", "eta"]).to_pylist():
        day = row["eta"].date().isoformat() if row["eta"] else "no eta"
        counts[day, row["finding"]] = counts.get((day, row["finding"]), 0) + 1
    return reconcile([{"day": day, "finding": kind, "n": n} for (day, kind), n in sorted(counts.items())])


def _verdict(facts: Mapping[str, Any], allowed: tuple[str, ...]) -> tuple[list[str], int]:
    """(words, how many findings are a failure)."""
    found = dict(facts["findings"])
    if facts["rejects"]:
        found[REJECTED] = sum(facts["rejects"].values())
    words = [
        f"{facts['scheduled']:,} scheduled, {facts['ran']:,} ran, latest {duration(facts['latest_ms'])} after its eta"
    ]
    words += [f"{kind}: {count:,}{' (allowed)' if kind in allowed else ''}" for kind, count in found.items()]
    if not found:
        words.append("no finding: nothing lost, duplicated, early or run though it was cancelled")
    return words, sum(count for kind, count in found.items() if kind not in allowed)
