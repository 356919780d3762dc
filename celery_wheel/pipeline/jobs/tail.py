"""``tail``: the history as a stream into Parquet, each event once, also after a kill.

With ``--every`` the job runs until it is stopped; else it ends when the present events are written. The summary counts
the events of the last 100 micro-batches, which is all that Spark remembers. Read the folder with Spark, which knows
which files count. ``archive`` writes the same rows sorted, for every reader; ``tail`` has them sooner.
"""

from __future__ import annotations

import click
from pyspark.sql import SparkSession

from celery_wheel.console import parameters
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.inputs import resolve_store, store_option
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress
from celery_wheel.pipeline.source.options import STARTS
from celery_wheel.pipeline.tables import tail

NAME = "tail"
OPTIONS = (
    store_option,
    click.option("--output", metavar="DIR", required=True, help="Folder for the Parquet files; read it with Spark."),
    click.option("--checkpoint", metavar="DIR", help="Folder for the progress; default: --output with .checkpoint."),
    parameters.length("--every", help="Run until stopped, with a micro-batch every 10s, 1m, …"),
    click.option("--starting-at", type=click.Choice(STARTS), help="Start without a checkpoint; default: earliest."),
    click.option("--max-rows", type=click.IntRange(1), help="Rows of a micro-batch, about."),
    click.option("--allow-loss", is_flag=True, help="Continue where retention removed unread events."),
)


def check(options: Options) -> None:
    if options["every"] is not None and options["every"] < 0.1:
        raise SettingError("--every must be 100ms or more; without it, tail writes all present events and ends")
    resolve_store(options["store"])


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    output = options["output"].rstrip("/")
    query = tail(
        spark,
        options["store"],
        output,
        options["checkpoint"] or f"{output}.checkpoint",
        every=None if options["every"] is None else f"{round(options['every'] * 1_000)} milliseconds",
        startingAt=options["starting_at"],
        maxRows=options["max_rows"],
        failOnLoss="false" if options["allow_loss"] else None,
    )
    progress(f"writing to {output}")
    try:
        query.awaitTermination()
    finally:
        query.stop()  # after Ctrl-C, too: no micro-batch keeps running
    # Added up by source: Spark Connect lacks the total.
    rows = [sum(int(source["numInputRows"]) for source in batch["sources"]) for batch in query.recentProgress]
    facts = {"rows": sum(rows), "batches": len(rows), "output": output}
    words = f"{facts['rows']:,} events in the last {len(rows):,} micro-batches are new in {output}"
    return JobSummary(NAME, facts, [words])
