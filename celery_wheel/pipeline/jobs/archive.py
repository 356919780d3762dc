"""``archive``: the new history as Parquet, in folders by day, written before retention removes it from the store.

An event's number is that of its settlement or outcome: one sequence a shard, in the order of commits. A shard's mark is
the number up to which the archive has every event; ``celery_wheel.pipeline.archive`` has the steps of a run.

Promises: each event is in the archive once (by lane, position and settlement), however often the job is killed and runs
again; one that was dispatched twice is two events. A reader sees the archive before a run or after it. A run costs what
is new. The events of a task and the messages of a key are in order (``ORDER``), also after a clock was set back. The
mark moves only after the rows were read back and counted. The job reports events that retention removed unarchived,
with exit code 1.
Non-promises: the archive lacks the first dispatch of a row that was repeated, cancelled or moved before it was
archived. Across a reshard a key has two shards. Without ``wheel_history_archive`` the events that a reshard removes are
not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.pipeline.archive import Archived, ArchiveFolder, ArchiveRun, count_outcomes, with_day
from celery_wheel.pipeline.inputs import resolve_store, store_option
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress
from celery_wheel.pipeline.source.options import format_events
from celery_wheel.pipeline.source.statements import HISTORY
from celery_wheel.pipeline.tables import read
from celery_wheel.values.format import format_count

NAME = "archive"
OPTIONS = (
    store_option,
    click.option(
        "--output", metavar="DIR", required=True, help="Folder of the archive, or a path that Spark can write."
    ),
    click.option("--no-mark", is_flag=True, help="Set no mark in the store: for a second archive, a read-only role."),
    click.option("--allow-loss", is_flag=True, help="Exit with 0 also where retention removed events unarchived."),
)


def check(options: Options) -> None:
    resolve_store(options["store"])


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    url, folder, mark = resolve_store(options["store"]), ArchiveFolder(spark, options["output"]), not options["no_mark"]
    folder.refuse_stream_output()

    def events(ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        return with_day(read(spark, HISTORY, url, events=format_events(ranges)))

    facts = {**_facts(ArchiveRun(folder, url, events, mark=mark, progress=progress).run()), "marked": mark}
    return JobSummary(NAME, facts, _words(facts), 0 if options["allow_loss"] else len(facts["lost"]))


def _facts(done: Archived) -> dict[str, Any]:
    outcomes, days = count_outcomes(done.files), done.manifest.days()
    return {
        "events": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())),
        "days": {day: days[day] for day in sorted({file.day for file in done.files})},
        "marks": {str(shard): mark for shard, mark in sorted(done.manifest.marks.items())},
        "lost": done.lost,
        "gaps": done.manifest.gaps,
    }


def _words(facts: Mapping[str, Any]) -> list[str]:
    words = ["no new events"]
    if facts["events"]:
        by_outcome = ", ".join(f"{count:,} {outcome}" for outcome, count in facts["outcomes"].items())
        words = [f"{format_count(facts['events'], 'event')} archived: {by_outcome}; days: {', '.join(facts['days'])}"]
    for lost in facts["lost"]:
        before = f", from before {lost['before']}," if lost["before"] else ""
        words.append(
            f"lost: of shard {lost['shard']}, events with numbers above {lost['after']} and up to {lost['upto']}"
            f"{before} were removed by retention before they were archived; set wheel_history_archive = True, or "
            "archive more often than wheel_history_retention"
        )
    if not facts["marked"]:
        words.append("the store's mark was not moved (--no-mark)")
    return words
