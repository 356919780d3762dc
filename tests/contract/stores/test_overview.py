"""The overview of a store: its figures, its statements, and sums that never differ from the rows."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.overview import read_overview
from celery_wheel.store.model import DAY_MS, HOUR_MS, ORIGIN, PAUSED, Gate, LaneState, StoredMessage
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql.schema import total
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import ShardEpoch
from tests.contract.stores.test_tables import rows_of
from tests.kit.counts import check_sums, check_tally, reads_of
from tests.kit.holder import LEASE, NOW, Holder, hour_of, place
from tests.kit.rows import tally_key

MakeSqlStore = Callable[[], SqlStore]
LATER = NOW + 60_000


def accept(holder: Holder, *due_ms: int, **parts: Any) -> list[StoredMessage]:
    rows = [holder.row(due, **parts) for due in due_ms]
    for row in rows:
        holder.apply(rows=[row], tally={hour_of(row): 1})
    return rows


def test_an_overview_has_the_state_of_each_shard(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.apply(lanes=[LaneState(1, ORIGIN, ORIGIN, "mail", scope="queue")])
    accept(sql_holder, NOW - 90_000, NOW - 1, NOW, NOW + 1)
    accept(sql_holder, NOW - 5, NOW + 5, lane=1, queue="mail")
    sql_holder.apply(gates=[Gate("queue", "mail", PAUSED, 0, "the provider is down", "ann", NOW - 7_000)])
    sql_store.renew(0, sql_holder.epoch, NOW - 500, LEASE, {"dispatched": 7, "levels": [{"level": 0}]})
    sql_store.put_inbox(0, [("cancel", b"{}")])
    sql_store.put_inboxes({0: [("messages", b"x", 40)]})
    sql_store.register_scheduler("standby", NOW - 1, 1)
    found = read_overview(sql_store, NOW)
    first, second = found.shards
    assert (first.holder, first.epoch, first.live, first.snapshot_age_ms) == ("host-a", sql_holder.epoch, True, 500)
    assert (first.pending, first.overdue, first.held, first.behind_ms) == (6, 3, 1, 90_000)
    assert (first.next_due_ms, first.inbox, first.snapshot) == (NOW - 90_000, 41, {"dispatched": 7})
    assert [one["scope"] for one in first.lanes] == [None, "queue"]
    assert (second.holder, second.live, second.pending, second.inbox) == (None, False, 0, 0)
    assert (found.pending, found.overdue, found.behind_ms) == (6, 3, 90_000)
    assert [(one.name, one.reason, one.at_ms) for one in found.gates] == [("mail", "the provider is down", NOW - 7_000)]
    assert found.standby == ["standby"]
    snapshot = read_overview(sql_store, NOW, with_levels=True).shards[0].snapshot
    assert snapshot == {"dispatched": 7, "levels": [{"level": 0}]}
    assert (sql_store.browse.levels(0), sql_store.browse.levels(1)) == ([{"level": 0}], [])
    sql_holder.apply(gates=[Gate("all", "", PAUSED, 0, "", "ann", NOW)])
    paused = read_overview(sql_store, NOW).shards[0]
    assert (paused.overdue, paused.held, paused.behind_ms) == (0, 4, 0), "nothing of a pause of everything is overdue"


def test_an_overview_has_what_is_due_by_second_hour_day(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    accept(sql_holder, NOW - 2 * HOUR_MS, NOW + 400, NOW + 500, NOW + 61_000, task="app.a")
    accept(second, NOW + 500, NOW + 47 * HOUR_MS, NOW + 49 * HOUR_MS, NOW + 300 * DAY_MS, task="app.b", queue="mail")
    found = read_overview(sql_store, NOW, with_seconds=True)
    due = found.due
    assert due.seconds == {NOW: 3, NOW + 61_000: 1}
    assert due.minutes == {NOW: 3, NOW + 60_000: 1}
    assert due.hours == {NOW - 2 * HOUR_MS: 1, NOW: 4, NOW + 47 * HOUR_MS: 1}
    assert due.days_from_ms == NOW + 48 * HOUR_MS
    in_two_days, far = due.days_from_ms, (NOW + 300 * DAY_MS) // DAY_MS * DAY_MS
    assert due.days == {in_two_days: 1, far: 1}
    assert sum(due.hours.values()) + sum(due.days.values()) == found.pending == 8
    assert (found.queues, found.tasks) == ({"celery": 4, "mail": 4}, {"app.a": 4, "app.b": 4})
    again = read_overview(sql_store, NOW + 1_000, last=found)
    assert (again.due.seconds, again.due.seconds_ms) == (due.seconds, NOW)


@pytest.mark.parametrize("shards", [1, 64])
def test_a_reading_takes_four_statements_for_any_number_of_shards(sql_store: SqlStore, shards: int) -> None:
    sql_store.maintenance.reshard(shards, shard_of, LATER)
    for shard in {0, shards - 1}:
        holder = Holder(sql_store, shard)
        accept(holder, LATER, LATER + DAY_MS)
        sql_store.renew(shard, holder.epoch, LATER, LEASE, {"levels": []})
    for with_seconds in (False, True):
        with reads_of(sql_store) as statements:
            found = read_overview(sql_store, LATER, with_seconds=with_seconds, with_levels=True)
        assert len(found.shards) == shards
        assert found.pending == (2 if shards == 1 else 4)
        assert len(statements) == 4


@pytest.mark.parametrize("seed", range(3))
def test_the_sums_are_those_of_the_rows_after_random_changes(make_sql_store: MakeSqlStore, seed: int) -> None:
    rng, store = random.Random(seed), make_sql_store()
    for _ in range(4):
        holders = [Holder(store, shard) for shard in range(len(store.holders()))]
        for _ in range(12):
            _change(store, rng.choice(holders), rng)
            check_tally(store)
        for holder in holders:
            store.release(holder.shard, holder.epoch)
        store.maintenance.reshard(rng.randrange(1, 5), shard_of, LATER)
        check_tally(store)


def _change(store: SqlStore, holder: Holder, rng: random.Random) -> None:
    (lane,) = store.lanes(holder.shard)
    rows = holder.slice(lane.offset)
    choice = rng.randrange(6)
    if choice <= 2 or not rows:
        names = {"task": rng.choice(["app.a", "app.b"]), "queue": rng.choice(["x", "y"])}
        first = max(LATER, lane.offset.due_ms)
        accept(holder, *[first + rng.randrange(3 * DAY_MS) for _ in range(rng.randrange(1, 9))], **names)
    elif choice == 3:
        row = rng.choice(rows)
        move = holder.move(row, row.due_ms + rng.choice([1, HOUR_MS, DAY_MS]))
        key = tally_key(row)
        to = key._replace(hour=move.due_ms // HOUR_MS)
        holder.apply(moves=[move], tally={key: -1, to: 1} if to != key else {})
    elif choice == 4:
        upto = place(rows[rng.randrange(min(4, len(rows)))])
        done = store.summary(holder.shard, 0, lane.offset, upto).tally
        holder.apply(lanes=[LaneState(0, upto, upto)], tally={key: -count for key, count in done.items()})
        if rng.random() < 0.3:  # the broker has lost it: the offset moves back
            holder.apply(lanes=[LaneState(0, lane.offset, lane.offset)], tally=done)
    else:
        hold = ShardEpoch(holder.shard, holder.epoch, LATER)
        store.handover.mark_moved(hold, [row.id for row in rng.sample(rows, min(3, len(rows)))], "drained")
        holder.acquire()


def test_sums_of_nothing_are_removed_with_the_history(sql_holder: Holder, sql_store: SqlStore) -> None:
    (row,) = accept(sql_holder, NOW)
    sql_holder.apply(lanes=[LaneState(0, place(row), place(row))], tally={hour_of(row): -1})
    sums = [one["pending"] for one in rows_of(sql_store, total) if one["kind"] != "route"]
    assert sums == [0, 0, 0, 0]
    check_sums(sql_store)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 2 * DAY_MS, 2**60), 100)
    left = [(one["kind"], one["pending"]) for one in rows_of(sql_store, total) if one["number"]]
    assert left == [("route", 1)], "no settlement has the row"
    assert [(one["kind"], one["pending"]) for one in rows_of(sql_store, total)].count(("shard", 0)) == 1
