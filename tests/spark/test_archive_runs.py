"""``archive`` and ``compact`` without Spark, over a store of their own and a folder in memory: by steps, and in races.

::

    steps    a run is interrupted or overtaken; losses are reported, a copy is refused
    races    runs at once, killed at any step: a reader always has each archived event once. Each runs in a greenlet,
             which gives up control before each access of the folder. A seeded generator decides which of them
             continues, and which one is killed there

``test_archive`` has both jobs with Spark.
"""

import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from greenlet import GreenletExit, greenlet
from sqlalchemy import update

from celery_wheel.archive.reader import DataFile, Manifest, last_manifest, parse_manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline import archive as archive_module
from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import ArchiveRun, Compacted, compact_archive
from celery_wheel.pipeline.jobs import archive as archive_job
from celery_wheel.pipeline.source.options import format_events
from celery_wheel.results.reader import began_at
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.maintenance import SqlMaintenance
from celery_wheel.values.instants import ms_of
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.spark.stores import Rows, Site, read_history, site
from tests.spark.test_archive import DAY_MS, KEY, Broken, Event, add_events, archive, broken, call, marks, store_events


@dataclass
class MemoryFolder:
    """An archive in memory; ``step`` is called before each access, and may not return."""

    step: Callable[[], None] = lambda: None
    path: str = "memory"
    data: dict[str, Rows] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path

    def refuse_stream_output(self) -> None: ...

    def read(self, files: list[DataFile]) -> Rows:
        self.step()
        return [row for file in files for row in self.data[file.path]]

    def write(self, rows: Rows, run: str, count: int) -> list[DataFile]:
        assert not any(path.startswith(f"run={run}/") for path in self.data), "a run has a folder of its own"
        days: dict[str, Rows] = {}
        for row in rows:
            days.setdefault(f"{row['at']:%Y-%m-%d}", []).append(row)
        files = []
        for day, found in days.items():
            self.step()  # killed here, the run leaves some of its files
            path = f"run={run}/day={day}/part-0.parquet"
            self.data[path] = found
            files.append(DataFile(path, day, dict(Counter(row["outcome"] for row in found))))
        return files

    def runs(self) -> set[str]:
        self.step()
        return {path.split("/")[0].removeprefix("run=") for path in self.data}

    def remove(self, folder: str) -> None:
        for path in [path for path in self.data if path.startswith(f"{folder}/")]:
            self.step()
            self.data.pop(path, None)  # another run may remove it, too

    def last(self) -> Manifest | None:
        self.step()
        return self.current()

    def current(self) -> Manifest | None:
        path = last_manifest(self.manifests)
        return None if path is None else parse_manifest(self.manifests[path], path)

    def rows(self) -> Rows:
        last = self.current()
        return [] if last is None else [row for file in last.files for row in self.data[file.path]]

    def put(self, manifest: Manifest) -> None:
        self.step()
        self.manifests[f"{manifest.folder}/part-0.txt"] = manifest.to_line()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> MemoryFolder:
    found = MemoryFolder()
    monkeypatch.setattr(cli, "_start_session", lambda *_: None)
    monkeypatch.setattr(archive_job, "ArchiveFolder", lambda *_: found)
    monkeypatch.setattr(archive_job, "read", lambda _spark, _table, url, **options: read_history(url, **options))
    monkeypatch.setattr(archive_job, "with_day", lambda rows: rows)
    return found


def compact(folder: MemoryFolder, after_ms: int = 0) -> Compacted:
    now_ms = int(time.time() * 1_000) + after_ms
    return compact_archive(folder, now_ms, DAY_MS, lambda _: None)


def last(folder: MemoryFolder) -> Manifest:
    found = folder.current()
    assert found is not None
    return found


def archived_events(folder: MemoryFolder) -> list[Event]:
    return [tuple(row[name] for name in KEY) for row in folder.rows()]


def assert_same(folder: MemoryFolder, *expected: Event) -> None:
    assert Counter(archived_events(folder)) == Counter(expected)


@pytest.mark.parametrize(
    ("broken_step", "is_read"),
    [((MemoryFolder, "put"), False), ((SqlMaintenance, "note_archived"), True)],
    ids=["files written", "manifest written"],
)
def test_the_next_run_continues_after_an_interrupted_one(
    filled: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch, broken_step: tuple[type, str], is_read: bool
) -> None:
    archive(filled, folder)
    before, read = marks(filled), archived_events(folder)
    add_events(filled, NOW + 50)
    with monkeypatch.context() as patch:
        patch.setattr(*broken_step, broken)
        assert isinstance(call(filled, folder).exception, Broken)
    assert marks(filled) == before
    expected = store_events(filled)
    assert Counter(archived_events(folder)) == Counter(expected if is_read else read)
    assert archive(filled, folder)["events"] == (0 if is_read else 2)
    assert_same(folder, *expected)
    assert marks(filled)[0] == filled.holder.highest_seq


@pytest.mark.parametrize("at", ["files written", "old files removed"])
def test_a_compaction_that_is_interrupted_changes_nothing_for_readers(
    one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for n in range(2):
        add_events(one, NOW + n)
        archive(one, folder)
    if at == "old files removed":
        compact(folder)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFolder, "put", broken)
        with pytest.raises(Broken):
            compact(folder, 2 * DAY_MS)
    assert_same(folder, *store_events(one))
    compact(folder, 2 * DAY_MS)
    compact(folder, 4 * DAY_MS)
    assert_same(folder, *store_events(one))
    assert folder.data.keys() == {file.path for file in last(folder).files}


def test_a_copy_that_lacks_events_is_refused(one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(2):
        add_events(one, NOW + n)
        archive(one, folder)
    read = MemoryFolder.read
    monkeypatch.setattr(MemoryFolder, "read", lambda *arguments: read(*arguments)[:3])
    with pytest.raises(FileUnusable, match="but their copy has"):
        compact(folder)
    assert_same(folder, *store_events(one))


def test_events_that_retention_removed_unarchived_are_reported(filled: Site, folder: MemoryFolder) -> None:
    archive(filled, folder)
    archived = filled.holder.highest_seq
    filled.store.forget(0, filled.holder.epoch, Retention(NOW + 21, NO_LIMIT), 100)
    add_events(filled, NOW + 40)
    kept = archived_events(folder)
    assert archive(filled, folder)["lost"] == [], "the removed events were archived"
    assert len(archived_events(folder)) == len(kept) + 2
    add_events(filled, NOW + 100)
    lost = filled.holder.highest_seq
    add_events(filled, NOW + 200)
    filled.store.forget(0, filled.holder.epoch, Retention(NOW + 150, NO_LIMIT), 100)
    done = call(filled, folder)
    said = json.loads(done.stdout)
    [gap] = said["lost"]
    assert (done.exit_code, said["events"], said["gaps"]) == (1, 2, [gap])
    assert archived < gap["after"] < gap["upto"] == lost
    assert gap["before"] == "2027-01-15T08:00:00.200000+00:00"
    assert "wheel_history_archive = True" in said["words"][1]
    assert archive(filled, folder)["gaps"] == [gap], "reported once, and listed for good"


def test_a_loss_may_be_allowed_but_no_mark(filled: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes events while the run reads them."""
    found = store_events(filled)

    def meanwhile(*_: Any, **options: str) -> Rows:
        filled.store.forget(0, filled.holder.epoch, Retention(NOW + 21, NO_LIMIT), 2)
        return read_history(filled.url, **options)

    monkeypatch.setattr(archive_job, "read", meanwhile)
    said = archive(filled, folder, "--allow-loss", "--no-mark")
    assert [loss["shard"] for loss in said["lost"]] == [0]
    assert said["events"] == len(archived_events(folder)) == len(found) - 2
    assert (said["marked"], marks(filled)) == (False, {0: 0, 1: 0})


def test_another_store_and_an_older_copy_are_refused(filled: Site, folder: MemoryFolder, tmp_path: Path) -> None:
    archive(filled, folder)
    kept = archived_events(folder)
    with site(f"sqlite:///{tmp_path}/other.sqlite3") as other:
        done = call(other, folder)
        assert (done.exit_code, "give each store an archive of its own" in done.stderr) == (1, True), done.output
    with filled.store.database.writing() as connection:
        connection.execute(update(schema.shard).where(schema.shard.c.shard == 1).values(seq=1))
    done = call(filled, folder)
    assert (done.exit_code, "it was replaced by an older copy" in done.stderr) == (1, True), done.output
    assert archived_events(folder) == kept


def test_an_older_copy_that_has_more_events_is_refused(filled: Site, folder: MemoryFolder, tmp_path: Path) -> None:
    """Its numbers exceed those of the archive, and some of them were given twice."""
    paths = (tmp_path / "wheel.sqlite3", tmp_path / "copy.sqlite3")
    with closing(sqlite3.connect(paths[0])) as store, closing(sqlite3.connect(paths[1])) as copy:
        store.backup(copy)
    add_events(filled, NOW + 50)
    archive(filled, folder)
    with site(f"sqlite:///{tmp_path}/copy.sqlite3") as other:
        for n in range(5):
            add_events(other, NOW + 60 + n)
        assert other.holder.highest_seq > filled.holder.highest_seq
        before = marks(other)
        done = call(other, folder)
        assert (done.exit_code, "it was replaced by an older copy" in done.stderr) == (1, True), done.output
        assert marks(other) == before
    add_events(filled, NOW + 70)
    assert archive(filled, folder, "--no-mark")["events"] == 2


def test_unarchived_events_that_a_new_shard_lost_are_reported(filled: Site, folder: MemoryFolder) -> None:
    archive(filled, folder)
    for holder in (filled.holder, filled.second):
        filled.store.release(holder.shard, holder.epoch)
    filled.store.maintenance.reshard(3, lambda _key, _task_id, _shards: 2, NOW + 60_000)
    with closing(open_store(filled.url, shards=3)) as store:
        third = Holder(store, 2)
        rows = third.slice()
        third.settle(ORIGIN, place(rows[-1]), at_ms=NOW + 5)
        upto = third.highest_seq
        assert store.forget(2, third.epoch, Retention(NOW + 10, NO_LIMIT), 100) == len(rows) > 0
    done = call(filled, folder)
    lost = [(loss["shard"], loss["upto"]) for loss in json.loads(done.stdout)["lost"]]
    assert (done.exit_code, lost) == (1, [(2, upto)])


def test_a_run_that_is_overtaken_stops(filled: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The races have all other orders of their steps."""
    write = MemoryFolder.write

    def other(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFolder, "write", write)
            archive(filled, folder)
        add_events(filled, NOW + 60)
        return write(*args)

    monkeypatch.setattr(MemoryFolder, "write", other)
    done = call(filled, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert len(archived_events(folder)) == 9
    monkeypatch.setattr(MemoryFolder, "write", write)
    assert archive(filled, folder)["events"] == 2
    assert_same(folder, *store_events(filled))


RACE_KEY = ("lane", "due_ms", "seq", "settlement", "shard")


class Race:
    def __init__(self, seed: int, one: Site, patch: pytest.MonkeyPatch) -> None:
        self.random, self.one, self.now_ms, self.number = random.Random(seed), one, NOW, 0
        self.hub = greenlet.getcurrent()
        self.folder = MemoryFolder(lambda: self.hub.switch())
        self.expected, self.upto = set[tuple[Any, ...]](), 0
        self.seen: list[tuple[int, Manifest]] = []
        self.stopped, self.had = 0, set[tuple[Any, ...]]()
        patch.setattr(archive_module, "new_run", self.new_run)

    def new_run(self) -> str:
        self.number += 1
        seconds = self.now_ms // 1_000 - NOW // 1_000
        assert 0 <= seconds < 28 * 86_400
        day, rest = divmod(seconds, 86_400)
        return f"202701{1 + day:02}T{rest // 3_600:02}{rest // 60 % 60:02}{rest % 60:02}Z-{self.random.random()}"

    def events(self, ranges: Mapping[int, tuple[int, int]]) -> Rows:
        return read_history(self.one.url, events=format_events(ranges))

    def archive(self) -> None:
        with suppress(FileUnusable):  # another run continues instead
            ArchiveRun(self.folder, self.one.url, self.events, mark=True, progress=lambda _: None).run()
            return
        self.stopped += 1

    def compact(self) -> None:
        began = began_at(self.new_run())
        assert began is not None
        now_ms = ms_of(began)
        with suppress(FileUnusable):
            compact_archive(self.folder, now_ms, DAY_MS, lambda _: None)

    def add(self, *days: int) -> None:
        """Two events, and retention may remove the archived ones."""
        add_events(self.one, NOW + self.random.choice(days or range(-2, 3)) * DAY_MS)
        upto = self.one.holder.highest_seq
        self.expected |= {tuple(row[name] for name in RACE_KEY) for row in self.events({0: (self.upto, upto)})}
        self.upto = upto
        if self.random.random() < 0.5:
            retention = Retention(2**53, NO_LIMIT, archived_only=True)
            self.one.store.forget(0, self.one.holder.epoch, retention, 1_000)

    def check(self) -> None:
        """A reader has every event up to the marks once, and one that began earlier still has all of its files."""
        last = self.folder.current()
        if last is None:
            return
        found = Counter(tuple(row[name] for name in RACE_KEY) for row in self.folder.rows())
        archived = {key for key in self.expected if (key[3] or key[2]) <= last.marks.get(key[4], 0)}
        assert found == Counter(archived)
        assert archived >= self.had, "a later reader has what an earlier one had"
        self.had = archived
        self.seen = [(at, one) for at, one in self.seen if self.now_ms - at < DAY_MS] + [(self.now_ms, last)]
        assert all(file.path in self.folder.data for _, one in self.seen[-40:] for file in one.files)

    def round(self, jobs: list[Callable[[], None]], kill: float = 0.0, add: float = 0.0) -> None:
        running = [greenlet(job, self.hub) for job in jobs]
        while running:
            job = self.random.choice(running)
            if job and self.random.random() < kill:
                job.throw(GreenletExit)
            else:
                job.switch()
            running = [one for one in running if not one.dead]
            self.check()
            if self.random.random() < add:
                self.add()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_each_archived_event_is_read_once_beside_any_run(one: Site, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    race = Race(seed, one, monkeypatch)
    for _ in range(20):
        race.add()
        jobs = [race.random.choice([race.archive, race.archive, race.compact]) for _ in range(3)]
        race.round(jobs[: race.random.randint(1, 3)], kill=0.02, add=0.03)
        race.now_ms += race.random.choice([1_000, DAY_MS // 2, DAY_MS + 1_000])
    for job in (race.archive, race.compact):
        race.round([job])
    race.now_ms += 2 * DAY_MS
    race.round([race.compact])
    last = race.folder.current()
    assert last is not None
    assert sum(file.events for file in last.files) == len(race.expected)
    assert {*race.folder.data} == {file.path for file in last.files}, "nothing else is left"
    assert len(last.files) == len(last.days())


def test_both_of_a_compaction_and_an_archive_run_take_effect(one: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(0, one, monkeypatch)
    for _ in range(2):
        race.add(0)
        race.round([race.archive])
    race.add(0)
    archive, compact = greenlet(race.archive), greenlet(race.compact)
    while not archive.dead or not compact.dead:  # step by step in turn
        for job in (archive, compact):
            if not job.dead:
                job.switch()
    last = race.folder.current()
    assert last is not None
    assert (race.stopped, len(last.files), sum(file.events for file in last.files)) == (0, 2, 6)
    assert len(last.replaced) == 2
