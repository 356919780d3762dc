"""``archive``: history as Parquet, a folder a day, before retention takes it out of the store.

::

    store ─► events in (mark, number] of each shard ─┐
    archive ─► what the same days have ──────────────┴─► each event once ─► _staging, counted ─► state "staged" ─┐
                                                                                                                 │
    state "done" ◄─ the mark in the store ◄─ counted ◄─ its days are replaced, in order ◄────────────────────────┘

    DIR/day=2026-11-20/part-….parquet     of UTC; the messages of one key are in their order
    DIR/_staging  DIR/_state              of the run under way; readers pass over names with an underscore

An event's number is that of its settlement, or of its outcome: one sequence a shard, in the order of commits. So what
is in (mark, number] is the same however often it is asked for, and nothing comes into it later.

Promises
    1. Each event is in the archive once, however often the job runs, is killed and runs again: IDENTITY says which is
       which. A message that left twice, as after a rollback of the broker, is two events.
    2. A run that was killed before "staged" has changed no day; after it, the next run finishes it before all else.
    3. The order per key is kept: a key's messages are in one shard, and a shard's events are in the order of their
       numbers, also where a clock was put back.
    4. The mark moves only after the rows were read back and counted, and no day has fewer than before. With
       ``wheel_history_archive`` the store forgets nothing beyond it.
    5. What the store forgot before it was archived is told, and is exit code 1: the shard's row says how far it forgot
       (``celery_wheel.store.archived``).

Non-promises
    Two runs at a time into one archive: one stops where it sees the other. Between replacing days and "done" a reader
    may see a day without its rows. Of a row that is sent again by ``celery wheel replay`` before its first departure
    was archived, that departure is not in the store, and so not here; no more is it of one that a rollback of the
    broker had wait again, and that was then cancelled or moved. Across a reshard a key has two shards: sort by ``at``.
    Without ``wheel_history_archive``, nothing tells what a reshard took away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import click
from pyspark.sql import SparkSession

from celery_wheel.pipeline.archive.run import Run
from celery_wheel.pipeline.archive.state import State
from celery_wheel.pipeline.jobs.outer import store, store_of
from celery_wheel.pipeline.summary import Summary
from celery_wheel.present import many

NAME = "archive"
HELP = "History as Parquet, a folder a day; each event once, before retention forgets it."
OPTIONS = (
    store,
    click.option("--output", metavar="DIR", required=True, help="The archive: a folder, or what else Spark can write."),
    click.option(
        "--no-mark", is_flag=True, help="Leave the store as it is: for a second archive, or a role that reads."
    ),
    click.option("--allow-loss", is_flag=True, help="Exit code 0 also where the store forgot what was not archived."),
)


def run(spark: SparkSession, given: Mapping[str, Any], tell: Callable[[str], None]) -> Summary:
    job = Run(spark, store_of(given["store"]), given["output"].rstrip("/"), mark=not given["no_mark"], tell=tell)
    facts = {**_facts(job, job.run()), "marked": not given["no_mark"]}
    return Summary(NAME, facts, _words(facts), 0 if given["allow_loss"] else len(facts["lost"]))


def _facts(job: Run, state: State) -> dict[str, Any]:
    outcomes, days = Counter[str](), dict[str, int]()
    for done in job.done:
        outcomes.update(done.added)
        days |= done.days
    return {
        "events": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())),
        "days": dict(sorted(days.items())),
        "marks": {str(shard): mark for shard, mark in sorted(state.marks.items())},
        "finished": job.finished,
        "lost": [one for done in job.done for one in done.lost],
        "gaps": state.gaps,
    }


def _words(facts: Mapping[str, Any]) -> list[str]:
    words = ["a run that was broken off was finished"] if facts["finished"] else []
    if facts["events"]:
        of = ", ".join(f"{count:,} {outcome}" for outcome, count in facts["outcomes"].items())
        words.append(f"{many(facts['events'], 'event')} archived: {of}; days: {', '.join(facts['days'])}")
    else:
        words.append("nothing new")
    for one in facts["lost"]:
        before = f", from before {one['before']}" if one["before"] else ""
        words.append(
            f"lost: of shard {one['shard']}, events with numbers above {one['after']} and up to {one['upto']}{before} "
            "were forgotten before they were archived; set wheel_history_archive = True, or archive more often than "
            "wheel_history_retention"
        )
    if not facts["marked"]:
        words.append("the store's mark is as it was (--no-mark)")
    return words
