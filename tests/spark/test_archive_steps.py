"""``archive`` and ``compact`` step by step: a run is interrupted or overtaken; losses are reported, a copy is refused.

The commands run without Spark, over a store of their own and a folder in memory. ``test_archive`` has both with Spark,
and ``test_archive_races`` all other orders of their steps.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import update

from celery_wheel.archive.reader import Manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive.runs import Compacted, Compaction
from celery_wheel.pipeline.jobs import archive as archive_job
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.maintenance import SqlMaintenance
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.spark.memory_archive import MemoryFolder, Rows
from tests.spark.stores import Site, fill, site
from tests.spark.test_archive import DAY_MS, KEY, Event, add_events, marks, store_events


class Broken(Exception):
    pass


def broken(*_: object, **__: object) -> None:
    raise Broken


def read_rows(_spark: None, table: str, url: str, **options: str) -> Rows:
    reader = WheelReader(read_options({"url": url, "table": table, **options}), HISTORY_SCHEMA)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Site]:
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as found:
        yield found


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> MemoryFolder:
    """The folder that each run of the command gets."""
    found = MemoryFolder()
    monkeypatch.setattr(cli, "_start_session", lambda *_: None)
    monkeypatch.setattr(archive_job, "ArchiveFolder", lambda *_: found)
    monkeypatch.setattr(archive_job, "read", read_rows)
    monkeypatch.setattr(archive_job, "with_day", lambda rows: rows)
    return found


def call(one: Site, folder: MemoryFolder, *options: str) -> Result:
    return CliRunner().invoke(cli.main, ["archive", "--store", one.url, "--output", folder.path, "--json", *options])


def archive(one: Site, folder: MemoryFolder, *options: str) -> dict[str, Any]:
    done = call(one, folder, *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compact(folder: MemoryFolder, after_ms: int = 0) -> Compacted:
    """Run the job as if it began so long after now."""
    now_ms = int(time.time() * 1_000) + after_ms
    return Compaction(folder, now_ms=now_ms, keep_ms=DAY_MS, progress=lambda _: None).run()


def last(folder: MemoryFolder) -> Manifest:
    found = folder.current()
    assert found is not None
    return found


def events(folder: MemoryFolder) -> list[Event]:
    return [tuple(row[name] for name in KEY) for row in folder.rows()]


def assert_same(folder: MemoryFolder, *expected: Event) -> None:
    assert Counter(events(folder)) == Counter(expected)


def interrupt(at: str, patch: pytest.MonkeyPatch) -> None:
    """Raise at a step of a run: the steps before it are done, and no later one is."""
    if at == "files written":
        patch.setattr(MemoryFolder, "put", broken)
    if at == "manifest written":
        patch.setattr(SqlMaintenance, "note_archived", broken)


@pytest.mark.parametrize("at", ["files written", "manifest written"])
def test_the_next_run_continues_after_an_interrupted_one(
    one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    fill(one)
    archive(one, folder)
    before, read = marks(one), events(folder)
    add_events(one, NOW + 50)
    with monkeypatch.context() as patch:
        interrupt(at, patch)
        assert isinstance(call(one, folder).exception, Broken)
    assert marks(one) == before
    expected = store_events(one)
    assert Counter(events(folder)) == Counter(read if at == "files written" else expected)
    assert archive(one, folder)["events"] == (2 if at == "files written" else 0)
    assert_same(folder, *expected)
    assert marks(one)[0] == one.holder.highest_seq


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


def test_a_copy_that_lacks_an_event_is_refused(
    one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2):
        add_events(one, NOW + n)
        archive(one, folder)
    read = MemoryFolder.read
    monkeypatch.setattr(MemoryFolder, "read", lambda *arguments: read(*arguments)[:3])
    with pytest.raises(FileUnusable, match="but their copy has"):
        compact(folder)
    assert_same(folder, *store_events(one))


def test_events_that_retention_removed_unarchived_are_reported(one: Site, folder: MemoryFolder) -> None:
    fill(one)
    archive(one, folder)
    archived = one.holder.highest_seq
    one.store.forget(0, one.holder.epoch, Retention(NOW + 21, NO_LIMIT), 100)
    add_events(one, NOW + 40)
    kept = events(folder)
    assert archive(one, folder)["lost"] == [], "the removed events were archived"
    assert len(events(folder)) == len(kept) + 2
    add_events(one, NOW + 100)
    lost = one.holder.highest_seq
    add_events(one, NOW + 200)
    one.store.forget(0, one.holder.epoch, Retention(NOW + 150, NO_LIMIT), 100)
    done = call(one, folder)
    said = json.loads(done.stdout)
    [gap] = said["lost"]
    assert (done.exit_code, said["events"], said["gaps"]) == (1, 2, [gap])
    assert archived < gap["after"] < gap["upto"] == lost
    assert gap["before"] == "2027-01-15T08:00:00.200000+00:00"
    assert "wheel_history_archive = True" in said["words"][1]
    assert archive(one, folder)["gaps"] == [gap], "reported once, and listed for good"


def test_a_loss_may_be_allowed_and_the_mark_not_moved(
    one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes events while the run reads them."""
    fill(one)
    found = store_events(one)

    def meanwhile(*args: Any, **options: str) -> Rows:
        one.store.forget(0, one.holder.epoch, Retention(NOW + 21, NO_LIMIT), 2)
        return read_rows(*args, **options)

    monkeypatch.setattr(archive_job, "read", meanwhile)
    said = archive(one, folder, "--allow-loss", "--no-mark")
    assert [loss["shard"] for loss in said["lost"]] == [0]
    assert said["events"] == len(events(folder)) == len(found) - 2
    assert (said["marked"], marks(one)) == (False, {0: 0, 1: 0})


def test_another_store_and_an_older_copy_are_refused(one: Site, folder: MemoryFolder, tmp_path: Path) -> None:
    fill(one)
    archive(one, folder)
    kept = events(folder)
    with site(f"sqlite:///{tmp_path}/other.sqlite3") as other:
        done = call(other, folder)
        assert (done.exit_code, "give each store an archive of its own" in done.stderr) == (1, True), done.output
    with one.store.database.writing() as connection:
        connection.execute(update(schema.shard).where(schema.shard.c.shard == 1).values(seq=1))
    done = call(one, folder)
    assert (done.exit_code, "it was replaced by an older copy" in done.stderr) == (1, True), done.output
    assert events(folder) == kept


def test_an_older_copy_that_has_more_events_by_now_is_refused(one: Site, folder: MemoryFolder, tmp_path: Path) -> None:
    """Its numbers exceed those of the archive, and some of them were given twice."""
    fill(one)
    paths = (tmp_path / "wheel.sqlite3", tmp_path / "copy.sqlite3")
    with closing(sqlite3.connect(paths[0])) as store, closing(sqlite3.connect(paths[1])) as copy:
        store.backup(copy)
    add_events(one, NOW + 50)
    archive(one, folder)
    with site(f"sqlite:///{tmp_path}/copy.sqlite3") as other:
        for n in range(5):
            add_events(other, NOW + 60 + n)
        assert other.holder.highest_seq > one.holder.highest_seq
        before = marks(other)
        done = call(other, folder)
        assert (done.exit_code, "it was replaced by an older copy" in done.stderr) == (1, True), done.output
        assert marks(other) == before
    add_events(one, NOW + 70)
    assert archive(one, folder, "--no-mark")["events"] == 2


def test_unarchived_events_that_a_new_shard_lost_are_reported(one: Site, folder: MemoryFolder) -> None:
    fill(one)
    archive(one, folder)
    for holder in (one.holder, one.second):
        one.store.release(holder.shard, holder.epoch)
    one.store.maintenance.reshard(3, lambda _key, _task_id, _shards: 2, NOW + 60_000)
    with closing(open_store(one.url, shards=3)) as store:
        third = Holder(store, 2)
        rows = third.slice()
        third.settle(ORIGIN, place(rows[-1]), at_ms=NOW + 5)
        upto = third.highest_seq
        assert store.forget(2, third.epoch, Retention(NOW + 10, NO_LIMIT), 100) == len(rows) > 0
    done = call(one, folder)
    lost = [(loss["shard"], loss["upto"]) for loss in json.loads(done.stdout)["lost"]]
    assert (done.exit_code, lost) == (1, [(2, upto)])


def test_a_run_that_another_run_overtakes_stops(
    one: Site, folder: MemoryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_archive_races`` has all other orders of their steps."""
    fill(one)
    write = MemoryFolder.write

    def other(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFolder, "write", write)
            archive(one, folder)
        add_events(one, NOW + 60)
        return write(*args)

    monkeypatch.setattr(MemoryFolder, "write", other)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert len(events(folder)) == 9
    monkeypatch.setattr(MemoryFolder, "write", write)
    assert archive(one, folder)["events"] == 2
    assert_same(folder, *store_events(one))
