"""A range is (after, upto] of one lane of one shard, in order of (due, seq).

Closed lanes: a closed lane leaves memory, and its rows stay dispatched.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from celery_wheel.store.model import (
    HOUR_MS,
    MAX_SEQ,
    ORIGIN,
    LaneState,
    Position,
    RangeSummary,
    StoredMessage,
    TallyKey,
)
from celery_wheel.store.ports import Retention, Store
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.schema import lane
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import END, EVERYTHING, NO_LIMIT, NOW, Holder, ids, place
from tests.kit.rows import tally_key


def test_rows_come_in_order_of_due_time_and_then_of_arrival(holder: Holder) -> None:
    a, b, c, d = holder.accept(NOW + 2, NOW + 1, NOW + 2, NOW)
    assert holder.ids() == [d.id, b.id, a.id, c.id]


def test_a_range_begins_after_its_start_and_ends_with_its_end(holder: Holder) -> None:
    first, second, third = holder.accept(NOW, NOW, NOW + 1)
    at = [place(first), place(second), place(third)]
    count, slice_ = holder.store.count, holder.slice
    assert [row.id for row in slice_(at[0], at[1])] == [second.id]
    assert [row.id for row in slice_(at[0].previous(), at[0])] == [first.id]
    assert [row.id for row in slice_(at[1], at[2].previous())] == []
    assert slice_(at[1], at[1]) == []
    assert slice_(at[2], at[0]) == []
    assert (count(0, 0, at[0], at[1]), count(0, 0, at[1], at[1]), count(0, 0, at[2], at[0])) == (1, 0, 0)
    assert count(0, 0, ORIGIN, at[2]) == 3


def test_a_bound_need_not_be_the_position_of_a_row(holder: Holder) -> None:
    [row] = holder.accept(NOW)
    assert holder.store.count(0, 0, Position(NOW - 1, END.seq), Position(NOW, END.seq)) == 1
    assert holder.store.count(0, 0, Position(NOW, 0), Position(NOW, row.seq)) == 1
    assert holder.store.count(0, 0, Position(NOW, row.seq), Position(NOW + 1, 0)) == 0


def test_a_range_sees_only_its_lane_and_shard(make_store: Callable[[], Store]) -> None:
    store = make_store()
    holder = Holder(store, shard=0)
    [here] = holder.accept(NOW)
    [there] = holder.accept(NOW, lane=1)
    [elsewhere] = Holder(store, shard=1).accept(NOW)
    assert [row.id for row in store.slice(0, 0, *EVERYTHING)] == [here.id]
    assert [row.id for row in store.slice(0, 1, *EVERYTHING)] == [there.id]
    assert [row.id for row in store.slice(1, 0, *EVERYTHING)] == [elsewhere.id]
    assert store.count(0, 2, *EVERYTHING) == 0


@pytest.mark.parametrize("seed", range(5))
def test_every_range_agrees_with_a_sorted_list(holder: Holder, seed: int) -> None:
    rng = random.Random(seed)
    rows = [holder.row(NOW + rng.randrange(40), body=b"x" * rng.randrange(50)) for _ in range(200)]
    holder.apply(rows=rows)
    expected = sorted(rows, key=place)
    for _ in range(40):
        low, high = (Position(NOW + rng.randrange(-1, 41), rng.randrange(200 * 256)) for _ in range(2))
        inside = [row for row in expected if low < place(row) <= high]
        assert [row.id for row in holder.slice(low, high)] == ids(inside)
        assert holder.store.count(0, 0, low, high) == len(inside)
        summary = holder.store.summary(0, 0, low, high)
        assert (summary.count, summary.bytes) == (len(inside), sum(row.message.size for row in inside))


# -- slice_end -----------------------------------------------------------------------------------------------


def test_a_range_within_bounds_ends_at_its_end(holder: Holder) -> None:
    holder.accept(NOW, NOW + 1)
    assert holder.store.slice_end(0, 0, ORIGIN, END, 2, NO_LIMIT) == END
    assert holder.store.slice_end(0, 0, ORIGIN, END, 5_000, NO_LIMIT) == END


def test_an_empty_range_reaches_to_its_end(holder: Holder) -> None:
    assert holder.store.slice_end(0, 0, ORIGIN, END, 1, 1) == END


def test_a_count_ends_at_the_last_row_within(holder: Holder) -> None:
    rows = sorted(holder.accept(NOW + 3, NOW + 1, NOW + 2, NOW + 2), key=place)
    for count in (1, 2, 3):
        upto = holder.store.slice_end(0, 0, ORIGIN, END, count, NO_LIMIT)
        assert upto == place(rows[count - 1])
        assert len(holder.slice(ORIGIN, upto)) == count
    assert holder.store.slice_end(0, 0, place(rows[0]), END, 2, NO_LIMIT) == place(rows[2])


def test_a_weight_ends_at_the_last_row_within(holder: Holder) -> None:
    rows = [holder.row(NOW + n, headers=b"h" * 10, properties=b"p" * 20, body=b"b" * 70) for n in range(4)]
    holder.apply(rows=rows)
    slice_end = holder.store.slice_end
    assert slice_end(0, 0, ORIGIN, END, 100, 199) == place(rows[0])
    assert slice_end(0, 0, ORIGIN, END, 100, 200) == place(rows[1])
    assert slice_end(0, 0, ORIGIN, END, 100, 399) == place(rows[2])
    assert slice_end(0, 0, ORIGIN, END, 100, 400) == END
    assert slice_end(0, 0, ORIGIN, END, 1, 400) == place(rows[0])


def test_a_slice_has_at_least_one_row_of_any_size(holder: Holder) -> None:
    heavy, light = holder.accept(NOW, NOW + 1, body=b"x" * 1000)
    assert holder.store.slice_end(0, 0, ORIGIN, END, 10, 5) == place(heavy)
    assert holder.store.slice_end(0, 0, place(heavy), END, 10, 5) == END
    assert holder.store.slice_end(0, 0, ORIGIN, place(light).previous(), 1, 5) == place(light).previous()


# -- summary ---------------------------------------------------------------------------------------------


def test_a_summary_counts_by_hour_queue_and_task(holder: Holder) -> None:
    rows = [
        holder.row(NOW, task="a", queue="mail"),
        holder.row(NOW + HOUR_MS - 1, task="a", queue="mail"),
        holder.row(NOW + HOUR_MS, task="a", queue="mail"),
        holder.row(NOW, task="b", queue="mail"),
        holder.row(NOW, task="a", queue=None, routing_key="mail"),
        holder.row(NOW, task="a", queue="", routing_key="other"),
    ]
    holder.apply(rows=rows)
    hour = NOW // HOUR_MS
    summary = holder.store.summary(0, 0, *EVERYTHING)
    assert summary.tally == {
        TallyKey(hour, "mail", "a"): 3,
        TallyKey(hour + 1, "mail", "a"): 1,
        TallyKey(hour, "mail", "b"): 1,
        TallyKey(hour, "other", "a"): 1,
    }
    assert (summary.count, summary.bytes) == (6, sum(row.message.size for row in rows))


def test_a_summary_agrees_with_the_rows_keys(holder: Holder) -> None:
    """Settling subtracts from the tally exactly what accepting added."""
    rng = random.Random(3)
    for _ in range(60):
        queue = rng.choice(["a", "b", "", None])
        holder.accept(NOW + rng.randrange(3 * HOUR_MS), queue=queue, routing_key=rng.choice(["a", "k"]))
    expected = Counter(map(tally_key, holder.slice()))
    assert holder.store.summary(0, 0, *EVERYTHING).tally == expected


def test_a_summary_of_nothing_is_empty(holder: Holder) -> None:
    assert holder.store.summary(0, 0, *EVERYTHING) == RangeSummary(0, 0, {})


#: A lane is numbered by a seq: beyond 32 bits.
NUMBER = (1 << 40) + 7


def settled_lane(holder: Holder, number: int = NUMBER) -> StoredMessage:
    """Make a lane whose one task is dispatched, and that the same change closes."""
    row = holder.row(NOW, lane=number)
    holder.apply(rows=[row], lanes=[LaneState(number, ORIGIN, ORIGIN, "slow")])
    end = place(row)
    batch = holder.batch(ORIGIN, end, lane=number)
    holder.apply(batches=[batch], lanes=[LaneState(number, end, end, "slow")], closed=[number])
    return row


def numbers(holder: Holder) -> list[int]:
    return [one.lane for one in holder.store.lanes(0)]


def test_a_lane_number_may_be_any_seq(holder: Holder) -> None:
    highest = MAX_SEQ - 1
    row = holder.row(NOW, lane=highest)
    holder.apply(rows=[row], lanes=[LaneState(highest, ORIGIN, ORIGIN)])
    assert holder.ids(lane=highest) == [row.id]
    assert numbers(holder) == [0, highest]


def test_a_closed_lane_is_no_longer_among_the_lanes(holder: Holder) -> None:
    row = settled_lane(holder)
    assert numbers(holder) == [0]
    assert [found.lane for found in holder.store.find(0, [row.message.task_id])] == [NUMBER]
    assert holder.store.count(0, NUMBER, *EVERYTHING) == 1


def test_a_lane_state_opens_it_again(holder: Holder) -> None:
    row = settled_lane(holder)
    more = holder.row(NOW + 1, lane=NUMBER)
    state = LaneState(NUMBER, place(row), place(row), "slow")
    holder.apply(rows=[more], lanes=[state])
    assert holder.store.lanes(0)[1] == state


def test_a_lane_is_forgotten_with_its_history(holder: Holder) -> None:
    settled_lane(holder)
    assert holder.store.forget(0, holder.epoch, Retention(NOW, NO_LIMIT), 100) == 0
    assert holder.store.forget(0, holder.epoch, Retention(NOW + 1, NO_LIMIT), 100) == 1
    assert numbers(holder) == [0]
    # The store has no trace of the lane any more: the number begins anew like any other.
    state = LaneState(NUMBER, ORIGIN, ORIGIN)
    holder.apply(lanes=[state])
    assert holder.store.lanes(0)[1] == state


def lanes_stored(store: SqlStore) -> set[int]:
    with store.database.reading() as connection:
        return set(connection.scalars(lane.select().with_only_columns(lane.c.lane).where(lane.c.shard == 0)))


def test_only_closed_lanes_without_history_are_forgotten(sql_holder: Holder, sql_store: SqlStore) -> None:
    settled_lane(sql_holder)
    empty, young = NUMBER + 1, NUMBER + 2
    sql_holder.apply(lanes=[LaneState(empty, ORIGIN, ORIGIN)], closed=[empty])
    sql_holder.apply(lanes=[LaneState(young, ORIGIN, ORIGIN)])
    Holder(sql_store, shard=1).apply(lanes=[LaneState(empty, ORIGIN, ORIGIN)], closed=[empty])
    sql_store.forget(0, sql_holder.epoch, Retention(NOW, NO_LIMIT), 100)
    assert lanes_stored(sql_store) == {0, NUMBER, young}
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 1, NO_LIMIT), 100)
    assert lanes_stored(sql_store) == {0, young}


def test_a_task_of_a_closed_lane_is_shown_as_dispatched(sql_holder: Holder, sql_store: SqlStore) -> None:
    row = settled_lane(sql_holder)
    detail = sql_store.browse.detail(row.id)
    assert detail is not None
    assert (detail.state, detail.task.dispatched_ms, detail.blocked_by) == ("dispatched", NOW, None)
    assert (detail.lane and detail.lane.lane, detail.dispatches_ms) == (NUMBER, [NOW])
    assert [one.id for one in sql_store.browse.dispatched(Criteria()).items] == [row.id]
    assert [one.lane for one in sql_store.browse.batches(Criteria()).items] == [NUMBER]
    assert sql_store.browse.pending(Criteria()).items == []
    assert sql_store.browse.find_pending(0, [row.message.task_id]) == []
    lanes, due = sql_store.browse.lanes(0)
    assert ([one.lane for one in lanes], due) == ([0], {})


def test_a_task_that_is_dispatched_again_keeps_its_first_time(sql_holder: Holder, sql_store: SqlStore) -> None:
    """After lost writes of the broker the same positions are settled once more."""
    rows = sql_holder.accept(NOW, NOW + 1)
    for upto, at_ms in ((rows[0], NOW + 5), (rows[1], NOW + 700)):
        sql_holder.settle(ORIGIN, Position(upto.due_ms, upto.seq), at_ms=at_ms)
    details = [sql_store.browse.detail(row.id) for row in rows]
    assert [one and one.dispatches_ms for one in details] == [[NOW + 5, NOW + 700], [NOW + 700]]
    assert [one and one.task.dispatched_ms for one in details] == [NOW + 5, NOW + 700]


def test_a_page_that_begins_after_a_closed_lane_does_not_read_it(sql_holder: Holder, sql_store: SqlStore) -> None:
    settled_lane(sql_holder)
    [later] = sql_holder.accept(NOW + 10)
    sql_holder.settle(ORIGIN, Position(NOW + 10, later.seq), at_ms=NOW + 10)
    found = sql_store.browse.dispatched(Criteria(from_ms=NOW + 5))
    assert [one.id for one in found.items] == [later.id]
