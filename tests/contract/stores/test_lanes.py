"""Closed lanes: a closed lane leaves memory, and its rows stay dispatched."""

from __future__ import annotations

from celery_wheel.store.model import MAX_SEQ, ORIGIN, LaneState, NewRow, Position
from celery_wheel.store.ports import Retention
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.schema import lane
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import EVERYTHING, NO_LIMIT, NOW, Holder, place

#: A lane is numbered by a seq: beyond 32 bits.
NUMBER = (1 << 40) + 7


def settled_lane(holder: Holder, number: int = NUMBER) -> NewRow:
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
    assert [found.lane for _, found in holder.store.find(0, [row.message.task_id])] == [NUMBER]
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
