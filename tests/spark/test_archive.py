"""``archive``: each event of the history is in its day once, in order, whatever was killed; what was lost is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
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
from celery_wheel.pipeline.archive.folder import Folder
from celery_wheel.pipeline.archive.state import States
from celery_wheel.pipeline.columns import HISTORY_SCHEMA
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.store import open_store, schema
from celery_wheel.store.maintenance import SqlMaintenance
from celery_wheel.store.model import ORIGIN
from tests import duck
from tests.servers import wait_until
from tests.spark.stores import MakeUrl, Site, fill, replay, site
from tests.stores.samples import NO_LIMIT, NOW, Holder, place

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
    """What DuckDB finds, in the order of the files and of their rows."""
    with duck.connect() as connection:
        found = connection.execute(
            f"select {', '.join(KEY)} from read_parquet('{folder}/*/*.parquet', filename = true, "
            "file_row_number = true) order by filename, file_row_number"
        )
        return found.fetchall()


def of_store(one: Site, **options: str) -> list[Event]:
    """The same of the store, without Spark."""
    reader = WheelReader(read_options({"url": one.url, "table": "history", **options}), HISTORY_SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [tuple(row[name] for name in KEY) for row in rows]


def assert_same(folder: Path, *wanted: Event) -> None:
    assert Counter(events(folder)) == Counter(wanted)


def marks(one: Site) -> dict[int, int]:
    with one.store.database.reading() as connection:
        return {row.shard: row.archived for row in connection.execute(select(schema.shard)).all()}


def more(one: Site, at_ms: int) -> None:
    """Two more events at that time: one leaves, one is cancelled."""
    left, stopped = one.holder.accept(one.store.lanes(0)[0].offset.due_ms + 1, NOW + DAY_MS)
    one.leave([left], at_ms)
    rest, outcome = one.holder.rest(stopped, at_ms), one.holder.outcome(stopped.id, at_ms=at_ms)
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
        assert_same(folder, *of_store(one))
        for days in (1, -3):  # the second by a clock that was put back: a day that is before all others
            more(one, NOW + days * DAY_MS)
        one.leave(one.second.accept(NOW + 1), NOW + 9, one.second)
        second = archive(one, folder)
        assert second["outcomes"] == {"cancelled": 2, "dispatched": 3}
        assert second["days"] == {"2027-01-12": 2, "2027-01-15": 10, "2027-01-16": 2}
        assert_same(folder, *of_store(one))
        files = sorted(folder.glob("day=*/*.parquet"))
        third = archive(one, folder)
        assert (third["events"], third["days"], third["words"]) == (0, {}, ["nothing new"])
        assert sorted(folder.glob("day=*/*.parquet")) == files
        shutil.rmtree(folder / "_state")
        again = archive(one, folder)
        assert (again["events"], again["marks"]) == (0, third["marks"])
        assert_same(folder, *of_store(one))
    table = ds.dataset(folder, partitioning="hive").to_table()
    assert (table.num_rows, str(table.schema.field("at").type)) == (14, "timestamp[us, tz=UTC]")
    assert list((folder / "_staging").glob("*/*")) == []


def test_what_became_of_a_task_is_in_order_over_runs(spark: SparkSession, one: Site, folder: Path) -> None:
    """Moved, then it left, then it left again; by a clock that goes backwards all the time."""
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


# -- broken off -----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def broken(*_: object, **__: object) -> None:
    raise Broken


def break_off(at: str, patch: pytest.MonkeyPatch) -> None:
    """Everything up to this point has happened, and nothing of what comes after it."""
    replace = Folder.replace

    def in_the_middle(folder: Folder, rows: Any) -> None:
        replace(folder, rows)
        shutil.rmtree(Path(folder.path) / "day=2027-01-15")
        raise Broken

    if at == "written to staging":
        patch.setattr(States, "write", broken)
    if at == "a day is gone":
        patch.setattr(Folder, "replace", in_the_middle)
    if at == "in place":
        patch.setattr(SqlMaintenance, "note_archived", broken)


@pytest.mark.parametrize("at", ["written to staging", "a day is gone", "in place"])
def test_a_run_that_was_broken_off_is_made_good_by_the_next(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    fill(one)
    archive(one, folder)
    before = marks(one)
    more(one, NOW + 50)
    with monkeypatch.context() as patch:
        break_off(at, patch)
        assert isinstance(call(one, folder).exception, Broken)
    assert marks(one) == before
    wanted = of_store(one)
    finished = archive(one, folder)
    assert finished["finished"] == (at != "written to staging")
    assert finished["events"] == 2
    assert_same(folder, *wanted)
    assert marks(one)[0] == one.holder.highest_seq
    assert list((folder / "_staging").glob("*/*")) == []


def test_a_driver_is_killed_while_it_stages(spark: SparkSession, one: Site, folder: Path, tmp_path: Path) -> None:
    """Where it is killed later on is above (a day is gone): Spark's own commit cannot be halted in its middle."""
    fill(one)
    archive(one, folder)
    more(one, NOW + DAY_MS)
    more(one, NOW + 50)
    before, wanted = events(folder), of_store(one)
    command = [sys.executable, "-m", "tests.spark.archiving", one.url, str(folder), str(tmp_path / "scratch")]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            staging = "_staging/*/_temporary/**/*.parquet"
            wait_until(lambda: any(folder.glob(staging)) or process.poll() is not None, "it stages", seconds=120)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert events(folder) == before, "no day was changed"
    more(one, NOW + 60)
    assert archive(one, folder)["events"] == 6
    assert_same(folder, *wanted, *(event for event in of_store(one) if event not in wanted))


# -- what was lost, and what is refused -----------------------------------------------------------------


def test_what_was_forgotten_before_it_was_archived_is_told(spark: SparkSession, one: Site, folder: Path) -> None:
    fill(one)
    archive(one, folder)
    archived = one.holder.highest_seq
    one.store.forget(0, one.holder.epoch, NOW + 21, NO_LIMIT, 100)
    more(one, NOW + 40)
    kept = events(folder)
    assert archive(one, folder)["lost"] == [], "what went was archived"
    assert len(events(folder)) == len(kept) + 2
    more(one, NOW + 100)
    lost = one.holder.highest_seq
    more(one, NOW + 200)
    one.store.forget(0, one.holder.epoch, NOW + 150, NO_LIMIT, 100)
    done = call(one, folder)
    said = json.loads(done.stdout)
    [gap] = said["lost"]
    assert (done.exit_code, said["events"], said["gaps"]) == (1, 2, [gap])
    assert archived < gap["after"] < gap["upto"] == lost
    assert gap["before"] == "2027-01-15T08:00:00.200000+00:00"
    assert "wheel_history_archive = True" in said["words"][1]
    assert archive(one, folder)["gaps"] == [gap], "told once, and known for good"


def test_a_loss_may_be_allowed_and_the_mark_left_as_it_is(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes away what is just being read."""
    fill(one)
    found, stage = of_store(one), Folder.stage

    def meanwhile(*given: Any) -> Any:
        one.store.forget(0, one.holder.epoch, NOW + 21, NO_LIMIT, 2)
        return stage(*given)

    monkeypatch.setattr(Folder, "stage", meanwhile)
    said = archive(one, folder, "--allow-loss", "--no-mark")
    assert [loss["shard"] for loss in said["lost"]] == [0]
    assert said["events"] == len(events(folder)) == len(found) - 2
    assert (said["marked"], marks(one)) == (False, {0: 0, 1: 0})


def test_another_store_one_that_was_put_back_and_a_streams_folder_are_refused(
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
    assert (done.exit_code, "it was put back to an older copy" in done.stderr) == (1, True), done.output
    (folder / "_spark_metadata").mkdir()
    done = call(one, folder)
    assert (done.exit_code, "is a folder that a stream writes to" in done.stderr) == (1, True), done.output
    assert events(folder) == kept


def test_a_store_that_was_put_back_and_went_on_since_is_refused(
    spark: SparkSession, one: Site, folder: Path, tmp_path: Path
) -> None:
    """Its numbers are beyond the archive's by now, and some of them were given twice."""
    fill(one)
    paths = (tmp_path / "wheel.sqlite3", tmp_path / "copy.sqlite3")
    with closing(sqlite3.connect(paths[0])) as store, closing(sqlite3.connect(paths[1])) as copy:
        store.backup(copy)
    more(one, NOW + 50)
    archive(one, folder)
    with site(f"sqlite:///{tmp_path}/copy.sqlite3") as other:
        for n in range(5):
            more(other, NOW + 60 + n)
        assert other.holder.highest_seq > one.holder.highest_seq
        before = marks(other)
        done = call(other, folder)
        assert (done.exit_code, "it was put back to an older copy" in done.stderr) == (1, True), done.output
        assert marks(other) == before
    more(one, NOW + 70)
    assert archive(one, folder, "--no-mark")["events"] == 2


def test_what_a_new_shard_forgot_before_it_was_archived_is_told(spark: SparkSession, one: Site, folder: Path) -> None:
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
        assert store.forget(2, third.epoch, NOW + 10, NO_LIMIT, 100) == len(rows) > 0
    done = call(one, folder)
    lost = [(loss["shard"], loss["upto"]) for loss in json.loads(done.stdout)["lost"]]
    assert (done.exit_code, lost) == (1, [(2, upto)])


@pytest.mark.parametrize("at", ["its state is written", "a day is replaced"])
def test_a_run_that_another_has_overtaken_moves_no_mark(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Both looked at the same time and saw no other: the one that wrote last goes on."""
    fill(one)

    def overtaken() -> None:
        states = States(spark, str(folder))
        last = states.begin()
        assert last is not None
        states.write(replace(last, serial=last.serial, run="other", marks={0: 1, 1: 1}))

    look, put = States.check, Folder.replace
    calls = []

    def check(states: States) -> None:
        calls.append(states)
        if at == "its state is written" and len(calls) == 2:
            monkeypatch.setattr(States, "check", look)
            overtaken()
        look(states)

    def meanwhile(given: Folder, rows: Any) -> None:
        put(given, rows)
        if at == "a day is replaced":
            overtaken()

    monkeypatch.setattr(States, "check", check)
    monkeypatch.setattr(Folder, "replace", meanwhile)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert marks(one) == {0: 0, 1: 0}
    assert any(folder.glob("day=*")) == (at == "a day is replaced")


def test_a_run_beside_another_stops(
    spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(one)
    stage = Folder.stage

    def other(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "stage", stage)
            archive(one, folder)
        more(one, NOW + 60)
        return stage(*given)

    monkeypatch.setattr(Folder, "stage", other)
    done = call(one, folder)
    assert (done.exit_code, "another run writes to the archive" in done.stderr) == (1, True), done.output
    assert len(events(folder)) == 9
    monkeypatch.setattr(run_module, "ROWS_A_FILE", 4)
    monkeypatch.setattr(Folder, "stage", stage)
    assert archive(one, folder)["events"] == 2
    assert len(events(folder)) == 11
    assert len(list(folder.glob("day=2027-01-15/*.parquet"))) == 3
