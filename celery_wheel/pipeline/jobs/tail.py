"""``tail``: history into Parquet as it comes, each event once, whatever is killed.

::

    store ─► events since the checkpoint ─► micro-batches ─► DIR/day=2026-11-20/part-….parquet ─► the checkpoint

The events that it names in the end are those of the last micro-batches that Spark remembers, 100 of them.

With ``--every`` it goes on for good; without, it ends when all that was there is written: for cron.

``archive`` has the same rows, sorted, for every reader, and lets the store forget them. This one is for who wants them
soon: a dashboard, an alarm, a table in the lake. Its folder has to be read with Spark, which knows which files count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from pyspark.sql import SparkSession

from celery_wheel.cli.options import Length
from celery_wheel.errors import SettingError
from celery_wheel.pipeline.jobs.outer import store
from celery_wheel.pipeline.source.options import STARTS
from celery_wheel.pipeline.summary import Summary
from celery_wheel.pipeline.tables import tail

NAME = "tail"
HELP = "History into Parquet as it comes: each event once, whatever is killed."
OPTIONS = (
    store,
    click.option("--output", metavar="DIR", required=True, help="Folder for the Parquet, which Spark is to read."),
    click.option("--checkpoint", metavar="DIR", help="How far it is; default: --output and .checkpoint."),
    click.option("--every", type=Length(), help="Go on for good, with a micro-batch in each such time: 10s, 1m."),
    click.option("--starting-at", type=click.Choice(STARTS), help="Without a checkpoint; default: earliest."),
    click.option("--max-rows", type=click.IntRange(1), help="About so many rows a micro-batch."),
    click.option("--allow-loss", is_flag=True, help="Go on where the store forgot events before they were read."),
)


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    if given["every"] is not None and given["every"] < 0.1:
        raise SettingError("--every must be 100ms or more; without it, tail writes all there is and ends")
    output = given["output"].rstrip("/")
    query = tail(
        spark,
        given["store"],
        output,
        given["checkpoint"] or f"{output}.checkpoint",
        every=None if given["every"] is None else f"{round(given['every'] * 1_000)} milliseconds",
        startingAt=given["starting_at"],
        maxRows=given["max_rows"],
        failOnLoss="false" if given["allow_loss"] else None,
    )
    tell(f"writing to {output}")
    try:
        query.awaitTermination()
    finally:
        query.stop()  # Ctrl-C: no micro-batch is left running
    # Of each source: the sum of them is missing over Spark Connect.
    known = [sum(int(source["numInputRows"]) for source in one["sources"]) for one in query.recentProgress]
    facts = {"rows": sum(known), "batches": len(known), "output": output}
    words = f"{facts['rows']:,} events in the last {len(known):,} micro-batches are new in {output}"
    return Summary(NAME, facts, [words])
