"""``erase``: the events of a task, of a key or of a group removed from an archive, after the store has erased them.

The files that have any are written anew without them, the manifest names the new files, and every replaced file is
removed at once: a reader that began before may fail, and reads again. The store must be erased before, or its next run
of ``archive`` brings history of it that is not archived yet. An archive has no arguments, headers and bodies; its
columns are the task's id and name, queue, key, group, times and the reason of an outcome.
"""

from __future__ import annotations

import click
from pyspark.sql import SparkSession

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.archive import ArchiveFolder, erase_events
from celery_wheel.pipeline.inputs import archive_option
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress
from celery_wheel.store.erasure_model import digest_of_name
from celery_wheel.values.format import format_count
from celery_wheel.values.instants import now_ms

NAME = "erase"
#: The columns by which events are erased; an archive does not have the schedule of a task.
COLUMNS = ("task_id", "key", "group")
OPTIONS = (
    archive_option,
    click.option("--task-id", metavar="ID", help="Erase the events of the task with this id."),
    click.option("--key", help="Erase the events of the tasks with this key."),
    click.option("--group", help="Erase the events of the tasks of this group."),
)


def check(options: Options) -> None:
    if len(_named(options)) != 1:
        raise SettingError("erase must have one of --task-id, --key and --group; nothing was changed")


def _named(options: Options) -> dict[str, str]:
    return {name: options[name] for name in COLUMNS if options[name] is not None}


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    [(column, value)] = _named(options).items()
    days = erase_events(ArchiveFolder(spark, options["archive"]), now_ms(), column, value, progress)
    facts = {"by": column, "digest": digest_of_name(value), "events": sum(days.values()), "days": days}
    words = [f"{day}: {format_count(count, 'event')} erased" for day, count in days.items()] or ["no event matches"]
    return JobSummary(NAME, facts, words)
