"""``archive`` and ``compact``: each event is in its day once, in order, also after a kill; losses are reported."""

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from sqlalchemy import select

from celery_wheel import archive as archive_reader
from celery_wheel.pipeline import archive as archive_module
from celery_wheel.pipeline import cli
from celery_wheel.pipeline.archive import ArchiveFolder, Compacted, compact_archive
from celery_wheel.results.reader import began_at
from celery_wheel.store.sql import schema
from tests.kit import duck
from tests.kit.holder import NOW, place
from tests.spark.stores import Site, fill, on_postgresql, read_history

DAY_MS = 86_400_000
KEY = ("shard", "lane", "due_ms", "seq", "settlement", "id", "outcome")
Event = tuple[Any, ...]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def call(one: Site, folder: object, *options: str) -> Result:
    return CliRunner().invoke(cli.main, ["archive", "--store", one.url, "--output", str(folder), "--json", *options])


def archive(one: Site, folder: object, *options: str) -> dict[str, Any]:
    done = call(one, folder, *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def events(folder: Path) -> list[Event]:
    files = archive_reader.files(str(folder))
    with duck.connect() as connection:
        rows = connection.execute(
            f"select {', '.join(KEY)} from read_parquet(?, filename = true, file_row_number = true) "
            "order by list_position(?, filename), file_row_number",
            [files, files],
        )
        return rows.fetchall()


def compact(spark: SparkSession, folder: Path, after_ms: int = 0) -> Compacted:
    now_ms = int(time.time() * 1_000) + after_ms
    return compact_archive(ArchiveFolder(spark, str(folder)), now_ms, DAY_MS, lambda _: None)


def data_files(folder: Path) -> set[str]:
    """All Parquet files, also those of killed runs."""
    return {str(path) for path in folder.rglob("*.parquet")}


def store_events(one: Site, **options: str) -> list[Event]:
    return [tuple(row[name] for name in KEY) for row in read_history(one.url, **options)]


def assert_same(folder: Path, *expected: Event) -> None:
    assert Counter(events(folder)) == Counter(expected)


def marks(one: Site) -> dict[int, int]:
    with one.store.database.reading() as connection:
        return {row.shard: row.archived for row in connection.execute(select(schema.shard)).all()}


def add_events(one: Site, at_ms: int) -> None:
    dispatched, cancelled = one.holder.accept(one.store.lanes(0)[0].offset.due_ms + 1, NOW + DAY_MS)
    one.dispatch([dispatched], at_ms)
    rest, outcome = one.holder.stop(cancelled, at_ms), one.holder.outcome(cancelled.id, at_ms=at_ms)
    one.holder.apply(moves=[rest], outcomes=[outcome])


@pytest.mark.slow
@on_postgresql
def test_each_event_is_in_its_day_once_over_runs(spark: SparkSession, filled: Site, folder: Path) -> None:
    first = archive(filled, folder)
    assert (first["events"], first["days"]) == (9, {"2027-01-15": 9})
    assert first["outcomes"] == {"dispatched": 7, "moved": 1, "rejected": 1}
    page = (Path(__file__).parents[2] / "docs" / "pipeline-jobs.md").read_text()
    assert {**json.loads(page.split("```json\n")[1].split("```")[0]), "words": first["words"]} == first
    assert first["marks"] == {"0": filled.holder.highest_seq, "1": filled.second.highest_seq}
    assert marks(filled) == {0: filled.holder.highest_seq, 1: filled.second.highest_seq}
    assert_same(folder, *store_events(filled))
    for days in (1, -3):  # the second by a clock that was set back: on a day before all others
        add_events(filled, NOW + days * DAY_MS)
    filled.dispatch(filled.second.accept(NOW + 1), NOW + 9, filled.second)
    second = archive(filled, folder)
    assert second["outcomes"] == {"cancelled": 2, "dispatched": 3}
    assert second["days"] == {"2027-01-12": 2, "2027-01-15": 10, "2027-01-16": 2}
    assert_same(folder, *store_events(filled))
    manifest = archive_reader.manifest(str(folder))
    third = archive(filled, folder)
    assert (third["events"], third["days"], third["words"]) == (0, {}, ["no new events"])
    assert archive_reader.manifest(str(folder)) == manifest
    assert manifest.days() == {"2027-01-12": 2, "2027-01-15": 10, "2027-01-16": 2}
    shutil.rmtree(folder / "_manifest")
    done = call(filled, folder)
    assert (done.exit_code, "no manifest that says which files count" in done.stderr) == (1, True), done.output


@pytest.mark.slow
def test_events_are_in_order(spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock always goes backwards, and no run reads or writes the files of an earlier one."""
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
            holder.put_offset(start)  # as after a rollback of the broker
            holder.settle(start, place(move), at_ms=NOW + 4_400 - 1_000 * n)
            numbers.append(holder.highest_seq)
        archive(one, folder)
        files = {path: Path(path).stat().st_mtime_ns for path in archive_reader.files(str(folder))}
        assert (len(files), files | written) == (n + 1, files)
        written = files
    found = events(folder)
    assert [event[4] or event[3] for event in found] == numbers
    assert [event[6] for event in found] == ["moved", "dispatched", *["moved", "dispatched", "dispatched"] * 2]


class Broken(Exception):
    pass


def broken(*_: object, **__: object) -> None:
    raise Broken


@pytest.mark.slow
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


@pytest.mark.slow
def test_large_days_are_sorted(spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "ROWS_A_FILE", 4)
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


@pytest.mark.slow
def test_old_manifests_are_gone(spark: SparkSession, one: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("celery_wheel.archive.reader", "celery_wheel.pipeline.archive"):
        monkeypatch.setattr(f"{module}.GROUP", 2)
    for n in range(3):  # a first manifest, and two a run
        add_events(one, NOW + n)
        archive(one, folder)
    assert {path.parts[-3] for path in (folder / "_manifest").rglob("part-*")} == {"00000002", "00000003"}
    assert_same(folder, *store_events(one))


def test_the_output_of_a_stream_is_refused(spark: SparkSession, one: Site, folder: Path) -> None:
    (folder / "_spark_metadata").mkdir(parents=True)
    done = call(one, folder)
    assert (done.exit_code, "is the output of a stream" in done.stderr) == (1, True), done.output
    assert marks(one) == {0: 0, 1: 0}


def test_the_name_of_a_run_tells_its_instant() -> None:
    began = began_at(archive_module.new_run())
    assert began is not None
    assert abs(began.timestamp() - time.time()) < 60
    assert began_at("another program") is None
