"""``archive`` and ``compact``: each event is in its day once, in order, also after a kill; losses are reported."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from sqlalchemy import select, update

from celery_wheel import archive as archive_reader
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import compaction as compaction_module
from celery_wheel.pipeline.archive import folder as folder_module
from celery_wheel.pipeline.archive.commit import began_ms
from celery_wheel.pipeline.archive.compaction import Compacted, Compaction
from celery_wheel.pipeline.archive.folder import ArchiveFolder
from celery_wheel.pipeline.columns import HISTORY_SCHEMA
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.maintenance import SqlMaintenance
from tests.kit import duck
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.spark.stores import MakeUrl, Site, fill, replay, site

DAY_MS = 86_400_000
KEY = ("shard", "lane", "due_ms", "seq", "batch", "id", "outcome")
ROOT = Path(__file__).parents[2]
Event = tuple[Any, ...]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Site]:
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def call(one: Site, folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli.main, ["archive", "--store", one.url, "--output", str(folder), "--json", *options])


def archive(one: Site, folder: Path, *options: str) -> dict[str, Any]:
    done = call(one, folder, *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def events(folder: Path) -> list[Event]:
    """The events that DuckDB reads, in the order of the files and of their rows."""
    files = archive_reader.files(str(folder))
    with duck.connect() as connection:
        rows = connection.execute(
            f"select {', '.join(KEY)} from read_parquet(?, filename = true, file_row_number = true) "
            "order by list_position(?, filename), file_row_number",
            [files, files],
        )
        return rows.fetchall()


def compact(spark: SparkSession, folder: Path, after_ms: int = 0) -> Compacted:
    """Run the job as if it began so long after now."""
    now_ms = int(time.time() * 1_000) + after_ms
    return Compaction(ArchiveFolder(spark, str(folder)), now_ms=now_ms, keep_ms=DAY_MS, progress=lambda _: None).run()


def data_files(folder: Path) -> set[str]:
    """All Parquet files, also those of killed runs."""
    return {str(path) for path in folder.rglob("*.parquet")}


def store_events(one: Site, **options: str) -> list[Event]:
    """The events of the store, read without Spark."""
    reader = WheelReader(read_options({"url": one.url, "table": "history", **options}), HISTORY_SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [tuple(row[name] for name in KEY) for row in rows]


def assert_same(folder: Path, *expected: Event) -> None:
    assert Counter(events(folder)) == Counter(expected)


def marks(one: Site) -> dict[int, int]:
    with one.store.database.reading() as connection:
        return {row.shard: row.archived for row in connection.execute(select(schema.shard)).all()}


def add_events(one: Site, at_ms: int) -> None:
    """Add two events at that time: one dispatched, one cancelled."""
    dispatched, cancelled = one.holder.accept(one.store.lanes(0)[0].offset.due_ms + 1, NOW + DAY_MS)
    one.dispatch([dispatched], at_ms)
    rest, outcome = one.holder.stop(cancelled, at_ms), one.holder.outcome(cancelled.id, at_ms=at_ms)
    one.holder.apply(moves=[rest], outcomes=[outcome])


@pytest.mark.parametrize("make_url", ["postgresql"], indirect=True)  # the others are on SQLite
def test_each_event_is_in_its_day_once_over_runs(spark: SparkSession, make_url: MakeUrl, folder: Path) -> None:
    with site(make_url()) as one:
        fill(one)
        first = archive(one, folder)
        assert (first["events"], first["days"]) == (9, {"2027-01-15": 9})
        assert first["outcomes"] == {"dispatched": 7, "moved": 1, "rejected": 1}
        page = (ROOT / "docs" / "pipeline-jobs.md").read_text()
        assert {**json.loads(page.split("```json\n")[1].split("```")[0]), "words": first["words"]} == first
        assert first["marks"] == {"0": one.holder.highest_seq, "1": one.second.highest_seq}
        assert marks(one) == {0: one.holder.highest_seq, 1: one.second.highest_seq}
        assert_same(folder, *store_events(one))
        for days in (1, -3):  # the second by a clock that was set back: on a day before all others
            add_events(one, NOW + days * DAY_MS)
        one.dispatch(one.second.accept(NOW + 1), NOW + 9, one.second)
        second = archive(one, folder)
        assert second["outcomes"] == {"cancelled": 2, "dispatched": 3}
        assert second["days"] == {"2027-01-12": 2, "2027-01-15": 10, "2027-01-16": 2}
        assert_same(folder, *store_events(one))
        manifest = archive_reader.manifest(str(folder))
        third = archive(one, folder)
        assert (third["events"], third["days"], third["words"]) == (0, {}, ["no new events"])
        assert archive_reader.manifest(str(folder)) == manifest
        assert manifest.days() == {"2027-01-12": 2, "2027-01-15": 10, "2027-01-16": 2}
        shutil.rmtree(folder / "_manifest")
        done = call(one, folder)
        assert (done.exit_code, "no manifest that says which files count" in done.stderr) == (1, True), done.output


def test_the_events_of_a_task_are_in_order_over_runs(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is moved, dispatched and dispatched again, by a clock that always goes backwards.

    No run reads or writes the files of an earlier one.
    """
    monkeypatch.setattr(ArchiveFolder, "read", broken)
    holder, written = one.holder, dict[str, int]()
    numbers = []
    for n in range(3):
        [row] = holder.accept(NOW + n, key="order:42")
        move = holder.move(row, NOW + 100 + n)
        holder.apply(moves=[move], outcomes=[holder.outcome(row.id, "moved", NOW + 5_000 - 1_000 * n)])
        numbers.append(holder.highest_seq)
        start = one.store.lanes(0)[0].offset
        holder.settle(start, place(move), at_ms=NOW + 4_500 - 1_000 * n)
        numbers.append(holder.highest_seq)
        if n:
            replay(one, start, place(move), NOW + 4_400 - 1_000 * n)
            numbers.append(holder.highest_seq)
        archive(one, folder)
        files = {path: Path(path).stat().st_mtime_ns for path in archive_reader.files(str(folder))}
        assert (len(files), files | written) == (n + 1, files)
        written = files
    found = events(folder)
    assert [event[4] or event[3] for event in found] == numbers
    assert [event[6] for event in found] == ["moved", "dispatched", *["moved", "dispatched", "dispatched"] * 2]


# -- interrupted -----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def broken(*_: object, **__: object) -> None:
    raise Broken


def interrupt(at: str, patch: pytest.MonkeyPatch) -> None:
    """Raise at a step of a run: the steps before it are done, and no later one is."""
    if at == "files written":
        patch.setattr(ArchiveFolder, "put", broken)
    if at == "manifest written":
        patch.setattr(SqlMaintenance, "note_archived", broken)


@pytest.mark.parametrize("at", ["files written", "manifest written"])
def test_the_next_run_continues_after_an_interrupted_one(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
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


# -- compacted ---------------------------------------------------------------------------------------------


def test_small_files_are_compacted_and_removed_a_day_later(spark: SparkSession, one: Site, folder: Path) -> None:
    for n in range(3):
        add_events(one, NOW + DAY_MS * (n % 2))
        archive(one, folder)
    old, expected = {*archive_reader.files(str(folder))}, events(folder)
    done = compact(spark, folder)
    assert (done.days, done.removed) == ({"2027-01-15": (2, 1)}, [])
    assert Counter(events(folder)) == Counter(expected)
    new = {*archive_reader.files(str(folder))}
    assert (len(old), len(new), len(old & new)) == (3, 2, 1)
    assert data_files(folder) == old | new, "for readers that began before"
    add_events(one, NOW)
    archive(one, folder)
    done = compact(spark, folder, DAY_MS + 60_000)
    assert (done.days, len(done.removed)) == ({"2027-01-15": (2, 1)}, 2)
    assert_same(folder, *store_events(one))
    compact(spark, folder, 3 * DAY_MS)
    assert data_files(folder) == {*archive_reader.files(str(folder))}
    again = CliRunner().invoke(cli.main, ["compact", "--archive", str(folder)])
    assert (again.exit_code, again.stdout) == (0, "no day has more files than its events need\n"), again.output


@pytest.mark.parametrize("at", ["files written", "old files removed"])
def test_a_compaction_that_is_interrupted_changes_nothing_for_readers(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for n in range(2):
        add_events(one, NOW + n)
        archive(one, folder)
    if at == "old files removed":
        compact(spark, folder)
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveFolder, "put", broken)
        with pytest.raises(Broken):
            compact(spark, folder, 2 * DAY_MS)
    assert_same(folder, *store_events(one))
    compact(spark, folder, 2 * DAY_MS)
    compact(spark, folder, 4 * DAY_MS)
    assert_same(folder, *store_events(one))
    assert data_files(folder) == {*archive_reader.files(str(folder))}


def test_a_copy_that_lacks_an_event_is_refused(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2):
        add_events(one, NOW + n)
        archive(one, folder)
    read = ArchiveFolder.read
    monkeypatch.setattr(ArchiveFolder, "read", lambda *arguments: read(*arguments).limit(3))
    with pytest.raises(FileUnusable, match="but their copy has"):
        compact(spark, folder)
    assert_same(folder, *store_events(one))


def test_large_days_have_several_sorted_files(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "ROWS_A_FILE", 4)
    monkeypatch.setattr(compaction_module, "ROWS_A_FILE", 4)
    fill(one)
    archive(one, folder)
    assert len(archive_reader.files(str(folder))) == 3
    add_events(one, NOW + 60)
    archive(one, folder)
    compact(spark, folder)
    assert len(archive_reader.files(str(folder))) == 3
    queues = [row["queue"] for row in archive_reader.read(str(folder), columns=["queue"]).to_pylist()]
    assert queues == sorted(queues, key=lambda queue: queue or "")
    assert compact(spark, folder).days == {}


def test_old_manifests_are_removed(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("celery_wheel.archive.model", "celery_wheel.pipeline.archive.folder"):
        monkeypatch.setattr(f"{module}.GROUP", 2)
    for n in range(3):  # a first manifest, and two a run
        add_events(one, NOW + n)
        archive(one, folder)
    assert {path.parts[-3] for path in (folder / "_manifest").rglob("part-*")} == {"00000002", "00000003"}
    assert_same(folder, *store_events(one))


def test_the_name_of_a_run_tells_its_instant() -> None:
    assert abs(began_ms(compaction_module.new_run(), 0) - time.time() * 1_000) < 60_000
    assert began_ms("another program", 7) == 7


# -- losses, and refusals -----------------------------------------------------------------


def test_events_that_retention_removed_unarchived_are_reported(spark: SparkSession, one: Site, folder: Path) -> None:
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
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes events while the run reads them."""
    fill(one)
    found, write = store_events(one), ArchiveFolder.write

    def meanwhile(*args: Any) -> Any:
        one.store.forget(0, one.holder.epoch, Retention(NOW + 21, NO_LIMIT), 2)
        return write(*args)

    monkeypatch.setattr(ArchiveFolder, "write", meanwhile)
    said = archive(one, folder, "--allow-loss", "--no-mark")
    assert [loss["shard"] for loss in said["lost"]] == [0]
    assert said["events"] == len(events(folder)) == len(found) - 2
    assert (said["marked"], marks(one)) == (False, {0: 0, 1: 0})


def test_another_store_an_older_copy_and_the_output_of_a_stream_are_refused(
    spark: SparkSession, one: Site, folder: Path, tmp_path: Path
) -> None:
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
    (folder / "_spark_metadata").mkdir()
    done = call(one, folder)
    assert (done.exit_code, "is the output of a stream" in done.stderr) == (1, True), done.output
    assert events(folder) == kept


def test_an_older_copy_that_has_more_events_by_now_is_refused(
    spark: SparkSession, one: Site, folder: Path, tmp_path: Path
) -> None:
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


def test_unarchived_events_that_a_new_shard_lost_are_reported(spark: SparkSession, one: Site, folder: Path) -> None:
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
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_archive_races`` has all other orders of their steps."""
    fill(one)
    write = ArchiveFolder.write

    def other(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveFolder, "write", write)
            archive(one, folder)
        add_events(one, NOW + 60)
        return write(*args)

    monkeypatch.setattr(ArchiveFolder, "write", other)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert len(events(folder)) == 9
    monkeypatch.setattr(ArchiveFolder, "write", write)
    assert archive(one, folder)["events"] == 2
    assert_same(folder, *store_events(one))
