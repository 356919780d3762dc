"""Spark reads the same rows of a store as the CLI and the admin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.pipeline.source.statements import HISTORY, HISTORY_SCHEMA, PENDING, PENDING_SCHEMA
from celery_wheel.pipeline.tables import read
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.ports.pages import Criteria
from tests.kit.holder import NOW, place
from tests.spark.stores import MakeUrl, Site, fill, site


def positions(frame: DataFrame) -> list[Position]:
    return sorted(Position(row.due_ms, row.seq) for row in frame.select("due_ms", "seq").collect())


def rows_of(reader: WheelReader) -> list[dict[str, Any]]:
    """Read without Spark: plan the partitions, then read each."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def history(one: Site, **options: str) -> WheelReader:
    return WheelReader(read_options({"url": one.url, "table": HISTORY, **options}), HISTORY_SCHEMA)


def pending(one: Site, **options: str) -> WheelReader:
    return WheelReader(read_options({"url": one.url, **options}), PENDING_SCHEMA)


def test_pending_equals_the_pages_of_the_store(spark: SparkSession, make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        frame = read(spark, "pending", one.url, partitions=3)
        page = one.store.browse.pending(Criteria())
        assert positions(frame) == [task.position for task in page.items]
        [in_lane_3] = frame.where("queue = 'by.key'").collect()
    assert (in_lane_3.lane, in_lane_3.due_ms, in_lane_3.key, in_lane_3.priority) == (3, NOW + 1_500, None, None)
    assert (in_lane_3.due.timestamp(), in_lane_3.created.timestamp()) == ((NOW + 1_500) / 1_000, (NOW - 5) / 1_000)


def test_history_has_dispatched_tasks_and_other_outcomes(spark: SparkSession, make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        frame = read(spark, "history", one.url)
        dispatched = {task.position: task for task in one.store.browse.dispatched(Criteria()).items}
        batches = {found.id for found in one.store.browse.batches(Criteria()).items}
        outcomes = one.store.browse.outcomes(["rejected", "moved"], Criteria()).items
        rows = frame.collect()
    dispatched_rows = [row for row in rows if row.outcome == "dispatched"]
    assert {Position(row.due_ms, row.seq): (row.task_id, row.queue, row.lateness_ms) for row in dispatched_rows} == {
        place: (task.task_id, task.target, task.late_ms) for place, task in dispatched.items()
    }
    assert len(dispatched_rows) == len(dispatched) == 7
    assert {row.batch for row in dispatched_rows} == batches
    assert [row.key for row in dispatched_rows].count("order:42") == 5
    others = {
        row.seq: (row.outcome, row.reason, row.at.timestamp() * 1_000) for row in rows if row not in dispatched_rows
    }
    assert others == {found.id: (found.kind, found.reason, found.at_ms) for found in outcomes}
    assert {(row.lane, row.dispatched, row.lateness_ms) for row in rows if row not in dispatched_rows} == {
        (-1, None, None)
    }


def test_only_the_columns_of_the_schema_are_read(spark: SparkSession, make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        frame = read(spark, "history", one.url, schema="lateness_ms long, task string")
        assert Counter(frame.where("task = 'app.mail'").collect()) == {(15, "app.mail"): 1}
        [first, *_] = WheelReader(read_options({"url": one.url}), frame.select("task").schema).partitions()
    assert "lateness" not in first.sql
    assert first.sql.startswith("SELECT r.task FROM")


def test_options_become_conditions_of_the_store(make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        fill(one)
        assert [row["task"] for row in rows_of(history(one, queue="mail"))] == ["app.mail"]
        assert len(rows_of(history(one, task="app.remind"))) == 7
        assert len(rows_of(history(one, dueFrom=str(NOW + 4), dueTo=str(NOW + 30)))) == 2
        assert {row["due_ms"] - NOW for row in rows_of(pending(one, dueFrom=str(NOW + 1_500)))} == {1_500, 3_000, 4_000}
        assert [row["due_ms"] - NOW for row in rows_of(pending(one, dueTo="2027-01-15T08:00:01.001"))] == [1_000]
        assert rows_of(pending(one, dueTo=str(NOW + 1_000))) == []


def test_one_frame_serves_several_queries(spark: SparkSession, make_url: MakeUrl) -> None:
    """Spark keeps the conditions that a source takes with the frame, so this source takes none."""
    with site(make_url()) as one:
        fill(one)
        frame = read(spark, "history", one.url)
        moved = frame.where("outcome = 'moved'")
        assert (moved.count(), frame.count(), moved.union(frame).count()) == (1, 9, 10)


def test_later_changes_are_not_read(make_url: MakeUrl) -> None:
    """Tasks read late, but only up to the offsets and numbers of the driver's snapshot."""
    with site(make_url()) as one:
        fill(one)
        before = rows_of(pending(one)), rows_of(history(one))
        for options in ({}, {"dueTo": "9999-01-01"}):
            readers = pending(one, **options), history(one)
            parts = [reader.partitions() for reader in readers]
            one.dispatch(one.holder.accept(NOW + 1_001), NOW + 3_000)  # with the earlier rows of lane 0
            [new] = one.second.accept(NOW + 2)
            read = [
                [r for part in of for batch in rd.read(part) for r in batch.to_pylist()]
                for rd, of in zip(readers, parts, strict=True)
            ]
            assert Counter(map(str, read[0])) == Counter(map(str, before[0]))
            assert Counter(map(str, read[1])) == Counter(map(str, before[1]))
            before = rows_of(pending(one)), rows_of(history(one))
            assert new.id in {row["id"] for row in before[0]}


def test_a_replayed_row_was_dispatched_twice(make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        rows = one.holder.accept(NOW, NOW + 2)
        one.dispatch(rows, NOW + 10)
        one.holder.put_offset(ORIGIN)
        [new] = one.holder.accept(NOW + 1)
        one.holder.settle(ORIGIN, place(rows[1]), at_ms=NOW + 90)
        dispatched = [(row["id"], row["lateness_ms"]) for row in rows_of(history(one))]
    assert sorted(dispatched) == [(rows[0].id, 10), (rows[0].id, 90), (rows[1].id, 8), (rows[1].id, 88), (new.id, 89)]


def test_odd_texts_and_times_are_read_unchanged(make_url: MakeUrl) -> None:
    odd = 'a,"b"\n\r\\N é漢字'
    with site(make_url()) as one:
        one.holder.accept(NOW, task_id=odd, key="", task="NULL", routing_key=odd, queue="")
        one.holder.accept(NOW + 1, task_id="x" * 3_000, key="k" * 2_000_000, expires_ms=2**61)
        first, second = sorted(rows_of(pending(one)), key=lambda row: row["due_ms"])
    assert (first["task_id"], first["key"], first["task"], first["queue"]) == (odd, "", "NULL", odd)
    assert (len(second["key"]), second["expires"]) == (2_000_000, None)


def test_an_empty_store_has_no_rows(spark: SparkSession, make_url: MakeUrl) -> None:
    with site(make_url()) as one:
        for table in (PENDING, HISTORY):
            assert read(spark, table, one.url).collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "batches"}, "table must be pending or history, got 'batches'"),
        ({"partitions": "0"}, "partitions must be a number from 1 on, got '0'"),
        ({"partitions": "²"}, "partitions must be a number from 1 on, got '²'"),
        ({"dueFrom": "--5"}, "dueFrom must be an instant"),
        ({"dueFrom": "soon"}, "dueFrom must be an instant"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_options({"url": "sqlite:///x", **options})


def test_a_store_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELERY_WHEEL_STORE", raising=False)
    with pytest.raises(SettingError, match="CELERY_WHEEL_STORE"):
        read_options({})
    monkeypatch.setenv("CELERY_WHEEL_STORE", "sqlite:///x")
    assert read_options({}).url == "sqlite:///x"


def test_errors_of_the_store_reach_the_user_of_spark(spark: SparkSession, make_url: MakeUrl, tmp_path: Any) -> None:
    with pytest.raises(PySparkException, match="a scheduler makes it when it starts"):
        read(spark, "pending", f"sqlite:///{tmp_path}/none.sqlite3").count()
    with site(make_url()) as one:
        with pytest.raises(PySparkException, match="columns of pending must be some of shard"):
            read(spark, "pending", one.url, schema="lateness_ms long").count()
        with pytest.raises(PySparkException, match="column id of pending must be bigint, got string"):
            read(spark, "pending", one.url, schema="id string").count()
        with pytest.raises(PySparkException, match="mode must be append"):
            spark.range(1).write.format("wheel").option("url", one.url).mode("overwrite").save()


def test_a_store_file_on_another_machine_is_an_error(make_url: MakeUrl, tmp_path: Any) -> None:
    with site(make_url()) as one:
        fill(one)
        [part, *_] = pending(one).partitions()
        part = replace(part, url=f"sqlite:///{tmp_path}/elsewhere.sqlite3")
        with pytest.raises(StoreUnusable, match="only on the machine that has the file"):
            list(pending(one).read(part))
