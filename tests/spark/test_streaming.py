"""The history as a stream: no row is skipped or repeated, whatever happens between two micro-batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.options import read_options
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA
from celery_wheel.pipeline.source.stream import WheelStreamReader
from celery_wheel.pipeline.tables import read, stream, tail
from celery_wheel.store.model import Change, Position
from celery_wheel.store.ports import Retention
from tests.kit.holder import NO_LIMIT, NOW, place
from tests.spark.stores import Site, fill, new_url, on_sqlite, site

url = pytest.fixture(params=["sqlite", "postgresql"])(new_url)


def reader(one: Site, **options: str) -> WheelStreamReader:
    return WheelStreamReader(read_options({"url": one.url, "table": "history", **options}), HISTORY_SCHEMA)


def new_rows(stream_reader: WheelStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Counter[tuple[int, int]]:
    """The rows of a micro-batch."""
    parts = stream_reader.partitions(start, end)
    return Counter(
        (row["id"], row["seq"]) for part in parts for batch in stream_reader.read(part) for row in batch.to_pylist()
    )


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
        rest = one.second.accept(NOW)
        one.second.apply(
            moves=[one.second.stop(rest[0])], outcomes=[one.second.outcome(rest[0].id, "expired", NOW + 7)]
        )
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
