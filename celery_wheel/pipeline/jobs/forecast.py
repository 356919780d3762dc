"""``forecast``: pending tasks by second and minute of their due time, herds, and the time until queues are drained.

::

    minutes-….parquet/  minute, queue, n                       up to --to
    seconds-….parquet/  second, queue, n                       of the first --seconds
    herds-….parquet/    second, queue, n, usual, limit, jitter_s, tasks (list of {n, task}, the first five)
    drain-….parquet/    queue, rate, n, worst_backlog, worst_at, longest_wait_s, drained_at

A herd is a second of a queue with at least --herd due tasks that exceeds the mean of the ten minutes before it, empty
seconds included, by eight standard deviations. Where those ten minutes are unknown, the ten minutes after it count:
otherwise the first second of a steady load would be a herd. The jitter is the number of seconds over which to spread
the herd until it is below that limit, or within the queue's --rate. A queue at a rate serves that many tasks each
second, in order, beginning with the overdue ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from celery_wheel.console import parameters
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress, describe_rejects
from celery_wheel.pipeline.output import OutputFolder, first_rows
from celery_wheel.values.format import format_duration, format_utc

NAME = "forecast"
OPTIONS = (
    inputs.store_option,
    inputs.input_option,
    inputs.output_option,
    parameters.instant("--now", "now_ms", default="now", help="Begin of the forecast; default: now."),
    parameters.instant("--to", "to_ms", default="+30d", show_default=True, help="End of it."),
    inputs.duration_option("--seconds", "1d", "Length of the table by seconds."),
    inputs.herd_option,
    inputs.named_option(
        "--rate", "rates", inputs.parse_rates, "[QUEUE=]N/s", "Tasks that the workers run: emails=100/s."
    ),
)

COLUMNS = "queue string, task string, due_ms long"
#: Seconds before a second whose mean is its usual load.
WINDOW_S = 600
DEVIATIONS = 8
#: The most rows that the driver reads for the words, the summary and the picture.
NAMED_HERDS, DRAWN_HERDS, DRAWN_QUEUES, DRAWN_POINTS = 10, 1_000, 10, 1_500


def due(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return ((queue, task, second, n), rejected rows with a reason); ``second`` counts from 1970."""
    usable, rejected = inputs.split_usable(rows, {"no due time": f.col("due_ms").isNull()})
    second = f.expr("(due_ms - pmod(due_ms, 1000L)) div 1000L").alias("second")
    return usable.groupBy("queue", "task", second).agg(f.count("*").alias("n")), rejected


def seconds(due: DataFrame, from_s: int, to_s: int) -> DataFrame:
    """Return (second as an instant, queue, n) of from_s … to_s, without empty seconds."""
    within = due.where(f.col("second").between(from_s, to_s - 1))
    return within.groupBy(f.timestamp_seconds("second").alias("second"), "queue").agg(f.sum("n").alias("n"))


def minutes(due: DataFrame, from_s: int, to_s: int) -> DataFrame:
    """Return (minute as an instant, queue, n) of from_s … to_s, without empty minutes."""
    minute = f.date_trunc("minute", "second").alias("minute")
    return seconds(due, from_s, to_s).groupBy(minute, "queue").agg(f.sum("n").alias("n"))


def herds(due: DataFrame, from_s: int, known_from_s: int, least: int, rates: Mapping[str, float]) -> DataFrame:
    """Return the herds from ``from_s`` on; ``known_from_s``: before it ``due`` is not complete."""
    by_second = due.where(f.col("second") >= known_from_s).groupBy("queue", "second").agg(f.sum("n").alias("n"))
    candidates = _with_usual(by_second, (f.col("second") >= from_s) & (f.col("n") >= least), known_from_s)
    spread = f.sqrt(f.greatest(f.col("square") - f.col("usual") * f.col("usual"), f.lit(0.0))) * DEVIATIONS
    found = candidates.withColumn("limit", f.greatest(f.col("usual") + spread, f.lit(float(least - 1))))
    found = found.where(f.col("n") > f.col("limit"))
    rate = _rate(rates)
    room = f.when(rate > f.col("usual"), rate - f.col("usual")).otherwise(f.col("limit") - f.col("usual"))
    jitter = f.ceil((f.col("n") - f.col("usual")) / room).cast("long").alias("jitter_s")
    return _with_tasks(found.select("queue", "second", "n", "usual", "limit", jitter), due)


def _with_usual(by_second: DataFrame, condition: Column, known_from_s: int) -> DataFrame:
    """Return the seconds for which ``condition`` holds, with the means of their window: ``usual``, and ``square``.

    The few seconds are joined with their neighbours, by buckets of ten minutes. A window over all seconds has the same
    result, but Spark adds up its 600 rows again for each second.
    """
    bucket = f.expr(f"(second - pmod(second, {WINDOW_S}L)) div {WINDOW_S}L")
    each = f.explode(f.array(bucket - 1, bucket, bucket + 1)).alias("bucket")
    selected = by_second.where(condition).select("queue", "second", "n", each).alias("selected")
    others = by_second.select(
        f.col("queue").alias("other_queue"),
        f.col("second").alias("other_second"),
        f.col("n").cast("double").alias("other_n"),
        bucket.alias("other_bucket"),
    )
    # Null-safe: tasks without a queue's name are one group.
    same = f.col("queue").eqNullSafe(f.col("other_queue")) & (f.col("bucket") == f.col("other_bucket"))
    distance = f.col("other_second") - f.col("second")
    known = f.col("second") - WINDOW_S >= known_from_s
    within = f.when(known, distance.between(-WINDOW_S, -1)).otherwise(distance.between(1, WINDOW_S))
    near = selected.join(others, same).withColumn("other_n", f.when(within, f.col("other_n")).otherwise(f.lit(0.0)))
    return near.groupBy("queue", "second", "n").agg(
        (f.sum("other_n") / WINDOW_S).alias("usual"),
        (f.sum(f.col("other_n") * f.col("other_n")) / WINDOW_S).alias("square"),
    )


def _with_tasks(found: DataFrame, due: DataFrame) -> DataFrame:
    """Return the herds with their largest tasks. Spark broadcasts the herds where they are few: the driver has them."""
    columns = ("queue", "second", "n", "usual", "limit", "jitter_s")
    other = (f.col(name).alias(f"other_{name}") for name in ("queue", "second"))
    tasks = due.select(*other, f.struct("n", "task").alias("other_task"))
    same = f.col("queue").eqNullSafe(f.col("other_queue")) & (f.col("second") == f.col("other_second"))
    largest = f.slice(f.sort_array(f.collect_list("other_task"), asc=False), 1, 5).alias("tasks")
    both = found.join(tasks, same).groupBy(*columns).agg(largest)
    return both.select(f.timestamp_seconds("second").alias("second"), "queue", *columns[2:], "tasks")


def drain(due: DataFrame, now_s: int, rates: Mapping[str, float]) -> DataFrame:
    """Return a row for each queue that has a rate: its worst backlog, and the instant at which it is drained.

    With A(t) tasks due up to second t, the backlog after it is A(t) - r (t + 1) - min over s <= t of (A(s - 1) - r s),
    and at least 0: an idle queue does not save up capacity.
    """
    second = f.greatest("second", f.lit(now_s)).alias("second")
    rated = due.groupBy("queue", second).agg(f.sum("n").alias("n")).withColumn("rate", _rate(rates))
    so_far = Window.partitionBy("queue").orderBy("second").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    arrived = rated.where("rate is not null").withColumn("arrived", f.sum("n").over(so_far))
    idle = f.min(f.col("arrived") - f.col("n") - f.col("rate") * f.col("second")).over(so_far)
    behind = f.col("arrived") - f.col("rate") * (f.col("second") + 1) - idle
    backlogs = arrived.withColumn("backlog", f.greatest(behind, f.lit(0.0)))
    drained_s = f.col("second") + 1 + f.col("backlog") / f.col("rate")
    return backlogs.groupBy("queue", "rate").agg(
        f.sum("n").alias("n"),
        f.ceil(f.max("backlog")).cast("long").alias("worst_backlog"),
        f.timestamp_seconds(f.min_by("second", f.struct(-f.col("backlog"), "second"))).alias("worst_at"),
        (f.max("backlog") / f.first("rate")).alias("longest_wait_s"),
        f.timestamp_seconds(f.max(drained_s)).alias("drained_at"),
    )


def _rate(rates: Mapping[str, float]) -> Column:
    named = [f.when(f.col("queue") == queue, rate) for queue, rate in rates.items() if queue != "*"]
    return f.coalesce(*named, f.lit(rates.get("*"))).cast("double")


check = inputs.check_table


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    now_s, to_s, rates = options["now_ms"] // 1_000, -(-options["to_ms"] // 1_000), options["rates"]
    pending, rejected = due(inputs.read_table(spark, options, "pending", COLUMNS))
    pending = pending.persist()
    with_before, known_from_s = _with_before(spark, options, pending, now_s)
    with_before = with_before.persist()
    try:
        progress("reading pending tasks")
        tables = {
            "minutes": minutes(pending, now_s, to_s).orderBy("minute", "queue"),
            "seconds": seconds(pending, now_s, min(now_s + int(options["seconds"]), to_s)).orderBy("second", "queue"),
            "herds": herds(with_before, now_s, known_from_s, options["least"], rates).orderBy("second", "queue"),
            "drain": drain(pending, now_s, rates).orderBy("queue"),
        }
        written = {}
        for name, frame in tables.items():
            progress(name)
            written[name] = output.table(name, frame)
        rejects = output.rejects(rejected)
        facts = {"now": format_utc(options["now_ms"]), **_totals(pending, now_s, to_s), **_facts(written)}
    finally:
        with_before.unpersist()
        pending.unpersist()
    progress("drawing")
    found = [_json_values(row) for row in first_rows(written["herds"], NAMED_HERDS)]
    facts |= {"rejects": rejects, "picture": output.picture(lambda plot: plot.forecast(*_drawn(written)))}
    return output.finish(JobSummary(NAME, facts, _words(found, facts, bool(rates))))


def _with_before(spark: SparkSession, options: Options, pending: DataFrame, now_s: int) -> tuple[DataFrame, int]:
    """Return (the due tasks with those of the ten minutes before, the second from which they are complete)."""
    if options.get("input"):
        return pending, now_s
    known_from_s = min(now_s, parameters.now_ms() // 1_000) - WINDOW_S
    span = {"dueFrom": known_from_s * 1_000, "dueTo": now_s * 1_000}
    columns = f"{COLUMNS}, outcome string"
    history = inputs.read_table(spark, options, "history", columns, **span)
    return pending.unionByName(due(history.where("outcome = 'dispatched'").drop("outcome"))[0]), known_from_s


def _totals(pending: DataFrame, now_s: int, to_s: int) -> dict[str, int]:
    [row] = pending.agg(
        f.sum("n").alias("pending"),
        f.sum(f.when(f.col("second") < now_s, f.col("n"))).alias("overdue"),
        f.sum(f.when(f.col("second") >= to_s, f.col("n"))).alias("beyond"),
    ).collect()
    return {name: int(count or 0) for name, count in row.asDict().items()}


def _facts(written: Mapping[str, DataFrame]) -> dict[str, Any]:
    waits = written["drain"].orderBy(f.desc("longest_wait_s"), "queue")
    return {
        "busiest_second": _busiest(written["seconds"], "second"),
        "busiest_minute": _busiest(written["minutes"], "minute"),
        "herds": written["herds"].count(),
        "drain": [_json_values(row) for row in first_rows(waits, 100)],
        "drained": written["drain"].count(),
    }


def _busiest(rows: DataFrame, unit: str) -> dict[str, Any] | None:
    best = first_rows(rows.orderBy(f.desc("n"), unit, "queue").select(unit, "queue", "n"), 1)
    return _json_values(best[0]) if best else None


def _json_values(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: at.isoformat().replace("+00:00", "Z") for name, at in row.items() if isinstance(at, datetime)}
    return {**row, **texts}


def _drawn(written: Mapping[str, DataFrame]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the points of the largest queues, each the greatest of its minutes, and the largest herds."""
    minutes = written["minutes"]
    largest = minutes.groupBy("queue").agg(f.sum("n").alias("total")).orderBy(f.desc("total"), "queue")
    largest = largest.limit(DRAWN_QUEUES).select(f.col("queue").alias("drawn"))
    minute_s = f.unix_timestamp("minute")
    [span] = first_rows(minutes.agg(f.min(minute_s).alias("first"), f.max(minute_s).alias("last")), 1)
    width_s = 60 * max(1, -(-((span["last"] or 0) - (span["first"] or 0) + 60) // 60 // DRAWN_POINTS))
    point = f.timestamp_seconds(minute_s - f.pmod(minute_s, f.lit(width_s))).alias("minute")
    points = minutes.join(f.broadcast(largest), f.col("queue").eqNullSafe(f.col("drawn")))
    points = points.groupBy("queue", point).agg(f.max("n").alias("n"))
    herds = written["herds"].orderBy(f.desc("n"), "second").select("second", "n")
    return first_rows(points, DRAWN_QUEUES * (DRAWN_POINTS + 1)), first_rows(herds, DRAWN_HERDS)


def _words(herds: list[dict[str, Any]], facts: Mapping[str, Any], rated: bool) -> list[str]:
    words = [f"{facts['pending']:,} tasks are pending, {facts['overdue']:,} of them overdue"]
    if best := facts["busiest_second"]:
        words.append(f"busiest second: {best['n']:,} on {best['queue']} at {best['second']}")
    words += [
        f"herd: {herd['n']:,} on {herd['queue']} at {herd['second']}, usually {herd['usual']:.1f} a "
        f"second; mostly {herd['tasks'][0]['task']}; a jitter of {herd['jitter_s']} s spreads it"
        for herd in herds
    ]
    if facts["herds"] > len(herds):
        words.append(f"and {facts['herds'] - len(herds):,} more herds")
    words += [
        f"{row['queue']} at {row['rate']:g} a second: a backlog of at most {row['worst_backlog']:,}, a wait of up to "
        f"{format_duration(round(row['longest_wait_s'] * 1_000))}; drained at {row['drained_at']}"
        for row in facts["drain"]
    ]
    if facts["drained"] > len(facts["drain"]):
        words.append(f"and {facts['drained'] - len(facts['drain']):,} more queues, with shorter waits")
    if not rated:
        words.append("to estimate when queues are drained, set the rate of their workers: --rate 500/s")
    return words + describe_rejects(facts["rejects"])
