"""``schedule``: the rows of a file, a table or a query as pending tasks, all of them or none.

``celery_wheel.pipeline.task_rows`` describes the columns; ``--sql`` derives them from other columns. A batch has a name
and is loaded once: a repeated job with the same name writes nothing, or resumes a load that was interrupted. With
``--id`` a row is scheduled once whatever its batch.

The job computes the load before it writes anything: due tasks by minute (by hour for more than three days), before and
with these rows; and the herds of which some tasks are of these rows, with the jitter that spreads them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.pipeline import inputs, task_rows
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress, forecast
from celery_wheel.pipeline.output import OutputFolder, first_rows
from celery_wheel.pipeline.source.options import check_columns, read_target
from celery_wheel.pipeline.source.statements import open_for_reading
from celery_wheel.pipeline.tables import write
from celery_wheel.pipeline.task_rows import FOLDS, GAPS
from celery_wheel.store.store_model import BulkLoad
from celery_wheel.values.instants import now_ms

NAME = "schedule"
OPTIONS = (
    inputs.store_option,
    click.option(
        "--rows",
        "path",
        metavar="PATH",
        help="Parquet, also a folder; CSV with a header (.csv); JSON lines (.jsonl, .json, .ndjson); also .gz.",
    ),
    click.option("--jdbc", metavar="URL", help="Database of --table; Spark needs its driver (spark-submit --jars)."),
    click.option("--table", metavar="NAME", help="Table of --jdbc, or a query in parentheses with a name."),
    click.option(
        "--delimiter", metavar="TEXT", default=",", show_default=True, help="Separator of a CSV's values; \\t is a tab."
    ),
    click.option(
        "--quote",
        metavar="CHARACTER",
        default='"',
        show_default=True,
        help="Quote around texts of a CSV that have a separator or several lines; doubled, it stands for itself.",
    ),
    click.option(
        "--encoding", metavar="NAME", default="UTF-8", show_default=True, help="Encoding of a CSV, by its Java name."
    ),
    click.option(
        "--row-a-line", is_flag=True, help="Promise that no text of the CSV has several lines: Spark reads it in parts."
    ),
    click.option(
        "--sql", metavar="SELECT", help="Query of Spark that makes the columns from the rows: SELECT … FROM rows."
    ),
    click.option(
        "--batch",
        metavar="NAME",
        help="Name of this load, required without --dry-run; a batch is loaded once, or resumed.",
    ),
    click.option("--id", "id_column", metavar="COLUMN", help="Column whose value makes a row idempotent in any batch."),
    click.option("--app", metavar="PROJ:APP", help="App whose routes and task options apply; executors import it."),
    click.option("--task", metavar="NAME", help="Task of rows that name none."),
    click.option("--queue", metavar="NAME", help="Queue of rows that name none."),
    click.option("--zone", metavar="ZONE", help="Zone of local times without one: Europe/Paris, +02:00."),
    inputs.choice_option("--gap", GAPS, "Rule for local times that do not exist."),
    inputs.choice_option("--fold", FOLDS, "Rule for local times that occur twice."),
    inputs.choice_option("--past", ("run", "reject"), "Rule for tasks that are already due."),
    inputs.duration_option("--jitter", "0", "Largest delay of a row: 30s, 5m. Equal in each run."),
    inputs.herd_option,
    click.option("--dry-run", is_flag=True, help="Report the load, and write nothing to the store."),
    inputs.output_option,
)

#: The most minutes or hours of the picture, the first ones.
DRAWN_POINTS = 10_000


def load(before: DataFrame, added: DataFrame, unit_s: int) -> DataFrame:
    """Return (at, before, after) by ``unit_s`` seconds; both arguments are in the form of ``forecast.due``."""
    at = f.timestamp_seconds(f.expr(f"second - pmod(second, {unit_s}L)")).alias("at")
    both = before.select("second", f.col("n").alias("before"), f.lit(0).alias("added"))
    both = both.unionByName(added.select("second", f.lit(0).alias("before"), f.col("n").alias("added")))
    units = both.groupBy(at).agg(f.sum("before").alias("before"), f.sum("added").alias("added"))
    return units.select("at", "before", (f.col("before") + f.col("added")).alias("after"))


def due(valid: DataFrame) -> DataFrame:
    """Return the tasks to load in the form of ``forecast.due``."""
    queue = f.col("queue") if "queue" in valid.columns else f.lit(None).cast("string")
    timed = valid.select(queue.alias("queue"), "task", f.unix_millis("eta").alias("due_ms"))
    return forecast.due(timed)[0]


def check(options: Options) -> None:
    path, jdbc = options["path"], options["jdbc"]
    if not options["batch"] and not options["dry_run"]:
        raise SettingError("--batch must name this load, so that a repeated job loads it once; or use --dry-run")
    if bool(path) == bool(jdbc):
        raise SettingError("one of --rows and --jdbc must name the rows to schedule")
    if options["table"] and not jdbc:
        raise SettingError("--table must go with --jdbc, which names its database")
    if jdbc and not options["table"]:
        raise SettingError("--table must name the table of --jdbc to schedule")
    _rules(options)
    inputs.resolve_store(options["store"])


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = OutputFolder(options["output"], NAME)
    progress("reading")
    checked = task_rows.check_rows(_read_rows(spark, options), _rules(options)).persist()
    try:
        valid = task_rows.valid_tasks(checked, options["id_column"])
        check_columns(valid.schema, task_rows.ID if options["id_column"] else None)  # a dry run has no write to do so
        counts = output.rejects(task_rows.rejected_rows(checked))
        was_loaded = bool(options["batch"]) and _loaded_batch(valid, options) is not None
        facts = _load_facts(spark, options, valid, was_loaded, output, progress)
        facts |= {"rows": facts["good"] + sum(counts.values()), "rejects": counts, "batch": options["batch"]}
        if not options["dry_run"]:
            facts |= {"loaded": 0, "was_loaded": was_loaded}
            # An empty load would use up the name of the batch, and the corrected rows could not be loaded under it.
            if facts["good"]:
                progress("scheduling")
                facts |= _schedule(valid, options)
    finally:
        checked.unpersist()
    findings = facts["rows"] if not facts["good"] and not options["dry_run"] else 0
    return output.finish(JobSummary(NAME, facts, _words(facts, options), findings))


def _read_rows(spark: SparkSession, options: Options) -> DataFrame:
    path, jdbc = options["path"], options["jdbc"]
    if jdbc:
        rows = spark.read.format("jdbc").option("url", jdbc).option("dbtable", options["table"]).load()
    elif path.removesuffix(".gz").endswith(".csv"):
        rows = _read_csv(spark, path, options)
    elif path.endswith(inputs.JSON):
        rows = _read_json(spark, path)
    else:
        rows = inputs.read_parquet(spark, path)
    if options["sql"]:
        rows.createOrReplaceTempView("rows")
        rows = spark.sql(options["sql"])
    return rows


def _read_csv(spark: SparkSession, path: str, options: Options) -> DataFrame:
    """Read a CSV as RFC 4180 has it: a quote within quotes is doubled, and a backslash is a plain character.

    JSON needs both, and a text may have several lines. Spark's defaults differ in all of this.
    """
    sep, quote = options["delimiter"].replace("\\t", "\t"), options["quote"]
    form = {"header": "true", "sep": sep, "quote": quote, "escape": quote, "encoding": options["encoding"]}
    rows = spark.read.options(**form, multiLine=not options["row_a_line"]).csv(path)
    if len(rows.columns) == 1:
        for other in (";", "\t", "|", ","):
            if other != sep and other in rows.columns[0]:
                raise SettingError(
                    f"{path} has a single column, {rows.columns[0]!r:.80}: its values seem to be separated by "
                    f"{other!r}; give --delimiter {other!r}"
                )
    return rows


def _read_json(spark: SparkSession, path: str) -> DataFrame:
    """Read JSON lines; arguments keep their own text, since a struct of all lines would add nulls to each of them."""
    read = spark.read.option("columnNameOfCorruptRecord", inputs.BROKEN)
    rows = read.json(path)
    if not {"args", "kwargs"} & {*rows.columns}:
        return rows
    fields = [StructField(one.name, StringType()) if one.name in ("args", "kwargs") else one for one in rows.schema]
    return read.schema(StructType(fields)).json(path)


def _rules(options: Options) -> task_rows.RowRules:
    given = {name: options[name] for name in ("task", "queue", "zone", "gap", "fold")}
    is_past_run, jitter_ms = options["past"] == "run", round(options["jitter"] * 1_000)
    return task_rows.RowRules(now_ms(), past=is_past_run, id=options["id_column"], jitter_ms=jitter_ms, **given)


def _load_facts(
    spark: SparkSession,
    options: Options,
    valid: DataFrame,
    was_loaded: bool,
    output: OutputFolder,
    progress: Progress,
) -> dict[str, Any]:
    progress("computing the load")
    with open_for_reading(inputs.resolve_store(options["store"])) as store:
        not_accepted = store.loads.count_pending()
    now_s = now_ms() // 1_000
    added = due(valid).persist()
    try:
        measures = f.min("second").alias("first"), f.max("second").alias("last"), f.sum("n").alias("n")
        [span] = added.agg(*measures).collect()
        unit_s = 60 if span.n and span.last - span.first <= 3 * 86_400 else 3_600
        before = _due_around(spark, options, span, unit_s)
        new = added.limit(0) if was_loaded else added  # rows of a batch that is already loaded add nothing
        shown = f.col("second").between(*_units(span, unit_s))
        after = output.table("load", load(before.where(shown), new, unit_s).orderBy("at"))
        all_herds = forecast.herds(before.unionByName(new), now_s, now_s - forecast.WINDOW_S, options["least"], {})
        places = new.select(f.col("queue").alias("new_queue"), f.timestamp_seconds("second").alias("at")).distinct()
        same = f.col("queue").eqNullSafe(f.col("new_queue")) & (f.col("second") == f.col("at"))
        herds = output.table("herds", all_herds.join(places, same, "left_semi").orderBy("second", "queue"))
    finally:
        added.unpersist()
    unit = "minute" if unit_s == 60 else "hour"
    points = first_rows(after.orderBy("at"), DRAWN_POINTS)
    largest = first_rows(herds.orderBy(f.desc("n"), "second", "queue"), forecast.DRAWN_HERDS)
    return {
        "good": int(span.n or 0),
        "first": None if span.first is None else _utc(span.first),
        "last": None if span.last is None else _utc(span.last),
        "busiest": next(iter(first_rows(after.orderBy(f.desc("after"), "at"), 1)), None),
        "unit_s": unit_s,
        "not_accepted": not_accepted,
        "herds": herds.count(),
        "worst_herds": largest[: forecast.NAMED_HERDS],
        "picture": output.picture(lambda plot: plot.load(points, largest, unit)),
    }


def _units(span: Row, unit_s: int) -> tuple[int, int]:
    """Return the first and the last second of the units in which the rows are due; none where there are no rows."""
    if not span.n:
        return 0, -1
    return span.first - span.first % unit_s, span.last - span.last % unit_s + unit_s - 1


def _due_around(spark: SparkSession, options: Options, span: Row, unit_s: int) -> DataFrame:
    """Return the pending tasks about the time of the rows, in the form of ``forecast.due``.

    A short span is read by its times, and the rest of the store is not; a long one as a whole, in many parts at once.
    """
    first, last = _units(span, unit_s)
    times = {"dueFrom": (first - forecast.WINDOW_S) * 1_000, "dueTo": (last + 1 + forecast.WINDOW_S) * 1_000}
    within = times if unit_s == 60 or not span.n else {}
    store = {"store": options["store"]}
    return forecast.due(inputs.read_table(spark, store, "pending", forecast.COLUMNS, **within))[0]


def _write_options(options: Options) -> dict[str, str]:
    """Return the options of the write. They name the environment's store too: a remote Spark has another one."""
    values = {name: options[name] for name in ("batch", "app")} | {"url": inputs.resolve_store(options["store"])}
    values |= {"key": task_rows.ID} if options["id_column"] else {}
    return {name: value for name, value in values.items() if value}


def _loaded_batch(valid: DataFrame, options: Options) -> BulkLoad | None:
    target = read_target(_write_options(options), valid.schema)
    with open_for_reading(target.url) as store:
        load = store.loads.by_name(target.batch)
    return load if load is not None and load.is_loaded else None


def _schedule(valid: DataFrame, options: Options) -> dict[str, Any]:
    """Write the tasks, unless another job has loaded the batch since the first check, minutes ago."""
    was_loaded = _loaded_batch(valid, options) is not None
    began = time.monotonic()
    if not was_loaded:
        write(valid, **_write_options(options))
    done = _loaded_batch(valid, options)
    if done is None:
        raise FileUnusable(f"the batch {options['batch']!r} was removed while it was loaded; run the job again")
    return {"loaded": 0 if was_loaded else done.rows, "was_loaded": was_loaded, "seconds": time.monotonic() - began}


def _words(facts: Mapping[str, Any], options: Options) -> list[str]:
    due = f", due from {facts['first']} to {facts['last']}" if facts["good"] else ""
    words = [f"{facts['rows']:,} rows: {facts['good']:,} can be scheduled{due}"]
    words += [f"rejected: {count:,} x {kind}" for kind, count in facts["rejects"].items()]
    if facts["rejects"] and not options["output"]:
        words.append("--output DIR keeps the rejected rows, each with its reason")
    if busiest := facts["busiest"]:
        unit = "minute" if facts["unit_s"] == 60 else "hour"
        words.append(
            f"busiest {unit}: {busiest['after']:,} due at {busiest['at']}, {busiest['before']:,} without these rows"
        )
    if facts["not_accepted"]:
        words.append(f"not counted: {facts['not_accepted']:,} tasks of earlier loads, not yet accepted by a scheduler")
    words += [
        f"herd: {herd['n']:,} on {herd['queue']} at {herd['second']}, mostly {herd['tasks'][0]['task']}; "
        f"--jitter {herd['jitter_s']}s spreads it"
        for herd in facts["worst_herds"]
    ]
    if options["dry_run"]:
        words.append("nothing was scheduled: this was a dry run")
    elif not facts["good"]:
        words.append("nothing was scheduled: no row is valid")
    elif facts["was_loaded"]:
        words.append(f"nothing was scheduled: the batch {options['batch']} was loaded before")
    else:
        if facts["rejects"]:
            words.append("load the rejected rows, once corrected, as a batch of another name: this one is loaded")
        but = f"; except those whose {options['id_column']} the store has already" if options["id_column"] else ""
        words.append(
            f"{facts['loaded']:,} tasks are scheduled as the batch {options['batch']}, in {facts['seconds']:.1f} s{but}"
        )
    return words


def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
