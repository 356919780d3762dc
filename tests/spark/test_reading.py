"""Spark reads the same rows of a store as the CLI and the admin; the history also as a stream.

No row of a stream is skipped or repeated, whatever happens between two micro-batches.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from celery_wheel.errors import SettingError, StoreUnusable
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.pipeline.source.statements import HISTORY, HISTORY_SCHEMA, PENDING, PENDING_SCHEMA
from celery_wheel.pipeline.source.stream import WheelStreamReader
from celery_wheel.pipeline.tables import read, stream, tail
from celery_wheel.store.model import ORIGIN, Change, Position
from celery_wheel.store.ports import Retention
from celery_wheel.store.ports.pages import Criteria
from tests.kit.holder import NO_LIMIT, NOW, place
from tests.spark.stores import Site, fill, new_url, on_sqlite, rows_of, site
from tests.spark.test_archive import add_events, store_events

url = pytest.fixture(params=["sqlite", "postgresql"])(new_url)


def positions(frame: DataFrame) -> list[Position]:
    return sorted(Position(row.due_ms, row.seq) for row in frame.select("due_ms", "seq").collect())


def history(one: Site, **options: str) -> WheelReader:
    return WheelReader(read_options({"url": one.url, "table": HISTORY, **options}), HISTORY_SCHEMA)


def pending(one: Site, **options: str) -> WheelReader:
    return WheelReader(read_options({"url": one.url, **options}), PENDING_SCHEMA)


def test_pending_equals_the_pages_of_the_store(spark: SparkSession, filled: Site) -> None:
    frame = read(spark, "pending", filled.url, partitions=3)
    page = filled.store.browse.pending(Criteria())
    assert positions(frame) == [task.position for task in page.items]
    [in_lane_3] = frame.where("queue = 'by.key'").collect()
    assert (in_lane_3.lane, in_lane_3.due_ms, in_lane_3.key, in_lane_3.priority) == (3, NOW + 1_500, None, None)
    assert (in_lane_3.due.timestamp(), in_lane_3.created.timestamp()) == ((NOW + 1_500) / 1_000, (NOW - 5) / 1_000)


def test_history_has_dispatched_tasks_and_other_outcomes(spark: SparkSession, filled: Site) -> None:
    frame = read(spark, "history", filled.url)
    dispatched = {task.position: task for task in filled.store.browse.dispatched(Criteria()).items}
    settlements = {found.id for found in filled.store.browse.settlements(Criteria()).items}
    outcomes = filled.store.browse.outcomes(["rejected", "moved"], Criteria()).items
    rows = frame.collect()
    dispatched_rows = [row for row in rows if row.outcome == "dispatched"]
    assert {Position(row.due_ms, row.seq): (row.task_id, row.queue, row.lateness_ms) for row in dispatched_rows} == {
        place: (task.task_id, task.target, task.late_ms) for place, task in dispatched.items()
    }
    assert len(dispatched_rows) == len(dispatched) == 7
    assert {row.settlement for row in dispatched_rows} == settlements
    assert [row.key for row in dispatched_rows].count("order:42") == 5
    others = [row for row in rows if row not in dispatched_rows]
    assert {row.seq: (row.outcome, row.reason, row.at.timestamp() * 1_000) for row in others} == {
        found.id: (found.kind, found.reason, found.at_ms) for found in outcomes
    }
    assert {(row.lane, row.dispatched, row.lateness_ms) for row in others} == {(-1, None, None)}


def test_only_the_columns_of_the_schema_are_read(spark: SparkSession, filled: Site) -> None:
    frame = read(spark, "history", filled.url, schema="lateness_ms long, task string")
    assert Counter(frame.where("task = 'app.mail'").collect()) == {(15, "app.mail"): 1}
    [first, *_] = WheelReader(read_options({"url": filled.url}), frame.select("task").schema).partitions()
    assert "lateness" not in first.sql
    assert first.sql.startswith("SELECT r.task FROM")


def test_options_become_conditions_of_the_store(filled: Site) -> None:
    assert [row["task"] for row in rows_of(history(filled, queue="mail"))] == ["app.mail"]
    assert len(rows_of(history(filled, task="app.remind"))) == 7
    assert len(rows_of(history(filled, dueFrom=str(NOW + 4), dueTo=str(NOW + 30)))) == 2
    assert {row["due_ms"] - NOW for row in rows_of(pending(filled, dueFrom=str(NOW + 1_500)))} == {1_500, 3_000, 4_000}
    assert [row["due_ms"] - NOW for row in rows_of(pending(filled, dueTo="2027-01-15T08:00:01.001"))] == [1_000]
    assert rows_of(pending(filled, dueTo=str(NOW + 1_000))) == []


def test_one_frame_serves_several_queries(spark: SparkSession, filled: Site) -> None:
    """Spark keeps the conditions that a source takes with the frame, so this source takes none."""
    frame = read(spark, "history", filled.url)
    moved = frame.where("outcome = 'moved'")
    assert (moved.count(), frame.count(), moved.union(frame).count()) == (1, 9, 10)


def test_later_changes_are_not_read(filled: Site) -> None:
    """Tasks read late, but only up to the offsets and numbers of the driver's snapshot."""
    for options in ({}, {"dueTo": "9999-01-01"}):
        readers = pending(filled, **options), history(filled)
        before = [rows_of(reader) for reader in readers]
        parts = [reader.partitions() for reader in readers]
        filled.dispatch(filled.holder.accept(NOW + 1_001), NOW + 3_000)  # with the earlier rows of lane 0
        [new] = filled.second.accept(NOW + 2)
        for reader, planned, expected in zip(readers, parts, before, strict=True):
            rows = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
            assert Counter(map(str, rows)) == Counter(map(str, expected))
        assert new.id in {row["id"] for row in rows_of(pending(filled, **options))}


def test_a_replayed_row_was_dispatched_twice(one: Site) -> None:
    rows = one.holder.accept(NOW, NOW + 2)
    one.dispatch(rows, NOW + 10)
    one.holder.put_offset(ORIGIN)
    [new] = one.holder.accept(NOW + 1)
    one.holder.settle(ORIGIN, place(rows[1]), at_ms=NOW + 90)
    dispatched = [(row["id"], row["lateness_ms"]) for row in rows_of(history(one))]
    assert sorted(dispatched) == [(rows[0].id, 10), (rows[0].id, 90), (rows[1].id, 8), (rows[1].id, 88), (new.id, 89)]


def test_odd_texts_and_times_are_read_unchanged(one: Site) -> None:
    odd = 'a,"b"\n\r\\N é漢字'
    one.holder.accept(NOW, task_id=odd, key="", task="NULL", routing_key=odd, queue="", group="tenant:é,")
    one.holder.accept(NOW + 1, task_id="x" * 3_000, key="k" * 2_000_000, expires_ms=2**61)
    first, second = sorted(rows_of(pending(one)), key=lambda row: row["due_ms"])
    assert (first["task_id"], first["key"], first["task"], first["queue"]) == (odd, "", "NULL", odd)
    assert (len(second["key"]), second["expires"]) == (2_000_000, None)
    assert (first["group"], second["group"]) == ("tenant:é,", None)
    one.dispatch(one.holder.accept(NOW + 2, group="tenant:2"), NOW + 3)
    assert Counter(row["group"] for row in rows_of(history(one))) == {"tenant:é,": 1, None: 1, "tenant:2": 1}


def test_an_empty_store_has_no_rows(spark: SparkSession, one: Site) -> None:
    for table in (PENDING, HISTORY):
        assert read(spark, table, one.url).collect() == []


EVENTS = {"table": "history", "events": json.dumps({"0": [0, 5]})}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "settlements"}, "table must be pending or history, got 'settlements'"),
        ({"partitions": "0"}, "partitions must be a number from 1 on, got '0'"),
        ({"partitions": "²"}, "partitions must be a number from 1 on, got '²'"),
        ({"dueFrom": "--5"}, "dueFrom must be an instant"),
        ({"dueFrom": "soon"}, "dueFrom must be an instant"),
        ({**EVENTS, "table": "pending"}, "events must go with table=history"),
        *(
            ({**EVENTS, "events": text}, "events must be like")
            for text in ("", "[]", "5", '{"0": 5}', '{"0": [1]}', '{"0": [1, "2"]}', '{"-1": [1, 2]}')
        ),
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


def test_errors_of_the_store_reach_the_user_of_spark(spark: SparkSession, one: Site, tmp_path: Any) -> None:
    with pytest.raises(PySparkException, match="a scheduler makes it when it starts"):
        read(spark, "pending", f"sqlite:///{tmp_path}/none.sqlite3").count()
    with pytest.raises(PySparkException, match="columns of pending must be some of shard"):
        read(spark, "pending", one.url, schema="lateness_ms long").count()
    with pytest.raises(PySparkException, match="column id of pending must be bigint, got string"):
        read(spark, "pending", one.url, schema="id string").count()


def test_a_store_file_on_another_machine_is_an_error(filled: Site, tmp_path: Any) -> None:
    [part, *_] = pending(filled).partitions()
    part = replace(part, url=f"sqlite:///{tmp_path}/elsewhere.sqlite3")
    with pytest.raises(StoreUnusable, match="only on the machine that has the file"):
        list(pending(filled).read(part))


def test_only_the_given_ranges_of_events_are_read(filled: Site) -> None:
    middle = filled.holder.highest_seq
    add_events(filled, NOW + 50)
    new = store_events(filled, events=json.dumps({"0": [middle, 2**40]}))
    assert [event[6] for event in new] == ["dispatched", "cancelled"]
    old = store_events(filled, events=json.dumps({"0": [0, middle], "1": [0, 2**40], "7": [0, 5]}))
    assert Counter([*old, *new]) == Counter(store_events(filled))
    assert store_events(filled, events="{}") == []


def reader(one: Site, **options: str) -> WheelStreamReader:
    return WheelStreamReader(read_options({"url": one.url, "table": "history", **options}), HISTORY_SCHEMA)


def new_rows(stream_reader: WheelStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Counter[tuple[int, int]]:
    parts = stream_reader.partitions(start, end)
    return Counter(
        (row["id"], row["seq"]) for part in parts for batch in stream_reader.read(part) for row in batch.to_pylist()
    )


@pytest.mark.slow
@on_sqlite  # on PostgreSQL with a cluster: ``test_cluster``
def test_each_row_of_history_is_written_once(spark: SparkSession, one: Site, tmp_path: Path) -> None:
    target, checkpoint = str(tmp_path / "history"), str(tmp_path / "checkpoint")
    fill(one)
    for round_ in range(3):
        tail(spark, one.url, target, checkpoint, maxRows=6).awaitTermination()
        written = spark.read.parquet(target)
        kept = written.drop("day").collect()
        assert Counter(kept) == Counter(read(spark, "history", one.url).select(*HISTORY_SCHEMA.names).collect())
        assert len(kept) == [9, 12, 15][round_]  # two new dispatches of shard 0 and an expired one
        one.dispatch(one.holder.accept(NOW + 1_001 + round_ * 9_000), NOW + 99_000)
        [rest] = one.second.accept(NOW)
        one.second.apply(moves=[one.second.stop(rest)], outcomes=[one.second.outcome(rest.id, "expired", NOW + 7)])
    assert {str(row.day) for row in written.select("day").distinct().collect()} == {"2027-01-15"}


def test_a_late_commit_is_not_skipped(one: Site) -> None:
    """The thread of a holder that took the earlier numbers commits last."""
    wheel, holder = reader(one), one.holder
    first, second = holder.accept(NOW, NOW + 1)
    outcome, rest = holder.outcome(first.id), holder.stop(first)
    slow = Change(seq=holder.highest_seq, moves=[rest], outcomes=[outcome])
    holder.apply(moves=[holder.stop(second)], outcomes=[holder.outcome(second.id)])
    start = wheel.initialOffset()
    middle = wheel.latestOffset(start, ReadAllAvailable())
    one.store.apply(0, holder.epoch, slow)
    end = wheel.latestOffset(middle, ReadAllAvailable())
    assert [id_ for id_, _ in new_rows(wheel, start, middle)] == [second.id]
    assert [id_ for id_, _ in new_rows(wheel, middle, end)] == [first.id]
    assert wheel.latestOffset(end, ReadAllAvailable()) == end


def test_a_micro_batch_has_about_max_rows(one: Site) -> None:
    wheel = reader(one, maxRows="4")
    assert wheel.getDefaultReadLimit() == ReadMaxRows(4)
    for n in range(10):
        one.dispatch(one.holder.accept(NOW + n), NOW + n)
    one.dispatch(one.second.accept(NOW), NOW, one.second)
    start, sizes, seen = wheel.initialOffset(), [], Counter[tuple[int, int]]()
    while (end := wheel.latestOffset(start, wheel.getDefaultReadLimit())) != start:
        found = new_rows(wheel, start, end)
        seen += found
        sizes.append(found.total())
        start = end
    assert sizes == [3, 2, 2, 2, 2]
    assert set(seen.values()) == {1}


def test_pending_tasks_are_no_new_history(filled: Site) -> None:
    wheel = reader(filled)
    end = wheel.latestOffset(wheel.initialOffset(), ReadAllAvailable())
    filled.holder.accept(NOW + 50_000)
    assert wheel.latestOffset(end, ReadAllAvailable()) == end


def test_available_now_ends_at_the_events_of_its_start(filled: Site) -> None:
    wheel = reader(filled)
    wheel.prepareForTriggerAvailableNow()
    start = wheel.initialOffset()
    before = wheel.latestOffset(start, ReadAllAvailable())
    filled.dispatch(filled.holder.accept(NOW + 1_001), NOW + 1_001)
    assert wheel.latestOffset(start, ReadAllAvailable()) == before
    assert wheel.latestOffset(before, ReadAllAvailable()) == before


def test_a_stream_may_begin_with_new_events(filled: Site) -> None:
    wheel = reader(filled, startingAt="latest")
    start = wheel.initialOffset()
    assert wheel.latestOffset(start, ReadAllAvailable()) == start
    [new] = filled.second.accept(NOW + 10)
    filled.dispatch([new], NOW + 10, filled.second)
    assert [id_ for id_, _ in new_rows(wheel, start, wheel.latestOffset(start, ReadAllAvailable()))] == [new.id]


def test_events_that_retention_removed_unread_are_an_error_unless_loss_is_allowed(one: Site) -> None:
    wheel, holder = reader(one), one.holder
    rows = holder.accept(*range(NOW, NOW + 4))
    one.dispatch(rows[:1], NOW)
    read_ = wheel.latestOffset(wheel.initialOffset(), ReadAllAvailable())
    one.dispatch(rows[1:2], NOW + 10)
    one.dispatch(rows[2:3], NOW + 20)
    end = wheel.latestOffset(read_, ReadAllAvailable())
    one.store.forget(0, holder.epoch, Retention(NOW + 5, NO_LIMIT), 100)
    assert [id_ for id_, _ in new_rows(wheel, read_, end)] == [rows[1].id, rows[2].id], (
        "retention removed only events that were read"
    )
    one.store.forget(0, holder.epoch, Retention(NOW + 15, NO_LIMIT), 100)
    with pytest.raises(StoreUnusable, match=r"retention removed history of shard 0.*'failOnLoss', 'false'"):
        wheel.partitions(read_, end)
    assert [id_ for id_, _ in new_rows(reader(one, failOnLoss="false"), read_, end)] == [rows[2].id]


def test_the_offset_forgets_a_lane_with_the_store(one: Site) -> None:
    wheel, holder = reader(one), one.holder
    for lane in (1, 2):
        [row] = holder.accept(NOW, lane=lane)
        holder.settle(ORIGIN, place(row), lane=lane)
        holder.apply(closed=[lane])
    end = wheel.latestOffset(wheel.initialOffset(), ReadAllAvailable())
    assert list(end["0"]["offsets"]) == ["1", "2"]
    one.store.forget(0, holder.epoch, Retention(NOW + 5, NO_LIMIT), 100)
    one.dispatch(holder.accept(NOW + 10), NOW + 10)
    assert list(wheel.latestOffset(end, ReadAllAvailable())["0"]["offsets"]) == ["0"]


def test_another_store_is_not_read_from_a_checkpoint(one: Site, tmp_path: Path) -> None:
    offset = reader(one).initialOffset()
    with site(f"sqlite:///{tmp_path}/other.sqlite3") as other, pytest.raises(StoreUnusable, match="new checkpoint"):
        reader(other).latestOffset(offset, ReadAllAvailable())


@on_sqlite
def test_only_the_history_can_be_streamed(spark: SparkSession, one: Site, tmp_path: Path) -> None:
    frame = spark.readStream.format("wheel").option("url", one.url).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="table of a stream must be history"):
        query.awaitTermination()
    assert stream(spark, one.url).schema == HISTORY_SCHEMA


def test_a_replay_is_a_second_dispatch(one: Site) -> None:
    wheel = reader(one)
    rows = one.holder.accept(NOW, NOW + 2)
    one.dispatch(rows, NOW + 10)
    start = wheel.initialOffset()
    end = wheel.latestOffset(start, ReadAllAvailable())
    one.holder.put_offset(Position(NOW, 0))
    one.dispatch(rows, NOW + 90)
    later = wheel.latestOffset(end, ReadAllAvailable())
    assert new_rows(wheel, start, end) == new_rows(wheel, end, later) == Counter((row.id, row.seq) for row in rows)
    assert place(rows[0]) > Position(NOW, 0)
