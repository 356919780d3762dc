"""``compact``: the small files of an archive's days as few large ones, and files that no longer count removed.

Files that were replaced stay for --keep, for readers and runs that began before, and so do the files of runs that were
killed: ``--keep`` has to be longer than any run of ``archive``. A day with no more files than it needs is left alone.
A file of its own, as each job has one.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.archive import ArchiveFolder, compact_archive
from celery_wheel.pipeline.inputs import archive_option, duration_option
from celery_wheel.pipeline.jobs import JobSummary, Options, Progress
from celery_wheel.values.format import format_count
from celery_wheel.values.instants import now_ms

NAME = "compact"
OPTIONS = (archive_option, duration_option("--keep", "1d", "Time for which replaced files stay."))


def check(options: Options) -> None:
    if options["keep"] < 3_600:
        raise SettingError("--keep must be 1h or more: readers and runs of archive use replaced files that long")


def run(spark: SparkSession, options: Options, progress: Progress) -> JobSummary:
    folder, keep_ms = ArchiveFolder(spark, options["archive"]), round(options["keep"] * 1_000)
    done = compact_archive(folder, now_ms(), keep_ms, progress)
    facts = {"days": {day: [*files] for day, files in done.days.items()}, "removed": done.removed}
    words = [
        f"{day}: {format_count(before, 'file')} are now {after:,}" for day, (before, after) in done.days.items()
    ] or ["no day has more files than its events need"]
    if done.removed:
        words.append(f"{format_count(len(done.removed), 'folder')} of old files removed")
    return JobSummary(NAME, facts, words)
