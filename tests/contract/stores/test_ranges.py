"""A range is (after, upto] of one lane of one shard, in order of (due, seq); rows move, and offsets go over them.

Closed lanes: a closed lane leaves memory, and its rows stay dispatched.
"""

import random
from collections import Counter
from itertools import accumulate

import pytest

from celery_wheel.store.model import HOUR_MS, MAX_SEQ, ORIGIN, STOPPED, LaneState, Position, RangeSummary, StoredMessage
from celery_wheel.store.ports import Retention, Store
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.schema import lane
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import END, EVERYTHING, NO_LIMIT, NOW, Holder, hour_of, ids, place


def test_a_range_sees_only_its_lane_and_shard(store: Store) -> None:
    holder = Holder(store, shard=0)
    [here] = holder.accept(NOW)
    [there] = holder.accept(NOW, lane=1)
    [elsewhere] = Holder(store, shard=1).accept(NOW)
    assert [row.id for row in store.slice(0, 0, *EVERYTHING)] == [here.id]
    assert [row.id for row in store.slice(0, 1, *EVERYTHING)] == [there.id]
    assert [row.id for row in store.slice(1, 0, *EVERYTHING)] == [elsewhere.id]
    assert store.count(0, 2, *EVERYTHING) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_range_agrees_with_a_sorted_list(holder: Holder, seed: int) -> None:
    """Bounds are the places of rows, places just before them, and others; a slice has one row at least, of any size."""
    rng, rows, store = random.Random(seed), list[StoredMessage](), holder.store
    for _ in range(200):
        parts = {name: rng.choice(["a", "b"]) for name in ("task", "routing_key")}
        parts["queue"] = rng.choice(["a", "c", "", None])
        due_ms = NOW + rng.randrange(40) + rng.randrange(2) * HOUR_MS
        rows.append(holder.row(due_ms, body=b"x" * rng.choice([0, 20, 900]), **parts))
    holder.apply(rows=rows)
    rows.sort(key=place)
    places = [at for row in rows for at in (place(row), place(row).previous())]
    places += [ORIGIN, END, *(Position(NOW + rng.randrange(-1, 41), rng.randrange(200 * 256)) for _ in range(50))]
    for low, high in [(ORIGIN, END), (ORIGIN, ORIGIN), *(rng.sample(places, 2) for _ in range(60))]:
        inside = [row for row in rows if low < place(row) <= high]
        assert [row.id for row in holder.slice(low, high)] == ids(inside)
        assert store.count(0, 0, low, high) == len(inside)
        sizes = [row.message.size for row in inside]
        assert store.summary(0, 0, low, high) == RangeSummary(len(inside), sum(sizes), Counter(map(hour_of, inside)))
        count, weight = rng.randrange(1, 200), rng.choice([5, sum(sizes[:9]), rng.randrange(60_000)])
        light = sum(total <= weight for total in accumulate(sizes))
        taken = min(count, max(1, light))
        assert store.slice_end(0, 0, low, high, count, weight) == (
            high if taken >= len(inside) else place(inside[taken - 1])
        )


def test_a_moved_row_is_at_its_new_position_only_with_its_message(holder: Holder) -> None:
    first, second = holder.accept(NOW, NOW + 1)
    [third] = holder.accept(NOW + 2, body=b"mine")
    move = holder.move(first, NOW + 5)
    holder.apply(moves=[move, holder.move(third, NOW + 1, lane=2)])
    assert holder.ids() == [second.id, first.id]
    [row] = holder.slice(place(second))
    assert (row.id, row.position, row.eta_ms) == (first.id, place(move), NOW)
    assert holder.store.count(0, 0, ORIGIN, place(first)) == 0
    [moved] = holder.slice(lane=2)
    assert (moved.id, moved.lane, moved.parts().body) == (third.id, 2, b"mine")


def test_a_row_can_be_accepted_and_moved_in_one_change(holder: Holder) -> None:
    row = holder.row(NOW)
    move = holder.move(row, NOW + 7)
    holder.apply(rows=[row], moves=[move])
    assert [found.position for found in holder.slice()] == [place(move)]


def test_many_rows_move_at_once(holder: Holder) -> None:
    rows = holder.accept(*range(NOW, NOW + 300))
    holder.apply(moves=[holder.move(row, NOW + 1_000 - n) for n, row in enumerate(rows)])
    assert holder.ids() == [row.id for row in reversed(rows)]


def test_a_stopped_row_is_in_no_published_lane(holder: Holder) -> None:
    cancelled, live = holder.accept(NOW, NOW + 1, task_id="t-1")
    rest = holder.stop(cancelled, at_ms=NOW + 500)
    holder.apply(moves=[rest], outcomes=[holder.outcome(cancelled.id)])
    assert holder.ids() == [live.id]
    assert holder.store.count(0, 0, *EVERYTHING) == 1
    assert [row.id for row in holder.store.find(0, ["t-1"])] == [live.id]
    [row] = holder.slice(lane=STOPPED)
    assert (row.id, row.position) == (cancelled.id, Position(NOW + 500, rest.seq))
    assert [lane.lane for lane in holder.store.lanes(0)] == [0]


def test_a_stopped_row_can_be_moved_to_a_lane(holder: Holder) -> None:
    [row] = holder.accept(NOW)
    holder.apply(moves=[holder.stop(row)])
    holder.apply(moves=[holder.move(row, NOW + 9)])
    assert holder.ids() == [row.id]
    assert holder.ids(STOPPED) == []


def test_a_lane_is_opened_by_naming_it(holder: Holder) -> None:
    holder.apply(lanes=[LaneState(3, ORIGIN, ORIGIN), LaneState(1, Position(5, 6), Position(7, 8))])
    assert holder.store.lanes(0) == [
        LaneState(0, ORIGIN, ORIGIN),
        LaneState(1, Position(5, 6), Position(7, 8)),
        LaneState(3, ORIGIN, ORIGIN),
    ]
    assert holder.store.lanes(1) == [LaneState(0, ORIGIN, ORIGIN)]


def test_offset_and_watermark_move_forward_and_back(holder: Holder) -> None:
    for offset, watermark in ((10, 20), (20, 20), (5, 9)):
        state = LaneState(0, Position(offset, 1), Position(watermark, 2))
        holder.apply(lanes=[state])
        assert holder.store.lanes(0) == [state]


def test_settling_moves_the_offset_and_keeps_the_rows(holder: Holder) -> None:
    first, second = holder.accept(NOW, NOW + 1)
    holder.settle(ORIGIN, place(first))
    [lane] = holder.store.lanes(0)
    assert lane.offset == place(first)
    assert holder.ids() == [first.id, second.id]
    assert holder.store.count(0, 0, lane.offset, EVERYTHING[1]) == 1


def test_a_replay_begins_with_the_earliest_settlement_since(holder: Holder) -> None:
    at = [ORIGIN, Position(10, 1), Position(20, 2), Position(30, 3)]
    for n in range(3):
        holder.settle(at[n], at[n + 1], at_ms=NOW + n)

    def start(since_ms: int, upto: Position = at[3], lane: int = 0) -> Position | None:
        return holder.store.settlement_start(0, lane, upto, since_ms)

    assert start(NOW - 99) == start(NOW) == at[0]
    assert start(NOW + 1) == at[1]
    assert start(NOW + 2) == at[2]
    assert start(NOW + 3) is None
    assert start(NOW, lane=1) is None


def test_a_settlement_that_begins_before_counts_as_far_as_it_does(holder: Holder) -> None:
    """After a broker lost writes, the offset may be inside a settlement, and the broker may lose writes again."""
    holder.settle(ORIGIN, Position(10, 1), at_ms=NOW)
    holder.settle(Position(10, 1), Position(20, 2), at_ms=NOW + 1)
    assert holder.store.settlement_start(0, 0, Position(20, 1), NOW + 1) == Position(10, 1)
    assert holder.store.settlement_start(0, 0, Position(20, 1), NOW) == ORIGIN
    assert holder.store.settlement_start(0, 0, Position(10, 1), NOW + 1) is None
    assert holder.store.settlement_start(0, 0, Position(10, 0), NOW) == ORIGIN


def test_a_replayed_range_counts_from_its_lowest_position(holder: Holder) -> None:
    """After a replay the settlements are no longer in the order of their positions."""
    at = [ORIGIN, Position(10, 1), Position(20, 2)]
    holder.settle(at[0], at[1], at_ms=NOW)
    holder.settle(at[1], at[2], at_ms=NOW + 10)
    holder.put_offset(at[0])
    holder.settle(at[0], at[1], at_ms=NOW + 20)
    assert holder.store.settlement_start(0, 0, at[2], NOW + 5) == at[0]


#: A lane is numbered by a seq: beyond 32 bits.
NUMBER = (1 << 40) + 7


def settled_lane(holder: Holder, number: int = NUMBER) -> StoredMessage:
    row = holder.row(NOW, lane=number)
    holder.apply(rows=[row], lanes=[LaneState(number, ORIGIN, ORIGIN, "slow")])
    end = place(row)
    settlement = holder.settlement(ORIGIN, end, lane=number)
    holder.apply(settlements=[settlement], lanes=[LaneState(number, end, end, "slow")], closed=[number])
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
    assert (detail.state, detail.task.dispatched_ms, detail.blocked_by) == ("dispatched", NOW, None)
    assert (detail.lane and detail.lane.lane, detail.dispatches_ms) == (NUMBER, [NOW])
    assert [one.id for one in sql_store.browse.dispatched(Criteria()).items] == [row.id]
    assert [one.lane for one in sql_store.browse.settlements(Criteria()).items] == [NUMBER]
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
