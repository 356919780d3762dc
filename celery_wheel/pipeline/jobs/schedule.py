"""``schedule``: the rows of a file, a table or a query as tasks that wait in the wheel, all of them or none.

::

    rows ─► judged ─┬► good ────► load before and after, herds ──(unless --dry-run)──► format("wheel"), one batch
                    └► rejected ► kept with their reason

What the columns may be is in ``celery_wheel.pipeline.rows``. ``--sql`` makes them of whatever the rows have:
``SELECT 'shop.remind' AS task, to_json(array(id)) AS args, due AS eta FROM rows``.

A batch has a name, and is loaded once: the same job under the same name writes nothing the second time, and goes on
with a load that was broken off. With ``--id`` a row is also scheduled once in whatever batch it comes.

The load is looked at before anything is written: what is due by minute (by hour where it is more than three days),
now and with these rows, and the herds: seconds in which far more is due than around them, with the jitter that spreads
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from celery_wheel.cli.options import Length
from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.pipeline import inputs, rows
from celery_wheel.pipeline.jobs import forecast
from celery_wheel.pipeline.jobs.outer import Option, output, store, store_of
from celery_wheel.pipeline.local_time import FOLDS, GAPS
from celery_wheel.pipeline.output import Output
from celery_wheel.pipeline.source.opened import opened
from celery_wheel.pipeline.source.target import target
from celery_wheel.pipeline.summary import Summary
from celery_wheel.store.ports.loads import Load

NAME = "schedule"
HELP = "Schedule the rows of a file, a table or a query in bulk: all of them, or none."


def _choice(name: str, choices: Sequence[str], about: str) -> Option:
    """The first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=about)


OPTIONS = (
    store,
    click.option("--rows", "path", metavar="PATH", help="Parquet; or .csv (with a header) or .jsonl, also .gz."),
    click.option("--jdbc", metavar="URL", help="A database to read --table of, by a driver that Spark has."),
    click.option("--table", metavar="NAME", help="Of --jdbc: a table, or a query in parentheses with a name."),
    click.option("--sql", metavar="SELECT", help="Makes the columns: SELECT … FROM rows."),
    click.option("--batch", metavar="NAME", help="Name of this load; one that is loaded is not loaded again."),
    click.option("--id", "id_column", metavar="COLUMN", help="Whose value makes a row idempotent in any batch."),
    click.option("--app", metavar="PROJ:APP", help="An app whose routes and task options count; executors import it."),
    click.option("--task", metavar="NAME", help="Of rows that name none."),
    click.option("--queue", metavar="NAME", help="Of rows that name none."),
    click.option("--zone", metavar="ZONE", help="Of a column local, where rows name none: Europe/Paris, +02:00."),
    click.option(
        "--gap", type=click.Choice(GAPS), default="later", show_default=True, help="Of times that are skipped."
    ),
    click.option(
        "--fold", type=click.Choice(FOLDS), default="first", show_default=True, help="Of times that come twice."
    ),
    click.option(
        "--past", type=click.Choice(["run", "reject"]), default="run", show_default=True, help="What is due already."
    ),
    click.option("--jitter", type=Length(), default="0", help="Spread over this time: 30s, 5m. The same in each run."),
    click.option("--herd", "least", type=click.IntRange(2), default=100, show_default=True, help="Fewer are no herd."),
    click.option("--dry-run", is_flag=True, help="Say what would be, and write nothing to the store."),
    output,
)

#: As RFC 4180 and whoever writes CSV have it: a quote within quotes is doubled, a backslash is a backslash (JSON needs
#: both), and a text may go over several lines. By itself Spark takes none of this so.
CSV = {"header": "true", "escape": '"', "multiLine": "true"}

#: A longer span is shown by hours.
MINUTES_UP_TO_S = 3 * 86_400


def load(before: DataFrame, added: DataFrame, unit_s: int) -> DataFrame:
    """(at, before, after) by ``unit_s`` seconds; both as ``forecast.due`` gives them, in whole seconds from 1970."""
    at = f.timestamp_seconds(f.expr(f"second - pmod(second, {unit_s}L)")).alias("at")
    both = before.select("second", f.col("n").alias("before"), f.lit(0).alias("added"))
    both = both.unionByName(added.select("second", f.lit(0).alias("before"), f.col("n").alias("added")))
    found = both.groupBy(at).agg(f.sum("before").alias("before"), f.sum("added").alias("added"))
    return found.select("at", "before", (f.col("before") + f.col("added")).alias("after"))


def due(good: DataFrame) -> DataFrame:
    """(queue, task, second, n) of rows that are to be loaded."""
    queue = f.col("queue") if "queue" in good.columns else f.lit(None).cast("string")
    placed = good.select(queue.alias("queue"), "task", f.unix_millis("eta").alias("due_ms"))
    return forecast.due(placed)[0]


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    if not given["batch"] and not given["dry_run"]:
        raise SettingError("--batch must name this load, so that the same job run again loads once; or use --dry-run")
    output = Output(given["output"], NAME)
    tell("reading")
    found = rows.judged(_rows(spark, given), _rules(given)).persist()
    try:
        counts = output.rejects(rows.rejected(found))
        good = rows.good(found, given["id_column"])
        was_loaded = bool(given["batch"]) and _loaded(good, given) is not None
        facts = _looked_at(spark, given, good, was_loaded, output, tell)
        facts |= {"rows": facts["good"] + sum(counts.values()), "rejects": counts, "batch": given["batch"]}
        if not given["dry_run"]:
            facts |= {"loaded": 0, "was_loaded": was_loaded}
            # A name whose load has no rows would be taken, and the same rows, once they are right, be left out.
            if facts["good"]:
                tell("scheduling")
                facts |= _scheduled(good, given)
    finally:
        found.unpersist()
    findings = facts["rows"] if not facts["good"] and not given["dry_run"] else 0
    summary = Summary(NAME, facts, _words(facts, given), findings)
    output.finish(summary)
    return summary


def _rows(spark: SparkSession, given: Mapping[str, Any]) -> DataFrame:
    path, jdbc = given["path"], given["jdbc"]
    if bool(path) == bool(jdbc):
        raise SettingError("one of --rows and --jdbc must say what to schedule")
    if given["table"] and not jdbc:
        raise SettingError("--table is of a database: --jdbc must say which")
    if jdbc:
        if not given["table"]:
            raise SettingError("--table must say what of --jdbc to schedule")
        found = spark.read.format("jdbc").option("url", jdbc).option("dbtable", given["table"]).load()
    elif path.removesuffix(".gz").endswith(".csv"):
        found = spark.read.options(**CSV).csv(path)
    elif path.endswith(inputs.JSON):
        found = spark.read.option("columnNameOfCorruptRecord", inputs.BROKEN).json(path)
    else:
        found = inputs.parquet(spark, path)
    if given["sql"]:
        found.createOrReplaceTempView("rows")
        found = spark.sql(given["sql"])
    return found


def _rules(given: Mapping[str, Any]) -> rows.Rules:
    return rows.Rules(
        now_ms=_now_ms(),
        task=given["task"],
        queue=given["queue"],
        zone=given["zone"],
        gap=given["gap"],
        fold=given["fold"],
        past=given["past"] == "run",
        id=given["id_column"],
        jitter_ms=round(given["jitter"] * 1_000),
    )


def _looked_at(
    spark: SparkSession,
    given: Mapping[str, Any],
    good: DataFrame,
    was_loaded: bool,
    output: Output,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The load before and after; the herds that there would be. Rows of a batch that was loaded add nothing."""
    tell("what is pending, and what would be")
    on_the_way = _on_the_way(given["store"])
    now_s = _now_ms() // 1_000
    before = forecast.due(inputs.table(spark, {"store": given["store"]}, "pending", forecast.COLUMNS))[0]
    added = due(good).persist()
    try:
        ends = f.min("second").alias("first"), f.max("second").alias("last"), f.sum("n").alias("n")
        [span] = added.agg(*ends).collect()
        unit_s = 60 if span.n and span.last - span.first <= MINUTES_UP_TO_S else 3_600
        new = added.limit(0) if was_loaded else added
        table = output.table("load", load(before, new, unit_s).orderBy("at")).to_pylist()
        herds = forecast.herds(before.unionByName(new), now_s, now_s - forecast.WINDOW_S, given["least"], {})
        found = output.table("herds", herds.orderBy("second", "queue")).to_pylist()
    finally:
        added.unpersist()

    def draw() -> Any:
        from celery_wheel.pipeline.plot import load as plot

        return plot(table, found, "minute" if unit_s == 60 else "hour")

    return {
        "good": int(span.n or 0),
        "first": None if span.first is None else _instant(span.first),
        "last": None if span.last is None else _instant(span.last),
        "busiest": max(table, key=lambda row: row["after"], default=None),
        "unit_s": unit_s,
        "on_the_way": on_the_way,
        "herds": len(found),
        "worst_herds": sorted(found, key=lambda herd: -herd["n"])[:10],
        "picture": output.picture(draw),
    }


def _on_the_way(url: str | None) -> int:
    """Messages of loads that are committed and were not taken in: they are not in ``pending`` yet."""
    with opened(store_of(url)) as store:
        return store.loads.count_waiting()


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    """Of the write. The store is said, also where it is the environment's: a remote Spark has another."""
    options = {"batch": given["batch"], "url": store_of(given["store"]), "app": given["app"]}
    options["key"] = rows.ID if given["id_column"] else None
    return {name: value for name, value in options.items() if value}


def _loaded(good: DataFrame, given: Mapping[str, Any]) -> Load | None:
    """The batch, where it is loaded already."""
    where = target(_options(given), good.schema)
    with opened(where.url) as store:
        found = store.loads.of_name(where.batch)
    return found if found is not None and found.is_loaded else None


def _scheduled(good: DataFrame, given: Mapping[str, Any]) -> dict[str, Any]:
    """Looks once more: minutes may have passed since, in which another one has loaded it."""
    was_loaded = _loaded(good, given) is not None
    began = time.monotonic()
    if not was_loaded:
        good.write.format("wheel").mode("append").options(**_options(given)).save()
    done = _loaded(good, given)
    if done is None:
        raise FileUnusable(f"the batch {given['batch']!r} was taken away while it was loaded")
    return {"loaded": 0 if was_loaded else done.rows, "was_loaded": was_loaded, "seconds": time.monotonic() - began}


def _words(facts: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    due = f", due from {facts['first']} to {facts['last']}" if facts["good"] else ""
    words = [f"{facts['rows']:,} rows: {facts['good']:,} can be scheduled{due}"]
    words += [f"rejected: {count:,} x {why}" for why, count in list(facts["rejects"].items())[:10]]
    if facts["rejects"] and not given["output"]:
        words.append("--output DIR keeps what is rejected, each row with its reason")
    if busiest := facts["busiest"]:
        unit = "minute" if facts["unit_s"] == 60 else "hour"
        words.append(
            f"busiest {unit}: {busiest['after']:,} due at {busiest['at']}, {busiest['before']:,} without these"
        )
    if facts["on_the_way"]:
        words.append(
            f"not counted in this: {facts['on_the_way']:,} of earlier loads, which no scheduler has taken in yet"
        )
    words += [
        f"herd: {herd['n']:,} on {herd['queue']} at {herd['second']}, mostly {herd['tasks'][0]['task']}; "
        f"--jitter {herd['jitter_s']}s spreads it"
        for herd in facts["worst_herds"]
    ]
    if given["dry_run"]:
        words.append("nothing was scheduled: this was a dry run")
    elif not facts["good"]:
        words.append("nothing was scheduled: there is no row that can be")
    elif facts["was_loaded"]:
        words.append(f"nothing was scheduled: the batch {given['batch']} was loaded before")
    else:
        if facts["rejects"]:
            words.append("what was rejected needs a batch of another name, once it is right: this one is loaded")
        but = f"; but for those whose {given['id_column']} the store knows already" if given["id_column"] else ""
        words.append(
            f"{facts['loaded']:,} tasks are scheduled as the batch {given['batch']}, in {facts['seconds']:.1f} s{but}"
        )
    return words


def _instant(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
