"""An archive: the history as Parquet that only grows, and a manifest that names the files that count.

::

    DIR/run=20261120T0800Z-1f2e3d4c/day=2026-11-20/part-….parquet   of one run; no other run ever writes there
    DIR/_manifest/<group>/<marks>-<serial>-<run>/part-….txt         ``celery_wheel.archive.reader`` has its form

    archive    1 manifest read ─► 2 store surveyed ─► 3 new events written to run=… ─► 4 read back, counted
               ─► 5 manifest written ─► 6 the store's mark ─► 7 manifest with that mark
    compact    1 manifest read ─► 2 the files of a day written to run=… as few ─► 3 read back, counted
               ─► 4 manifest written ─► 5 after --keep, the replaced files removed
    erase      as compact, without some events, of the folders that have any; replaced files are removed at once

A run archives (mark, number] of each shard: the same events at every read. A kill before 5 leaves files that nobody
reads, and the next run archives their events again; ``compact`` removes them after --keep. A kill after it leaves the
mark to the next run. A manifest is one file, which Spark moves to its place: never a half. ``commit`` reads the last
manifest, applies its change, writes, and reads again. So a compaction and an archive run both take effect; of two
archive runs the later stops, or the manifest with the higher marks counts. Spark's readers and writers alone are used,
on any storage. Files are sorted by queue, task and number, so that readers skip row groups.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from celery_wheel.archive.reader import GROUP, MANIFESTS, DataFile, Manifest, last_manifest, parse_manifest
from celery_wheel.errors import FileUnusable, StoreUnusable
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA, open_for_reading
from celery_wheel.results.reader import RUN_TIME, began_at
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.store_model import Archivable
from celery_wheel.values.format import format_count
from celery_wheel.values.instants import ms_of, utc

#: A file of about 100 MB; readers skip a row group by its minima and maxima.
ROWS_A_FILE = 1_000_000
WRITE = {"compression": "zstd", "parquet.block.row.count.limit": "100000"}
#: No file ``_SUCCESS``: it says nothing that the manifest does not.
SILENT = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Data files, and those that a killed writer had not moved to their place yet. Spark lists no empty ones.
DATA = "run=*/{day=*,_temporary/0/*/day=*,_temporary/0/_temporary/*/day=*}/*"

T = TypeVar("T")


class ArchiveFolder:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path.rstrip("/")

    def refuse_stream_output(self) -> None:
        """Refuse the folder of a stream: Spark reads it by a file list, which would lack the events of the archive."""
        if none_if_absent(lambda: self._spark.read.text(f"{self.path}/_spark_metadata").schema) is not None:
            raise FileUnusable(f"--output {self.path} is the output of a stream; give the archive a folder of its own")

    def read(self, files: Iterable[DataFile]) -> DataFrame:
        """Return the events of some files, with ``day``; columns that a file lacks are null."""
        paths = [f"{self.path}/{file.path}" for file in files]
        if not paths:
            return self._spark.createDataFrame([], SCHEMA)
        return self._spark.read.schema(SCHEMA).option("basePath", self.path).parquet(*paths).select(*SCHEMA.names)

    def write(self, rows: DataFrame, run: str, count: int) -> list[DataFile]:
        """Write about ``count`` rows into the folder of a run, and return the files as they were read back."""
        folder, observed = f"{self.path}/run={run}", Observation()
        files = sort_events(rows, -(-count // ROWS_A_FILE)).observe(observed, f.count(f.lit(1)).alias("rows"))
        files.write.partitionBy(DAY).options(**WRITE, **SILENT).parquet(folder)
        written = self._spark.read.schema(SCHEMA).option("basePath", self.path).parquet(folder)
        found: dict[str, DataFile] = {}
        for row in written.groupBy("_metadata.file_path", DAY, "outcome").count().collect():
            path = f"run={run}/{row.file_path.rpartition(f'/run={run}/')[2]}"
            found.setdefault(path, DataFile(path, row[DAY], {})).outcomes[row.outcome] = row["count"]
        if sum(file.events for file in found.values()) != observed.get["rows"]:
            raise FileUnusable(
                f"{folder} has {sum(file.events for file in found.values()):,} events, but {observed.get['rows']:,} "
                "were written; nothing else was changed; does another program remove files there? Run the job again"
            )
        return [replace(file, outcomes=dict(sorted(file.outcomes.items()))) for _, file in sorted(found.items())]

    def runs(self) -> set[str]:
        """Return the names of the runs that have any file here, complete or not."""
        paths = self._paths(f"{self.path}/{DATA}")
        return {path.rpartition("/run=")[2].partition("/")[0] for path in paths}

    def remove(self, folder: str) -> None:
        """Remove the files of a folder. Spark overwrites them with none; on a file system the empty folder stays."""
        nothing = self._spark.createDataFrame([], SCHEMA)
        nothing.write.mode("overwrite").partitionBy(DAY).options(**SILENT).parquet(f"{self.path}/{folder}")

    def last(self) -> Manifest | None:
        """Return the manifest that counts; None of a new archive. Raises FileUnusable for that of a later version."""
        path = last_manifest(self._manifests())
        if path is None:
            return None
        [row] = self._spark.read.text(path).collect()
        found = parse_manifest(row.value, path)
        if found.schema > VERSION or any(COLUMNS.get(name, kind) != kind for name, kind in found.columns.items()):
            raise FileUnusable(
                f"the archive {self.path} has columns of version {found.schema}, and this version of celery-wheel "
                f"writes version {VERSION}; nothing was changed; run: pip install -U celery-wheel"
            )
        return found

    def put(self, manifest: Manifest) -> None:
        """Write a manifest, as one file. The first one of a group removes those before the last two groups."""
        rows = self._spark.createDataFrame([(manifest.to_line(),)], "value string").coalesce(1)
        rows.write.options(**SILENT).text(f"{self.path}/{manifest.folder}")
        if manifest.serial % GROUP:
            return
        oldest = f"{manifest.serial // GROUP - 1:08}"
        for group in sorted({path.split("/")[-3] for path in self._manifests()}):
            if group < oldest:
                self.remove(f"{MANIFESTS}/{group}")

    def _manifests(self) -> Sequence[str]:
        return self._paths(f"{self.path}/{MANIFESTS}/*/*")

    def _paths(self, pattern: str) -> list[str]:
        """Return the paths of the files in the folders of a pattern; Spark opens none of them."""
        read = self._spark.read.format("binaryFile")
        rows = none_if_absent(lambda: read.load(pattern).select("path").collect())
        return [row.path for row in rows or []]


def read_archive(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the events of an archive, with ``day``; None where ``path`` is none."""
    folder = ArchiveFolder(spark, path)
    last = folder.last()
    return None if last is None else folder.read(last.files)


def none_if_absent(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


#: The version of the columns. A new column needs the next one; no column is ever removed, renamed or changed.
VERSION = 1
COLUMNS = {field.name: field.dataType.simpleString() for field in HISTORY_SCHEMA.fields}

#: The name of a day's folder, and the column that readers derive from it.
DAY = "day"
#: With the type of DAY, because Spark would read it as a date.
SCHEMA = StructType([*HISTORY_SCHEMA.fields]).add(DAY, StringType())

#: The order of a shard's events, which is that of its numbers, not of instants: a clock may be set back. The messages
#: of one key are in one shard.
ORDER = ("shard", "coalesce(settlement, seq)", "lane", "due_ms", "seq")


def with_day(history: DataFrame) -> DataFrame:
    return history.withColumn(DAY, f.date_format("at", "yyyy-MM-dd"))


def sort_events(rows: DataFrame, files: int) -> DataFrame:
    """Sort into ``files`` partitions that follow each other, so that a day's files are sorted and follow each other."""
    order = (f.col(DAY), f.col("queue"), f.col("task"), *map(f.expr, ORDER))
    parts = rows.repartitionByRange(files, *order) if files > 1 else rows.repartition(1)
    return parts.sortWithinPartitions(*order)


def last_of(storage: ArchiveFolder) -> Manifest:
    last = storage.last()
    if last is None:
        raise FileUnusable(f"{storage.path} is no archive: it has no manifest; the job archive writes one")
    return last


def commit(storage: ArchiveFolder, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Apply a change to the last manifest, and return the manifest that counts then; ``change`` may stop the run."""
    for _ in range(5):  # two runs collide once or twice; more often, a third program writes manifests without end
        manifest = change(last_of(storage))
        storage.put(manifest)
        if storage.last() == manifest:
            return manifest
    raise other_run(storage)


def other_run(storage: ArchiveFolder) -> FileUnusable:
    return FileUnusable(
        f"another run writes to the archive {storage.path} at the same time; this one stopped, and nothing is missing; "
        "start a run only after the last one has ended"
    )


def new_run() -> str:
    """Return a name that no other run has; it tells the instant, and sorts by it."""
    return f"{time.strftime(RUN_TIME, time.gmtime())}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class ArchiveSurvey:
    """``ranges``: the numbers to read, by shard; ``days``: their events by day, about."""

    store: str
    numbers: dict[int, int]
    ranges: dict[int, tuple[int, int]]
    days: dict[str, int]
    known: dict[int, int]  #: by shard, the number up to which all events are archived or lost
    lost: list[dict[str, Any]] = field(default_factory=list)  #: as ``_lost`` returns them


def survey_store(url: str, store: str | None, marks: Mapping[int, int], noted: Mapping[int, int]) -> ArchiveSurvey:
    """Survey the store at ``url``. Raises StoreUnusable for a store that is not the archive's, or an older copy of it.

    ``store`` is None for a new archive, which begins with the store's oldest event. ``noted`` are the marks that were
    written to the store: they only rise, so an older copy is detected even after it has given more numbers.
    """
    with open_for_reading(url) as opened:
        name, uuid = opened.name, opened.uuid
        if store not in (None, uuid):
            raise StoreUnusable(
                f"the archive belongs to the store {store}, but {name} is {uuid}: another store, or one created anew; "
                "nothing was written; give each store an archive of its own: --output"
            )
        shards = opened.maintenance.archivable(marks)
    for one in shards:
        upto, mark = marks.get(one.shard, 0), noted.get(one.shard, 0)
        if one.seq < upto or one.archived < mark:
            state = f"has the mark {one.archived}" if one.archived < mark else f"is at {one.seq}"
            raise StoreUnusable(
                f"the archive has shard {one.shard} up to number {max(upto, mark)}, but {name} {state}: it was "
                "replaced by an older copy, and gives numbers again that the archive has; nothing was written; begin "
                "a new archive: --output"
            )
    ranges = {one.shard: (marks.get(one.shard, 0), one.seq) for one in shards}
    days = sum((Counter(one.days) for one in shards), Counter[int]())
    # A new archive cannot lose earlier events. To an old archive a shard that was added since is known from its start.
    expected = {one.shard: marks.get(one.shard, one.forgotten if store is None else 0) for one in shards}
    return ArchiveSurvey(
        store=uuid,
        numbers={one.shard: one.seq for one in shards},
        ranges={number: range_ for number, range_ in ranges.items() if range_[0] < range_[1]},
        days={f"{utc(day * DAY_MS):%Y-%m-%d}": days[day] for day in sorted(days)},
        known={one.shard: max(marks.get(one.shard, 0), one.forgotten) for one in shards},
        lost=_lost(shards, expected),
    )


def _lost(shards: Sequence[Archivable], known: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the ranges (after, upto] with events that retention removed unread, all from before an instant."""
    return [
        {"shard": one.shard, "after": known[one.shard], "upto": one.forgotten, "before": before}
        for one in shards
        for before in (None if one.first_ms is None else utc(one.first_ms).isoformat(),)
        if one.forgotten > known.get(one.shard, one.forgotten)
    ]


@dataclass(slots=True)
class Archived:
    manifest: Manifest
    files: list[DataFile] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class ArchiveRun:
    storage: ArchiveFolder
    url: str
    #: From ranges of numbers by shard, (after, upto], to their events with the column ``day``.
    events: Callable[[Mapping[int, tuple[int, int]]], Any]
    mark: bool  #: whether the store's mark moves, so that retention may remove archived history
    progress: Callable[[str], None]
    name: str = field(default_factory=lambda: new_run())

    def run(self) -> Archived:
        base = self.storage.last() or self._begin()
        self.progress("surveying the store")
        survey = survey_store(self.url, base.store or None, base.marks, base.noted)
        done = Archived(base)
        if survey.days or survey.lost or not base.store:
            done = self._append(base, survey)
        return self._note_marks(done)

    def _begin(self) -> Manifest:
        """Begin an archive, with no event: so data without a manifest is never that of a killed first run."""
        if self.storage.runs():
            raise FileUnusable(
                f"{self.storage.path} has the data of an archive, but no manifest that says which files count; "
                "restore its folder _manifest from a copy, or begin a new archive: --output"
            )
        self.storage.put(Manifest(1, self.name, "", {}, VERSION, COLUMNS))
        return last_of(self.storage)

    def _append(self, base: Manifest, survey: ArchiveSurvey) -> Archived:
        files: list[DataFile] = []
        if survey.days:
            count = sum(survey.days.values())
            self.progress(f"archiving {format_count(count, 'event')} of {format_count(len(survey.days), 'day')}")
            files = self.storage.write(self.events(survey.ranges), self.name, count)
        with open_for_reading(self.url) as opened:  # what retention removed while the run read it
            lost = [*survey.lost, *_lost(opened.maintenance.archivable(survey.numbers), survey.known)]

        def change(last: Manifest) -> Manifest:
            if last.marks != base.marks:
                raise other_run(self.storage)
            return replace(
                last,
                serial=last.serial + 1,
                run=self.name,
                store=survey.store,
                # With the marks of shards that a reshard removed: the sum of all marks never falls.
                marks={**base.marks, **survey.numbers},
                schema=VERSION,
                columns=COLUMNS,
                files=(*last.files, *files),
                gaps=[*last.gaps, *lost],
            )

        return Archived(commit(self.storage, change), files, lost)

    def _note_marks(self, done: Archived) -> Archived:
        """Move the store's marks, also after no new event: the last run may have been killed before this step."""
        marks = done.manifest.marks
        if not self.mark or done.manifest.noted == marks:
            return done
        with open_for_reading(self.url) as store:
            store.maintenance.note_archived(marks)

        def change(last: Manifest) -> Manifest:
            if last.marks != marks:
                raise other_run(self.storage)
            return replace(last, serial=last.serial + 1, run=self.name, noted=dict(marks))

        done.manifest = commit(self.storage, change)
        return done


@dataclass(slots=True)
class Compacted:
    """The result of a run: by day the number of files before and after, and the folders removed."""

    days: dict[str, tuple[int, int]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


def compact_archive(storage: ArchiveFolder, now_ms: int, keep_ms: int, progress: Callable[[str], None]) -> Compacted:
    """Compact each day; replaced files stay for ``keep_ms``, for readers and runs that began before."""
    done = Compacted()
    days: dict[str, list[DataFile]] = {}
    for file in last_of(storage).files:
        days.setdefault(file.day, []).append(file)
    for day, files in sorted(days.items()):
        if len(files) > max(1, -(-sum(file.events for file in files) // ROWS_A_FILE)):
            progress(f"compacting {day}")
            new = rewrite(storage, files, storage.read(files), count_outcomes(files), now_ms)
            done.days[day] = (len(files), len(new))
    progress("removing old files")
    until_ms = now_ms - keep_ms
    done.removed = sorted([*_remove_killed(storage, until_ms), *remove_replaced(storage, until_ms)])
    return done


def _remove_killed(storage: ArchiveFolder, until_ms: int) -> list[str]:
    """Remove the folders of runs that began before an instant and have no file in a manifest."""
    last = last_of(storage)
    runs = {folder.partition("/")[0] for folder in (*(file.folder for file in last.files), *last.replaced)}
    old = [f"run={run}" for run in storage.runs() if (began := began_at(run)) and ms_of(began) <= until_ms]
    killed = [folder for folder in old if folder not in runs]
    for folder in killed:
        storage.remove(folder)
    return killed


def rewrite(
    storage: ArchiveFolder, old: Sequence[DataFile], rows: Any, expected: Counter[str], now_ms: int
) -> list[DataFile]:
    """Write rows into new files, and let the manifest name these in the place of the old ones, all of them or none."""
    run, count, paths = new_run(), expected.total(), {file.path for file in old}
    new = storage.write(rows, run, count) if count else []
    if (has := count_outcomes(new)) != expected:
        raise FileUnusable(
            f"{old[0].folder} and others have {dict(expected)} that stay, but their copy has {dict(has)}; nothing was "
            "changed; does another program write to the archive?"
        )

    def change(last: Manifest) -> Manifest:
        if not paths <= {file.path for file in last.files}:
            raise other_run(storage)
        kept = [file for file in last.files if file.path not in paths]
        files = (*new, *kept)  # a kept file of this day is of a later run
        replaced = {file.folder: now_ms for file in old}
        return replace(last, serial=last.serial + 1, run=run, files=files, replaced={**last.replaced, **replaced})

    commit(storage, change)
    return new


def remove_replaced(storage: ArchiveFolder, until_ms: float = math.inf) -> list[str]:
    """Remove folders that no manifest has named since an instant, then their names from the manifest."""
    last = last_of(storage)
    named = {file.folder for file in last.files}
    removed = [folder for folder, since in last.replaced.items() if since <= until_ms and folder not in named]
    for folder in removed:
        storage.remove(folder)

    def change(last: Manifest) -> Manifest:
        replaced = {folder: since for folder, since in last.replaced.items() if folder not in removed}
        return replace(last, serial=last.serial + 1, run=new_run(), replaced=replaced)

    if removed:
        commit(storage, change)
    return removed


def erase_events(
    storage: ArchiveFolder, now_ms: int, column: str, value: str, progress: Callable[[str], None]
) -> dict[str, int]:
    """Remove the events of one value of a column, and at once all replaced files; return the number of events by day.

    A kill before the manifest is written leaves the archive as it was; a kill after it leaves replaced files, which the
    next run removes. Files of killed runs, which no manifest names, are left to ``compact``.
    """
    erased = Counter[str]()
    folders: dict[str, list[DataFile]] = {}
    for file in last_of(storage).files:
        folders.setdefault(file.folder, []).append(file)
    for files in folders.values():  # of one run and day
        progress(f"reading {files[0].day}")
        rows = storage.read(files)
        counts = rows.where(f.col(column) == value).groupBy("outcome").count().collect()
        if gone := Counter[str]({row["outcome"]: row["count"] for row in counts}):
            rest = rows.where(~f.col(column).eqNullSafe(value))
            rewrite(storage, files, rest, count_outcomes(files) - gone, now_ms)
            erased[files[0].day] += gone.total()
    progress("removing replaced files")
    remove_replaced(storage)
    return dict(sorted(erased.items()))


def count_outcomes(files: Iterable[DataFile]) -> Counter[str]:
    total = Counter[str]()
    for file in files:
        total.update(file.outcomes)
    return total
