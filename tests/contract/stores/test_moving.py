"""Moved rows, the offsets of lanes, and the batches of settlements."""

from __future__ import annotations

from celery_wheel.store.model import ORIGIN, STOPPED, LaneState, Position
from tests.kit.holder import EVERYTHING, NOW, Holder, place


def test_a_moved_row_is_at_its_new_position_only(holder: Holder) -> None:
    first, second = holder.accept(NOW, NOW + 1)
    move = holder.move(first, NOW + 5)
    holder.apply(moves=[move])
    assert holder.ids() == [second.id, first.id]
    [row] = holder.slice(place(second))
    assert (row.id, row.position, row.eta_ms) == (first.id, place(move), NOW)
    assert holder.store.count(0, 0, ORIGIN, place(first)) == 0


def test_a_row_moves_together_with_its_message(holder: Holder) -> None:
    [row] = holder.accept(NOW, body=b"mine")
    holder.accept(NOW, body=b"another's")
    holder.apply(moves=[holder.move(row, NOW + 1, lane=2)])
    [moved] = holder.slice(lane=2)
    assert (moved.id, moved.lane, moved.parts().body) == (row.id, 2, b"mine")


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


# -- lanes -----------------------------------------------------------------------------------------------


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


# -- where a replay begins ---------------------------------------------------------------------------------


def test_a_replay_begins_with_the_earliest_batch_since(holder: Holder) -> None:
    at = [ORIGIN, Position(10, 1), Position(20, 2), Position(30, 3)]
    for n in range(3):
        holder.settle(at[n], at[n + 1], at_ms=NOW + n)

    def start(since_ms: int, upto: Position = at[3], lane: int = 0) -> Position | None:
        return holder.store.batch_start(0, lane, upto, since_ms)

    assert start(NOW - 99) == start(NOW) == at[0]
    assert start(NOW + 1) == at[1]
    assert start(NOW + 2) == at[2]
    assert start(NOW + 3) is None
    assert start(NOW, lane=1) is None


def test_a_batch_that_begins_before_counts_as_far_as_it_does(holder: Holder) -> None:
    """After a broker lost writes, the offset may be inside a batch, and the broker may lose writes again."""
    holder.settle(ORIGIN, Position(10, 1), at_ms=NOW)
    holder.settle(Position(10, 1), Position(20, 2), at_ms=NOW + 1)
    assert holder.store.batch_start(0, 0, Position(20, 1), NOW + 1) == Position(10, 1)
    assert holder.store.batch_start(0, 0, Position(20, 1), NOW) == ORIGIN
    assert holder.store.batch_start(0, 0, Position(10, 1), NOW + 1) is None
    assert holder.store.batch_start(0, 0, Position(10, 0), NOW) == ORIGIN


def test_a_replayed_range_counts_from_its_lowest_position(holder: Holder) -> None:
    """After a replay the batches are no longer in the order of their positions."""
    at = [ORIGIN, Position(10, 1), Position(20, 2)]
    holder.settle(at[0], at[1], at_ms=NOW)
    holder.settle(at[1], at[2], at_ms=NOW + 10)
    holder.put_offset(at[0])
    holder.settle(at[0], at[1], at_ms=NOW + 20)
    assert holder.store.batch_start(0, 0, at[2], NOW + 5) == at[0]
