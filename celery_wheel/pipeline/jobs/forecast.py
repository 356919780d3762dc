"""``forecast``: what is going to be due by second and minute, where it comes in herds, and when queues have drained.

::

    pending ──► due: (queue, task, second, n), one pass ──┬► minutes, seconds
    history of ten minutes before (of a store) ───────────┼► herds, with the tasks behind them and a jitter
                                                          └► drain: a queue at a rate, second by second

    minutes-….parquet  minute, queue, n                        up to --to
    seconds-….parquet  second, queue, n                        of the first --seconds
    herds-….parquet    second, queue, n, usual, limit, jitter_s, tasks (list of {n, task}, the first five)
    drain-….parquet    queue, rate, n, worst_backlog, worst_at, longest_wait_s, drained_at
    rejects-….parquet  only where there are some: the rows with a reason
    forecast.png       due a minute by queue, with the herds
    summary.json       now, pending, overdue, beyond, busiest_second, busiest_minute, herds, drain, rejects

A herd is a second of a queue in which more is due than the mean of the ten minutes before it, seconds without any
included, and eight standard deviations; and at least --herd tasks. Where those ten minutes are not known (a snapshot
begins with what is due now) it is the ten minutes after it that a second is held against: else the first second of a
steady load looked like one. The jitter is over how many seconds to spread the herd so that it is none any more, or so
that the queue's --rate takes it.

A queue at a rate serves so many each second, in order, beginning with what is overdue; what came later waits behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from celery_wheel.cli.options import Instant, Length, now_ms
from celery_wheel.pipeline import inputs
from celery_wheel.pipeline.jobs.outer import given_parquet, output, rates, store
from celery_wheel.pipeline.output import Output
from celery_wheel.pipeline.summary import Summary
from celery_wheel.present import duration, utc

NAME = "forecast"
HELP = "What is going to be due: by second and minute, herds, and how long queues take to drain."
OPTIONS = (
    store,
    given_parquet,
    output,
    click.option(
        "--now", "now_ms", type=Instant(), default="now", help="The instant from which to look; default: now."
    ),
    click.option("--to", "to_ms", type=Instant(), default="+30d", show_default=True, help="How far to look."),
    click.option("--seconds", type=Length(), default="1d", show_default=True, help="So far by seconds, too."),
    click.option("--herd", "least", type=click.IntRange(2), default=100, show_default=True, help="Fewer are no herd."),
    click.option(
        "--rate", "rates", multiple=True, callback=rates, metavar="[QUEUE=]N/s", help="What workers do: emails=100/s."
    ),
)

COLUMNS = "queue string, task string, due_ms long"
#: What a second is held against.
WINDOW_S = 600
DEVIATIONS = 8
#: Tasks named with a herd.
NAMED = 5


def due(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """((queue, task, second, n), what cannot be used: with a reason); ``second`` counts from 1970."""
    found, rejected = inputs.sound(rows, {"no instant at which it is due": f.col("due_ms").isNull()})
    second = f.expr("(due_ms - pmod(due_ms, 1000L)) div 1000L").alias("second")
    return found.groupBy("queue", "task", second).agg(f.count("*").alias("n")), rejected


def seconds(due: DataFrame, from_s: int, to_s: int) -> DataFrame:
    """(second as an instant, queue, n) of from_s … to_s, without those in which nothing is due."""
    found = due.where(f.col("second").between(from_s, to_s - 1))
    return found.groupBy(f.timestamp_seconds("second").alias("second"), "queue").agg(f.sum("n").alias("n"))


def minutes(due: DataFrame, from_s: int, to_s: int) -> DataFrame:
    """(minute as an instant, queue, n), likewise."""
    found = due.where(f.col("second").between(from_s, to_s - 1))
    minute = f.timestamp_seconds(f.expr("second - pmod(second, 60L)")).alias("minute")
    return found.groupBy(minute, "queue").agg(f.sum("n").alias("n"))


def herds(due: DataFrame, from_s: int, known_from_s: int, least: int, rates: Mapping[str, float]) -> DataFrame:
    """The herds from ``from_s`` on.

    Args:
        due: also what was due in the ten minutes before, as far as that is known.
        known_from_s: before it, that nothing is there means nothing.
    """
    by_second = due.where(f.col("second") >= known_from_s).groupBy("queue", "second").agg(f.sum("n").alias("n"))
    found = _around(by_second, (f.col("second") >= from_s) & (f.col("n") >= least), known_from_s)
    spread = f.sqrt(f.greatest(f.col("square") - f.col("usual") * f.col("usual"), f.lit(0.0))) * DEVIATIONS
    found = found.withColumn("limit", f.greatest(f.col("usual") + spread, f.lit(float(least - 1))))
    found = found.where(f.col("n") > f.col("limit"))
    rate = _rate(rates)
    room = f.when(rate > f.col("usual"), rate - f.col("usual")).otherwise(f.col("limit") - f.col("usual"))
    jitter = f.ceil((f.col("n") - f.col("usual")) / room).cast("long").alias("jitter_s")
    return _with_tasks(found.select("queue", "second", "n", "usual", "limit", jitter), due)


def _around(by_second: DataFrame, asked: Column, known_from_s: int) -> DataFrame:
    """Of the seconds that are ``asked`` for: the mean of what is around them, and of its square.

    A join of those few with their neighbours, ten minutes at a time. A window over all seconds gives the same, and
    Spark adds up its 600 rows anew for each of them.
    """
    bucket = f.expr(f"(second - pmod(second, {WINDOW_S}L)) div {WINDOW_S}L")
    each = f.explode(f.array(bucket - 1, bucket, bucket + 1)).alias("bucket")
    wanted = by_second.where(asked).select("queue", "second", "n", each).alias("wanted")
    others = by_second.select(
        f.col("queue").alias("its_queue"),
        f.col("second").alias("its_second"),
        f.col("n").cast("double").alias("its_n"),
        bucket.alias("its_bucket"),
    )
    # Null-safe: a task without a queue's name is in the group of those.
    same = f.col("queue").eqNullSafe(f.col("its_queue")) & (f.col("bucket") == f.col("its_bucket"))
    away = f.col("its_second") - f.col("second")
    known = f.col("second") - WINDOW_S >= known_from_s
    within = f.when(known, away.between(-WINDOW_S, -1)).otherwise(away.between(1, WINDOW_S))
    near = wanted.join(others, same).withColumn("its_n", f.when(within, f.col("its_n")).otherwise(f.lit(0.0)))
    return near.groupBy("queue", "second", "n").agg(
        (f.sum("its_n") / WINDOW_S).alias("usual"),
        (f.sum(f.col("its_n") * f.col("its_n")) / WINDOW_S).alias("square"),
    )


def _with_tasks(found: DataFrame, due: DataFrame) -> DataFrame:
    """The herds are few, and what is due is not: only their rows are put together."""
    columns = ("queue", "second", "n", "usual", "limit", "jitter_s")
    its = due.select(
        f.col("queue").alias("its_queue"), f.col("second").alias("its_second"), f.struct("n", "task").alias("its_task")
    )
    same = f.col("queue").eqNullSafe(f.col("its_queue")) & (f.col("second") == f.col("its_second"))
    tasks = f.slice(f.sort_array(f.collect_list("its_task"), asc=False), 1, NAMED).alias("tasks")
    both = f.broadcast(found).join(its, same).groupBy(*columns).agg(tasks)
    return both.withColumn("second", f.timestamp_seconds("second")).select(
        "second", *columns[:1], *columns[2:], "tasks"
    )


def drain(due: DataFrame, now_s: int, rates: Mapping[str, float]) -> DataFrame:
    """A row a queue that has a rate: its worst backlog, and when it is done.

    With A(t) for all that came up to second t, what waits behind it is A(t) - r (t + 1) - min over s <= t of
    (A(s - 1) - r s), and not less than 0: a queue that was idle has saved nothing up.
    """
    second = f.greatest("second", f.lit(now_s)).alias("second")
    rated = due.groupBy("queue", second).agg(f.sum("n").alias("n")).withColumn("rate", _rate(rates))
    so_far = Window.partitionBy("queue").orderBy("second").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    came = rated.where("rate is not null").withColumn("came", f.sum("n").over(so_far))
    idle = f.min(f.col("came") - f.col("n") - f.col("rate") * f.col("second")).over(so_far)
    behind = f.col("came") - f.col("rate") * (f.col("second") + 1) - idle
    found = came.withColumn("backlog", f.greatest(behind, f.lit(0.0)))
    done = f.col("second") + 1 + f.col("backlog") / f.col("rate")
    return found.groupBy("queue", "rate").agg(
        f.sum("n").alias("n"),
        f.ceil(f.max("backlog")).cast("long").alias("worst_backlog"),
        f.timestamp_seconds(f.min_by("second", f.struct(-f.col("backlog"), "second"))).alias("worst_at"),
        (f.max("backlog") / f.first("rate")).alias("longest_wait_s"),
        f.timestamp_seconds(f.max(done)).alias("drained_at"),
    )


def _rate(rates: Mapping[str, float]) -> Column:
    named = [f.when(f.col("queue") == queue, rate) for queue, rate in rates.items() if queue != "*"]
    return f.coalesce(*named, f.lit(rates.get("*"))).cast("double")


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    output = Output(given["output"], NAME)
    now_s, to_s = given["now_ms"] // 1_000, -(-given["to_ms"] // 1_000)
    found, rejected = due(inputs.table(spark, given, "pending", COLUMNS))
    found = found.persist()
    with_before, known_from_s = _with_before(spark, given, found, now_s)
    with_before = with_before.persist()
    try:
        tell("what is pending")
        tables = {
            "minutes": minutes(found, now_s, to_s).orderBy("minute", "queue"),
            "seconds": seconds(found, now_s, min(now_s + int(given["seconds"]), to_s)).orderBy("second", "queue"),
            "herds": herds(with_before, now_s, known_from_s, given["least"], given["rates"]).orderBy("second", "queue"),
            "drain": drain(found, now_s, given["rates"]).orderBy("queue"),
        }
        rows = {}
        for name, frame in tables.items():
            tell(name)
            rows[name] = output.table(name, frame).to_pylist()
        facts = {"now": utc(given["now_ms"]), **_totals(found, now_s, to_s), **_facts(rows)}
        facts["rejects"] = output.rejects(rejected)
    finally:
        with_before.unpersist()
        found.unpersist()
    tell("the picture")

    def draw() -> Any:
        from celery_wheel.pipeline.plot import forecast

        return forecast(rows["minutes"], rows["herds"])

    facts["picture"] = output.picture(draw)
    summary = Summary(NAME, facts, _words(rows, facts, bool(given["rates"])))
    output.finish(summary)
    return summary


def _with_before(spark: SparkSession, given: Mapping[str, Any], found: DataFrame, now_s: int) -> tuple[DataFrame, int]:
    """With what was due in the ten minutes before, and from when on that is known."""
    if given.get("input"):
        return found, now_s
    known_from_s = min(now_s, now_ms() // 1_000) - WINDOW_S
    span = {"dueFrom": known_from_s * 1_000, "dueTo": now_s * 1_000}
    columns = f"{COLUMNS}, outcome string"
    left = inputs.table(spark, given, "history", columns, **span).where("outcome = 'dispatched'").drop("outcome")
    return found.unionByName(due(left)[0]), known_from_s


def _totals(found: DataFrame, now_s: int, to_s: int) -> dict[str, int]:
    [row] = found.agg(
        f.sum("n").alias("pending"),
        f.sum(f.when(f.col("second") < now_s, f.col("n"))).alias("overdue"),
        f.sum(f.when(f.col("second") >= to_s, f.col("n"))).alias("beyond"),
    ).collect()
    return {name: int(count or 0) for name, count in row.asDict().items()}


def _facts(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "busiest_second": _busiest(rows["seconds"], "second"),
        "busiest_minute": _busiest(rows["minutes"], "minute"),
        "herds": len(rows["herds"]),
        "drain": [{name: _plain(value) for name, value in row.items()} for row in rows["drain"]],
    }


def _busiest(rows: list[dict[str, Any]], unit: str) -> dict[str, Any] | None:
    best = max(rows, key=lambda row: row["n"], default=None)
    return None if best is None else {name: _plain(best[name]) for name in (unit, "queue", "n")}


def _plain(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _words(rows: Mapping[str, list[dict[str, Any]]], facts: Mapping[str, Any], rated: bool) -> list[str]:
    words = [f"{facts['pending']:,} tasks are pending, {facts['overdue']:,} of them overdue"]
    if best := facts["busiest_second"]:
        words.append(f"busiest second: {best['n']:,} on {best['queue']} at {best['second']}")
    words += [
        f"herd: {herd['n']:,} on {herd['queue']} at {_plain(herd['second'])}, where {herd['usual']:.1f} a second are "
        f"usual; mostly {herd['tasks'][0]['task']}; a jitter of {herd['jitter_s']} s spreads it"
        for herd in rows["herds"][:10]
    ]
    if len(rows["herds"]) > 10:
        words.append(f"and {len(rows['herds']) - 10:,} herds more")
    words += [
        f"{row['queue']} at {row['rate']:g} a second: at most {row['worst_backlog']:,} wait, for up to "
        f"{duration(round(row['longest_wait_s'] * 1_000))}; done at {_plain(row['drained_at'])}"
        for row in rows["drain"]
    ]
    if not rated:
        words.append("say what your workers do, --rate 500/s, and it is told when queues are drained")
    if facts["rejects"]:
        words.append(f"rejected: {', '.join(f'{count:,} {why}' for why, count in facts['rejects'].items())}")
    return words
