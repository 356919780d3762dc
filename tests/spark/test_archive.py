"""``archive``: each event of the history is in its day once, in order, also after a kill; losses are reported."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from sqlalchemy import select, update

from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import run as run_module
from celery_wheel.pipeline.archive.folder import ArchiveFolder
from celery_wheel.pipeline.archive.state import ArchiveStateFile
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
from tests.kit.patience import wait_until
from tests.kit.processes import python
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
    with duck.connect() as connection:
        found = connection.execute(
            f"select {', '.join(KEY)} from read_parquet('{folder}/*/*.parquet', filename = true, "
            "file_row_number = true) order by filename, file_row_number"
        )
        return found.fetchall()


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
        files = sorted(folder.glob("day=*/*.parquet"))
        third = archive(one, folder)
        assert (third["events"], third["days"], third["words"]) == (0, {}, ["no new events"])
        assert sorted(folder.glob("day=*/*.parquet")) == files
        shutil.rmtree(folder / "_state")
        again = archive(one, folder)
        assert (again["events"], again["marks"]) == (0, third["marks"])
        assert_same(folder, *store_events(one))
    table = ds.dataset(folder, partitioning="hive").to_table()
    assert (table.num_rows, str(table.schema.field("at").type)) == (14, "timestamp[us, tz=UTC]")
    assert list((folder / "_staging").glob("*/*")) == []


def test_the_events_of_a_task_are_in_order_over_runs(spark: SparkSession, one: Site, folder: Path) -> None:
    """A task is moved, dispatched and dispatched again, by a clock that always goes backwards."""
    holder = one.holder
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
    found = events(folder)
    assert [event[4] or event[3] for event in found] == numbers
    assert [event[6] for event in found] == ["moved", "dispatched", *["moved", "dispatched", "dispatched"] * 2]


# -- interrupted -----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def broken(*_: object, **__: object) -> None:
    raise Broken


def interrupt(at: str, patch: pytest.MonkeyPatch) -> None:
    """Raise at a step of the run: the steps before it are done, and no later one is."""
    replace = ArchiveFolder.replace

    def in_the_middle(folder: ArchiveFolder, rows: Any) -> None:
        replace(folder, rows)
        shutil.rmtree(Path(folder.path) / "day=2027-01-15")
        raise Broken

    if at == "staged":
        patch.setattr(ArchiveStateFile, "write", broken)
    if at == "a day is removed":
        patch.setattr(ArchiveFolder, "replace", in_the_middle)
    if at == "days replaced":
        patch.setattr(SqlMaintenance, "note_archived", broken)


@pytest.mark.parametrize("at", ["staged", "a day is removed", "days replaced"])
def test_the_next_run_finishes_an_interrupted_one(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    fill(one)
    archive(one, folder)
    before = marks(one)
    add_events(one, NOW + 50)
    with monkeypatch.context() as patch:
        interrupt(at, patch)
        assert isinstance(call(one, folder).exception, Broken)
    assert marks(one) == before
    expected = store_events(one)
    finished = archive(one, folder)
    assert finished["finished"] == (at != "staged")
    assert finished["events"] == 2
    assert_same(folder, *expected)
    assert marks(one)[0] == one.holder.highest_seq
    assert list((folder / "_staging").glob("*/*")) == []


def test_a_driver_is_killed_while_it_stages(spark: SparkSession, one: Site, folder: Path, tmp_path: Path) -> None:
    """A kill at a later step is tested above ("a day is removed"): Spark's commit cannot be stopped in its middle."""
    fill(one)
    archive(one, folder)
    add_events(one, NOW + DAY_MS)
    add_events(one, NOW + 50)
    before, expected = events(folder), store_events(one)
    arguments = ("-m", "tests.spark.archiving", one.url, str(folder), str(tmp_path / "scratch"))
    with python(tmp_path / "archiving.log", *arguments) as process:
        staging = "_staging/*/_temporary/**/*.parquet"
        wait_until(lambda: any(folder.glob(staging)) or not process.is_alive(), "it stages", seconds=120)
        assert process.is_alive()
    assert events(folder) == before, "no day was changed"
    add_events(one, NOW + 60)
    assert archive(one, folder)["events"] == 6
    assert_same(folder, *expected, *(event for event in store_events(one) if event not in expected))


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
    found, stage = store_events(one), ArchiveFolder.stage

    def meanwhile(*args: Any) -> Any:
        one.store.forget(0, one.holder.epoch, Retention(NOW + 21, NO_LIMIT), 2)
        return stage(*args)

    monkeypatch.setattr(ArchiveFolder, "stage", meanwhile)
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


@pytest.mark.parametrize("at", ["its state is written", "a day is replaced"])
def test_a_run_that_another_run_overtakes_moves_no_mark(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """If two runs begin at the same time, the one that wrote the state last continues."""
    fill(one)

    def overtaken() -> None:
        states = ArchiveStateFile(spark, str(folder))
        last = states.begin()
        assert last is not None
        states.write(replace(last, serial=last.serial, run="other", marks={0: 1, 1: 1}))

    look, put = ArchiveStateFile.check, ArchiveFolder.replace
    calls = []

    def check(states: ArchiveStateFile) -> None:
        calls.append(states)
        if at == "its state is written" and len(calls) == 2:
            monkeypatch.setattr(ArchiveStateFile, "check", look)
            overtaken()
        look(states)

    def meanwhile(given: ArchiveFolder, rows: Any) -> None:
        put(given, rows)
        if at == "a day is replaced":
            overtaken()

    monkeypatch.setattr(ArchiveStateFile, "check", check)
    monkeypatch.setattr(ArchiveFolder, "replace", meanwhile)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert marks(one) == {0: 0, 1: 0}
    assert any(folder.glob("day=*")) == (at == "a day is replaced")


def test_a_run_stops_when_another_writes_the_archive(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(one)
    stage = ArchiveFolder.stage

    def other(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveFolder, "stage", stage)
            archive(one, folder)
        add_events(one, NOW + 60)
        return stage(*args)

    monkeypatch.setattr(ArchiveFolder, "stage", other)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert len(events(folder)) == 9
    monkeypatch.setattr(run_module, "ROWS_A_FILE", 4)
    monkeypatch.setattr(ArchiveFolder, "stage", stage)
    assert archive(one, folder)["events"] == 2
    assert len(events(folder)) == 11
    assert len(list(folder.glob("day=2027-01-15/*.parquet"))) == 3
