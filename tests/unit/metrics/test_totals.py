"""The totals of a store: what is pending, due, overdue and paused, with a bounded number of labels."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

from celery_wheel.engine.histogram import OTHER
from celery_wheel.metrics.definitions import MAX_QUEUES
from celery_wheel.metrics.metrics import store_metrics
from celery_wheel.metrics.totals import Totals
from celery_wheel.overview import COUNTING_SHARE, PacedCounts, read_overview
from celery_wheel.store.model import HOUR_MS, Gate
from celery_wheel.store.ports import StoreSize
from celery_wheel.store.ports.schedules import ScheduleCounts
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import LEASE, NOW, Holder, hour_of
from tests.unit.metrics.conftest import read


def tallied(holder: Holder, *due_ms: int, **parts: Any) -> None:
    for row in holder.accept(*due_ms, **parts):
        holder.apply(tally={hour_of(row): 1})


def totals_of(store: SqlStore) -> Totals:
    return Totals(read_overview(store, NOW), store.browse.schedule_counts())


def values(store: SqlStore) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: dict(samples) for name, samples in totals_of(store).samples()}  # type: ignore[arg-type]


def test_pending_tasks_are_counted_by_queue_and_by_the_time_in_which_they_are_due(sql_store: SqlStore) -> None:
    tallied(Holder(sql_store), NOW + 1, NOW + 3 * HOUR_MS)
    tallied(Holder(sql_store, 1), NOW + 400 * 24 * HOUR_MS, queue="mail")
    found = values(sql_store)
    assert found["pending"] == {("celery",): 2, ("mail",): 1}
    assert found["due"] == {("1h",): 1, ("1d",): 2, ("7d",): 2, ("30d",): 2}
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 0}, {(): 0})


def test_overdue_tasks_are_counted_unless_a_pause_holds_them(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    tallied(holder, NOW - 60_000, NOW - 1_000, NOW + 1_000)
    found = values(sql_store)
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 2}, {(): 60})
    assert found["paused"] == {("all",): 0, ("queue",): 0, ("task",): 0}
    holder.apply(gates=[Gate("all", "", "paused", 0, "", "ann", NOW - 5)])
    found = values(sql_store)
    assert (found["overdue"], found["oldest_overdue_seconds"]) == ({(): 0}, {(): 0})
    assert found["paused"] == {("all",): 1, ("queue",): 0, ("task",): 0}


def test_the_fullest_second_of_the_next_hour_is_shown_once_the_seconds_are_counted(sql_store: SqlStore) -> None:
    holder, first = Holder(sql_store), totals_of(sql_store)
    tallied(holder, *[NOW - 1_000] * 4, *[NOW + 5_250] * 2, *[NOW + 9_000, NOW + 9_800, NOW + 9_900])
    found = dict(first.samples())
    assert (found["due_peak"], found["due_peak_timestamp_seconds"]) == ([], [])
    second = read_overview(sql_store, NOW, with_seconds=True, last=first.overview)
    found = dict(Totals(second, first.schedules).samples())
    assert found["due_peak"] == [((), 3)]
    assert found["due_peak_timestamp_seconds"] == [((), NOW / 1_000 + 9)]


def test_the_size_of_the_store_and_its_disk_and_the_objective_are_shown_by_a_scheduler(sql_store: SqlStore) -> None:
    size, disk = sql_store.browse.size(), os.statvfs(sql_store.name)
    assert size.bytes >= os.stat(sql_store.name).st_size > 0
    assert size.disk is not None
    assert size.disk.total == disk.f_blocks * disk.f_frsize
    found = dict(dataclasses.replace(totals_of(sql_store), size=size, objective_ms=1_500).samples())
    assert found["store_bytes"] == [((), size.bytes)]
    assert found["store_disk_bytes"] == [((), size.disk.total)]
    assert found["store_disk_free_bytes"] == [((), size.disk.free)]
    assert found["objective_seconds"] == [((), 1.5)]
    found = dict(dataclasses.replace(totals_of(sql_store), size=StoreSize(7, None)).samples())
    assert (found["store_bytes"], found["store_disk_free_bytes"]) == ([((), 7)], [])


def test_very_many_schedules_are_counted_the_more_rarely(sql_store: SqlStore) -> None:
    now_s, takes_s, counted = 0.0, 0.001, []

    def count() -> ScheduleCounts:
        nonlocal now_s
        now_s += takes_s
        counted.append(now_s)
        return sql_store.browse.schedule_counts()

    counts = PacedCounts(count, lambda: now_s)
    for takes_s in (0.001, 2.0):
        counted.clear()
        for _ in range(10_000):
            now_s += 0.1
            counts.get()
        between_s = [after - before for before, after in itertools.pairwise(counted[1:])]
        assert min(between_s) >= takes_s / COUNTING_SHARE
        assert max(between_s) <= max(1.0, takes_s / COUNTING_SHARE) + takes_s + 0.2


def test_items_of_the_inboxes_are_counted_by_shard_each_message_of_a_pack(sql_store: SqlStore) -> None:
    sql_store.put_inboxes({1: [("cancel", b""), ("messages", b"", 500)]})
    assert read(lambda: store_metrics(totals_of(sql_store)))["inbox_depth"] == {("0",): 0, ("1",): 501}


def test_the_smallest_of_very_many_queues_are_added_up(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    for n in range(MAX_QUEUES + 2):
        tallied(holder, *[NOW + 1] * (1 if n < 3 else 2), queue=f"q{n}")
    found = values(sql_store)["pending"]
    assert len(found) == MAX_QUEUES + 1
    assert found[OTHER,] == 2
    assert sum(found.values()) == 2 * (MAX_QUEUES + 2) - 3


def test_a_process_without_engines_shows_the_counts_of_the_holders_snapshots(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    snapshot = {"accepted": 7, "rejected": 3, "rejected_unique": 1, "window_count": 5, "window_bytes": 600}
    snapshot |= {"clock_skew_ms": -250, "clock_disputed_ms": 0}
    sql_store.renew(0, holder.epoch, NOW - 700, LEASE, snapshot)
    found = read(lambda: store_metrics(totals_of(sql_store)))
    assert found["accepted"] == {("0",): 7}
    assert found["rejected"] == {("0", "unreadable"): 0, ("0", "unique"): 1, ("0", "broker"): 2}
    assert found["holder"] == {("0",): 1, ("1",): 0}
    assert found["window_messages"] == {("0",): 5}
    assert found["clock_skew_seconds"] == {("0",): -0.25}
