"""``forget`` removes history, oldest first, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_wheel.store.model import ORIGIN, STOPPED, NewRow, Position
from celery_wheel.store.ports import Retention, Store
from tests.kit.holder import EVERYTHING, NO_LIMIT, NOW, Holder, place

LATER = NOW + 1_000


def settled(holder: Holder, *groups: int, weight: int = 100) -> list[list[NewRow]]:
    """Return batches of so many rows each, dispatched one millisecond after the other from NOW on."""
    batches, start = [], ORIGIN
    for number, count in enumerate(groups):
        rows = holder.accept(*range(NOW + 100 * number, NOW + 100 * number + count))
        end = Position(NOW + 100 * number + 99, 0)
        holder.settle(start, end, at_ms=NOW + number, weight=weight)
        batches.append(rows)
        start = end
    return batches


def forget(holder: Holder, before_ms: int = LATER, max_bytes: int = NO_LIMIT, limit: int = 1_000) -> int:
    return holder.store.forget(0, holder.epoch, Retention(before_ms, max_bytes), limit)


def test_a_new_store_has_nothing_to_forget(holder: Holder) -> None:
    assert forget(holder) == 0


def test_batches_older_than_the_limit_are_removed_and_younger_stay(holder: Holder) -> None:
    first, second, third = settled(holder, 2, 3, 4)
    assert forget(holder, before_ms=NOW + 2) == 5
    assert holder.ids() == [row.id for row in third]
    assert forget(holder, before_ms=NOW + 2) == 0
    envelopes = [row.message.envelope_id for row in [*first, *second, *third]]
    assert holder.store.known(0, envelopes).keys() == {row.message.envelope_id for row in third}
    assert holder.store.find(0, first[0].message.task_id) == []


def test_pending_rows_are_never_forgotten(holder: Holder) -> None:
    settled(holder, 2)
    waiting = holder.accept(NOW + 99, NOW + 5_000)
    ahead = holder.accept(NOW - 1_000, lane=4)
    assert forget(holder, before_ms=NOW + 10**9, max_bytes=0) == 2
    assert holder.ids() == [row.id for row in waiting]
    assert holder.ids(lane=4) == [row.id for row in ahead]


def test_forget_removes_at_most_its_limit(holder: Holder) -> None:
    settled(holder, 4, 4)
    went = []
    while gone := forget(holder, limit=3):
        went.append(gone)
        assert holder.store.count(0, 0, *EVERYTHING) == 8 - sum(went)
    assert went == [3, 3, 2]


def test_the_oldest_batch_is_removed_first(holder: Holder) -> None:
    first, second = settled(holder, 3, 3)
    assert forget(holder, limit=2) == 2
    left = set(holder.ids())
    assert len(left & {row.id for row in first}) == 1
    assert left >= {row.id for row in second}


def test_rows_after_a_given_position_stay_and_so_do_all_younger_batches(holder: Holder) -> None:
    _, second, third = settled(holder, 2, 3, 4)

    def forget_upto(due_ms: int) -> int:
        upto = {0: Position(due_ms, 0), 7: ORIGIN}
        return holder.store.forget(0, holder.epoch, Retention(LATER, NO_LIMIT, upto=upto), 1_000)

    assert forget_upto(NOW + 150) == 2, "the second batch ends after that"
    assert holder.ids() == [row.id for row in [*second, *third]]
    assert forget_upto(NOW + 199) == 3
    assert forget(holder) == 4


def test_thousands_of_rows_can_be_removed_in_one_call(holder: Holder) -> None:
    settled(holder, 90, 90, 90, 90)
    rows = [holder.row(NOW + 500) for _ in range(2_400)]
    holder.apply(rows=rows)
    holder.settle(Position(NOW + 399, 0), place(rows[-1]), at_ms=NOW + 9)
    assert forget(holder, limit=2_500) == 2_500
    assert forget(holder, limit=2_500) == 260
    assert holder.ids() == []


def test_beyond_the_bytes_the_oldest_batches_are_removed_at_any_age(holder: Holder) -> None:
    first, second, third = settled(holder, 2, 2, 2, weight=100)
    assert forget(holder, before_ms=0, max_bytes=300) == 0
    assert forget(holder, before_ms=0, max_bytes=299) == 2
    assert holder.ids() == [row.id for row in [*second, *third]]
    assert forget(holder, before_ms=0, max_bytes=299) == 0
    assert forget(holder, before_ms=0, max_bytes=50) == 4
    assert holder.ids() == []
    assert first


def test_bytes_are_counted_again_after_all_was_forgotten(holder: Holder) -> None:
    settled(holder, 2, weight=100)
    assert forget(holder) == 2
    [row] = holder.accept(NOW + 700)
    holder.settle(Position(NOW + 99, 0), place(row), at_ms=NOW + 700, weight=100)
    assert forget(holder, before_ms=0, max_bytes=100) == 0
    assert forget(holder, before_ms=0, max_bytes=99) == 1


def test_stopped_rows_are_removed_after_the_retention(holder: Holder) -> None:
    early, late, live = holder.accept(NOW, NOW, NOW)
    reject = holder.reject(at_ms=NOW + 10)
    holder.apply(rejects=[reject], moves=[holder.stop(early, at_ms=NOW + 10), holder.stop(late, at_ms=NOW + 20)])
    assert forget(holder, before_ms=NOW + 10) == 0
    assert forget(holder, before_ms=NOW + 11) == 2
    assert holder.ids(STOPPED) == [late.id]
    assert holder.ids() == [live.id]
    assert holder.store.known(0, [reject.unreadable.envelope_id, early.message.envelope_id]).keys() == set()


def test_the_limit_holds_for_stopped_rows(holder: Holder) -> None:
    [batch] = settled(holder, 2)
    stopped = holder.accept(*[NOW + 500] * 3)
    holder.apply(moves=[holder.stop(row) for row in stopped])
    assert [forget(holder, limit=3), forget(holder, limit=3)] == [3, 2]
    assert holder.ids() == holder.ids(STOPPED) == []
    assert batch


def test_a_stopped_row_is_not_forgotten_with_its_former_range(holder: Holder) -> None:
    [[first, second]] = settled(holder, 2)
    holder.apply(moves=[holder.stop(second, at_ms=LATER + 5)])
    assert forget(holder) == 1
    assert holder.ids(STOPPED) == [second.id]
    assert first


def test_rows_after_the_offset_stay_after_a_rollback(holder: Holder) -> None:
    """Move the offset back: rows of old batches are pending again, and are dispatched again."""
    first, second, third = settled(holder, 2, 2, 2)
    holder.put_offset(Position(NOW + 99, 0))
    assert forget(holder, before_ms=NOW + 10**9, max_bytes=0) == 2
    assert holder.ids() == [row.id for row in [*second, *third]]
    assert first


def test_only_the_part_of_a_batch_up_to_the_offset_is_removed(holder: Holder) -> None:
    [rows] = settled(holder, 4)
    holder.put_offset(place(rows[1]))
    assert forget(holder, before_ms=NOW + 10**9, max_bytes=0) == 2
    assert holder.ids() == [rows[2].id, rows[3].id]


def test_a_replayed_row_is_forgotten_with_its_new_batch(holder: Holder) -> None:
    _, second, third = settled(holder, 2, 2, 2)
    holder.put_offset(Position(NOW + 99, 0))
    forget(holder, before_ms=NOW + 10)
    holder.settle(Position(NOW + 99, 0), Position(NOW + 299, 0), at_ms=NOW + 50)
    assert forget(holder, before_ms=NOW + 50) == 0
    assert holder.ids() == [row.id for row in [*second, *third]]
    assert forget(holder, before_ms=NOW + 51) == 4


def test_the_offset_of_another_lane_protects_no_rows(holder: Holder) -> None:
    [row] = holder.accept(NOW, lane=2)
    holder.settle(ORIGIN, place(row), lane=2)
    assert forget(holder) == 1
    assert holder.ids(lane=2) == []


def test_a_batch_without_rows_does_not_stop_the_removal(holder: Holder) -> None:
    for n in range(3):
        holder.settle(Position(n, 0), Position(n + 1, 0), at_ms=NOW)
    [row] = holder.accept(NOW)
    holder.settle(Position(3, 0), place(row), at_ms=NOW)
    assert forget(holder) == 1
    assert holder.store.batch_start(0, 0, place(row), 0) is None


def test_each_shard_forgets_for_itself(make_store: Callable[[], Store]) -> None:
    store = make_store()
    one, other = Holder(store, shard=0), Holder(store, shard=1)
    settled(one, 2)
    settled(other, 3)
    assert forget(one, max_bytes=0) == 2
    assert store.count(1, 0, *EVERYTHING) == 3


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_after_all_only_pending_rows_are_left(holder: Holder, limit: int) -> None:
    settled(holder, 5, 0, 9, 1)
    stopped = holder.accept(*[NOW] * 3)
    holder.apply(moves=[holder.stop(row) for row in stopped])
    waiting = holder.accept(NOW + 10_000)
    while forget(holder, limit=limit):
        pass
    assert holder.ids() == [row.id for row in waiting]
    assert holder.ids(STOPPED) == []
