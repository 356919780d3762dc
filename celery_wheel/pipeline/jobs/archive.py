"""``archive``: the history as Parquet, a folder for each day, written before retention removes it from the store.

::

    store ─► events in (mark, number] of each shard ─┐
    archive ─► present events of the same days ──────┴─► each event once ─► _staging, counted ─► state "staged" ─┐
                                                                                                                 │
    state "done" ◄─ mark set in the store ◄─ counted ◄─ days replaced, in order ◄────────────────────────────────┘

    DIR/day=2026-11-20/part-….parquet     day in UTC; the messages of one key are in their order
    DIR/_staging  DIR/_state              of the current run; readers skip names with an underscore

An event's number is that of its settlement or outcome: one sequence a shard, in the order of commits. So the events in
(mark, number] are the same at every read, and none is added later. A shard's mark is the number up to which the archive
has every event.

Promises
    1. Each event is in the archive once, however often the job runs, is killed and runs again; ``IDENTITY`` identifies
       it. A message that was dispatched twice, as after a rollback of the broker, is two events.
    2. A run that is killed before "staged" has changed no day; after it, the next run finishes it first.
    3. The order per key is kept: a key's messages are in one shard, and a shard's events are in the order of their
       numbers, also after a clock was set back.
    4. The mark moves only after the rows were read back and counted, and no day has fewer than before. With
       ``wheel_history_archive`` retention removes nothing beyond the mark.
    5. The job reports events that retention removed before they were archived, with exit code 1: the shard's row says
       up to which number retention has removed events (``celery_wheel.store.sql.archive_floor``).

Non-promises
    Two concurrent runs into one archive: one stops when it detects the other. Between replacing days and "done" a
    reader may see a day without its rows. The archive lacks the first dispatch of a row that ``celery wheel replay``
    repeated before that dispatch was archived, and of a row that became pending again by a rollback of the broker and
    was then cancelled or moved. Across a reshard a key has two shards: sort by ``at``. Without
    ``wheel_history_archive``, events that a reshard removes are not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import click
from pyspark.sql import SparkSession

from celery_wheel.pipeline.archive.run import ArchiveRun
from celery_wheel.pipeline.archive.state import ArchiveState
from celery_wheel.pipeline.jobs.options import resolve_store, store_option
from celery_wheel.pipeline.summary import JobSummary
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


def run(spark: SparkSession, options: Mapping[str, Any], progress: Callable[[str], None]) -> JobSummary:
    url, path = resolve_store(options["store"]), options["output"].rstrip("/")
    job = ArchiveRun(spark, url, path, mark=not options["no_mark"], progress=progress)
    facts = {**_facts(job, job.run()), "marked": not options["no_mark"]}
    return JobSummary(NAME, facts, _words(facts), 0 if options["allow_loss"] else len(facts["lost"]))


def _facts(job: ArchiveRun, last: ArchiveState) -> dict[str, Any]:
    outcomes, days = Counter[str](), dict[str, int]()
    for state in job.done:
        outcomes.update(state.added)
        days |= state.days
    return {
        "events": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())),
        "days": dict(sorted(days.items())),
        "marks": {str(shard): mark for shard, mark in sorted(last.marks.items())},
        "finished": job.finished,
        "lost": [lost for state in job.done for lost in state.lost],
        "gaps": last.gaps,
    }


def _words(facts: Mapping[str, Any]) -> list[str]:
    words = ["an interrupted run was finished"] if facts["finished"] else []
    if facts["events"]:
        by_outcome = ", ".join(f"{count:,} {outcome}" for outcome, count in facts["outcomes"].items())
        words.append(
            f"{format_count(facts['events'], 'event')} archived: {by_outcome}; days: {', '.join(facts['days'])}"
        )
    else:
        words.append("no new events")
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
