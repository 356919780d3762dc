"""``forget`` removes history, oldest first, and nothing else.

With ``archived_only`` only archived history is forgotten; the store keeps the highest forgotten number.
"""

from collections.abc import Mapping

import pytest
from sqlalchemy import select

from celery_wheel.broker import shard_of
from celery_wheel.errors import StoreUnusable
from celery_wheel.store.model import ORIGIN, STOPPED, Position, StoredMessage
from celery_wheel.store.ports import ForgetPlace, Retention, Store
from celery_wheel.store.sql import history, schema
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import Unarchived
from tests.kit.holder import EVERYTHING, NO_LIMIT, NOW, Holder, place
from tests.simulation.model_store import ModelStore

LATER = NOW + 1_000


def settled(holder: Holder, *groups: int, weight: int = 100) -> list[list[StoredMessage]]:
    """Return settlements of so many rows each, dispatched one millisecond after the other from NOW on."""
    settlements, start = [], ORIGIN
    for number, count in enumerate(groups):
        rows = holder.accept(*range(NOW + 100 * number, NOW + 100 * number + count))
        end = Position(NOW + 100 * number + 99, 0)
        holder.settle(start, end, at_ms=NOW + number, weight=weight)
        settlements.append(rows)
        start = end
    return settlements


def forget(holder: Holder, before_ms: int = LATER, max_bytes: int = NO_LIMIT, limit: int = 1_000) -> int:
    return holder.store.forget(0, holder.epoch, Retention(before_ms, max_bytes), limit)


def test_settlements_older_than_the_limit_are_removed_and_younger_stay(holder: Holder) -> None:
    assert forget(holder) == 0
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


def test_forget_removes_at_most_its_limit_and_the_oldest_settlement_first(holder: Holder) -> None:
    _, second = settled(holder, 4, 4)
    went = []
    while gone := forget(holder, limit=3):
        went.append(gone)
        assert len(left := holder.ids()) == 8 - sum(went)
        assert len(left) <= 4 or {*left} >= {row.id for row in second}
    assert went == [3, 3, 2]


def test_rows_after_a_given_position_stay_and_so_do_all_younger_settlements(holder: Holder) -> None:
    _, second, third = settled(holder, 2, 3, 4)

    def forget_upto(due_ms: int) -> int:
        upto = {0: Position(due_ms, 0), 7: ORIGIN}
        return holder.store.forget(0, holder.epoch, Retention(LATER, NO_LIMIT, upto=upto), 1_000)

    assert forget_upto(NOW + 150) == 2, "the second settlement ends after that"
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


def test_beyond_the_bytes_the_oldest_settlements_are_removed_at_any_age(holder: Holder) -> None:
    _, second, third = settled(holder, 2, 2, 2, weight=100)
    assert forget(holder, before_ms=0, max_bytes=300) == 0
    assert forget(holder, before_ms=0, max_bytes=299) == 2
    assert holder.ids() == [row.id for row in [*second, *third]]
    assert forget(holder, before_ms=0, max_bytes=299) == 0
    assert forget(holder, before_ms=0, max_bytes=50) == 4
    assert holder.ids() == []


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
    settled(holder, 2)
    stopped = holder.accept(*[NOW + 500] * 3)
    holder.apply(moves=[holder.stop(row) for row in stopped])
    assert [forget(holder, limit=3), forget(holder, limit=3)] == [3, 2]
    assert holder.ids() == holder.ids(STOPPED) == []


def test_a_stopped_row_is_not_forgotten_with_its_former_range(holder: Holder) -> None:
    [[_, second]] = settled(holder, 2)
    holder.apply(moves=[holder.stop(second, at_ms=LATER + 5)])
    assert forget(holder) == 1
    assert holder.ids(STOPPED) == [second.id]


def test_rows_after_the_offset_stay_after_a_rollback(holder: Holder) -> None:
    """Move the offset back: rows of old settlements are pending again, and are dispatched again."""
    _, second, third = settled(holder, 2, 2, 2)
    holder.put_offset(Position(NOW + 99, 0))
    assert forget(holder, before_ms=NOW + 10**9, max_bytes=0) == 2
    assert holder.ids() == [row.id for row in [*second, *third]]


def test_only_the_part_of_a_settlement_up_to_the_offset_is_removed(holder: Holder) -> None:
    [rows] = settled(holder, 4)
    holder.put_offset(place(rows[1]))
    assert forget(holder, before_ms=NOW + 10**9, max_bytes=0) == 2
    assert holder.ids() == [rows[2].id, rows[3].id]


def test_a_replayed_row_is_forgotten_with_its_new_settlement(holder: Holder) -> None:
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


def test_a_settlement_without_rows_does_not_stop_the_removal(holder: Holder) -> None:
    for n in range(3):
        holder.settle(Position(n, 0), Position(n + 1, 0), at_ms=NOW)
    [row] = holder.accept(NOW)
    holder.settle(Position(3, 0), place(row), at_ms=NOW)
    assert forget(holder) == 1
    assert holder.store.settlement_start(0, 0, place(row), 0) is None


def test_very_many_settlements_without_rows_are_removed_in_several_calls(
    sql_holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SETTLEMENTS_AT_ONCE", 2)
    for n in range(30):
        sql_holder.settle(Position(n, 0), Position(n + 1, 0), at_ms=NOW)
    [row] = sql_holder.accept(NOW)
    sql_holder.settle(Position(30, 0), place(row), at_ms=NOW)
    assert [forget(sql_holder), forget(sql_holder)] == [0, 1]


def test_each_shard_forgets_for_itself(store: Store) -> None:
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


def note(store: Store, marks: Mapping[int, int]) -> None:
    """Raise the marks as an archive does."""
    if isinstance(store, ModelStore):
        store.disk.archived.update({shard: max(n, store.disk.archived.get(shard, 0)) for shard, n in marks.items()})
    else:
        assert isinstance(store, SqlStore)
        store.maintenance.note_archived(marks)


def forget_archived(holder: Holder, before_ms: int = LATER, max_bytes: int = NO_LIMIT, limit: int = 1_000) -> int:
    return holder.store.forget(holder.shard, holder.epoch, Retention(before_ms, max_bytes, archived_only=True), limit)


def marks(store: SqlStore, shard: int = 0) -> tuple[int, int]:
    columns = select(schema.shard.c.archived, schema.shard.c.forgotten).where(schema.shard.c.shard == shard)
    with store.database.reading() as connection:
        return tuple(connection.execute(columns).one())  # type: ignore[return-value]


def test_settlements_go_up_to_the_mark_however_old_or_large_they_are(holder: Holder) -> None:
    start, numbers, left = ORIGIN, [], []
    for n in range(3):
        [row] = holder.accept(NOW + n)
        holder.settle(start, place(row), at_ms=NOW + n, weight=100)
        numbers.append(holder.highest_seq)
        left.append(row.id)
        start = place(row)
    assert forget_archived(holder, max_bytes=0) == 0
    note(holder.store, {0: numbers[1] - 1})
    assert forget_archived(holder, before_ms=0, max_bytes=0) == 1
    note(holder.store, {0: numbers[1]})
    assert forget_archived(holder, before_ms=NOW + 1) == 0, "young ones stay, archived or not"
    assert forget_archived(holder) == 1
    assert holder.ids() == left[2:]
    forgotten = holder.store.forget(0, holder.epoch, Retention(LATER, NO_LIMIT), 100)
    assert forgotten == 1, "without ``archived_only`` it is removed"


def test_stopped_rows_stay_until_their_last_outcome_is_archived(holder: Holder) -> None:
    first, second, third = holder.accept(NOW, NOW, NOW)
    for row in (first, second, third):
        holder.apply(moves=[holder.stop(row)], outcomes=[holder.outcome(row.id)])
        if row is first:
            note(holder.store, {0: holder.highest_seq})
    assert forget_archived(holder, limit=1) == 1
    assert forget_archived(holder) == 0
    assert holder.ids(STOPPED) == [second.id, third.id]
    holder.apply(outcomes=[holder.outcome(third.id, "moved")])
    note(holder.store, {0: holder.highest_seq - 1})
    assert forget_archived(holder) == 1
    assert holder.ids(STOPPED) == [third.id]
    note(holder.store, {0: holder.highest_seq})
    assert forget_archived(holder) == 1


def test_a_replayed_row_stays_until_its_second_settlement_is_archived(holder: Holder) -> None:
    """After a rollback of the broker a range is dispatched twice, and its rows belong to both settlements."""
    rows = holder.accept(*range(NOW, NOW + 4))
    holder.settle(ORIGIN, place(rows[1]), at_ms=NOW)
    holder.settle(place(rows[1]), place(rows[3]), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.put_offset(place(rows[0]))
    holder.settle(place(rows[0]), place(rows[2]), at_ms=NOW + 1)
    assert forget_archived(holder) == 0
    holder.settle(place(rows[2]), place(rows[3]), at_ms=NOW + 2)
    note(holder.store, {0: holder.highest_seq})
    assert forget_archived(holder) == 4


def test_settlements_since_the_last_read_of_the_floors_count(holder: Holder) -> None:
    """The first read covers all settlements that are not archived, each later read the new ones."""
    rows = holder.accept(*range(NOW, NOW + 3))
    holder.settle(ORIGIN, place(rows[0]), at_ms=NOW)
    holder.settle(place(rows[0]), place(rows[1]), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.settle(place(rows[1]), place(rows[2]), at_ms=NOW)
    assert forget_archived(holder, limit=1) == 1
    holder.put_offset(place(rows[0]))
    holder.settle(place(rows[0]), place(rows[2]), at_ms=NOW + 1)
    assert forget_archived(holder) == 0
    assert holder.ids() == [row.id for row in rows[1:]]


def test_an_outcome_that_is_not_archived_keeps_a_dispatched_row(holder: Holder) -> None:
    _, second = holder.accept(NOW, NOW + 1)
    holder.settle(ORIGIN, place(second), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.apply(outcomes=[holder.outcome(second.id, "rejected")])
    assert forget_archived(holder) == 1
    assert holder.ids() == [second.id]
    note(holder.store, {0: holder.highest_seq})
    assert forget_archived(holder) == 1


def test_each_shard_has_a_mark_of_its_own_that_is_only_raised(sql_store: SqlStore) -> None:
    sql_store.maintenance.note_archived({0: 700, 1: 513})
    sql_store.maintenance.note_archived({0: 256, 1: 1_025})
    assert (marks(sql_store), marks(sql_store, 1)) == ((700, 0), (1_025, 0))


def test_the_highest_forgotten_number_is_stored(sql_store: SqlStore, sql_holder: Holder) -> None:
    _, second, third = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    sql_holder.settle(ORIGIN, place(second), at_ms=NOW)
    settlement = sql_holder.highest_seq
    sql_holder.apply(moves=[sql_holder.stop(third, NOW + 5)], outcomes=[sql_holder.outcome(third.id)])
    outcome = sql_holder.highest_seq
    sql_store.forget(0, sql_holder.epoch, Retention(NOW, NO_LIMIT), 100)
    assert marks(sql_store) == (0, 0)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 1, NO_LIMIT), 1)
    assert marks(sql_store) == (0, settlement), "also of a settlement that was removed in part"
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 9, NO_LIMIT), 100)
    assert marks(sql_store) == (0, outcome)


def test_the_oldest_event_that_is_not_archived_comes_with_its_time(sql_store: SqlStore, sql_holder: Holder) -> None:
    unarchived = sql_store.maintenance.unarchived
    assert unarchived() == []
    rows = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    sql_holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 10)
    first = sql_holder.highest_seq
    sql_holder.settle(place(rows[0]), place(rows[1]), at_ms=NOW + 20)
    sql_holder.apply(outcomes=[sql_holder.outcome(rows[2].id, at_ms=NOW + 30)])
    assert unarchived() == [Unarchived(0, 0, NOW + 10)]
    for upto, at_ms in ((first, [NOW + 20]), (sql_holder.highest_seq - 1, [NOW + 30]), (sql_holder.highest_seq, [])):
        note(sql_store, {0: upto})
        assert unarchived() == [Unarchived(0, upto, one) for one in at_ms]


@pytest.mark.parametrize("archived", [False, True])
def test_a_shard_goes_only_with_its_history_archived(sql_store: SqlStore, archived: bool) -> None:
    holder = Holder(sql_store, 1)
    left, stopped, waiting = holder.accept(NOW, NOW + 1, NOW + 2)
    holder.settle(ORIGIN, place(left))
    holder.apply(moves=[holder.stop(stopped)], outcomes=[holder.outcome(stopped.id)])
    sql_store.release(1, holder.epoch)
    note(sql_store, {1: holder.highest_seq - (0 if archived else 1)})
    if not archived:
        with pytest.raises(StoreUnusable, match=r"shard 1 has history that is not archived.* nothing was changed; run"):
            sql_store.maintenance.reshard(1, shard_of, LATER, archived_only=True)
    assert sql_store.maintenance.reshard(1, shard_of, LATER, archived_only=archived).forgotten == 2
    assert [row.id for row in sql_store.slice(0, 0, ORIGIN, Position(2**62, 0))] == [waiting.id]


def test_marks_stay_with_the_history_of_their_shard(sql_store: SqlStore) -> None:
    """A pending task may have an outcome with a number of the shard from which it moved."""
    first = Holder(sql_store)
    [row] = first.accept(NOW)
    first.apply(moves=[first.move(row, NOW + 1)], outcomes=[first.outcome(row.id, "moved")])
    outcome = first.highest_seq
    note(sql_store, {0: outcome - 1})
    sql_store.release(0, first.epoch)
    sql_store.maintenance.reshard(3, lambda *_: 2, NOW)
    assert [marks(sql_store, shard)[0] for shard in range(2)] == [outcome - 1, 0]
    third = Holder(sql_store, 2)
    [moved] = third.slice()
    third.settle(ORIGIN, place(moved), at_ms=NOW)
    note(sql_store, {2: third.highest_seq})
    assert forget_archived(third) == 0, "its outcome is in the numbers of shard 0"
    note(sql_store, {0: outcome})
    assert forget_archived(third) == 1


def test_a_task_that_is_pending_again_moves_only_once_its_dispatch_is_archived(sql_store: SqlStore) -> None:
    """After a rollback of the broker: in another shard, the row would not show its first dispatch."""
    holder = Holder(sql_store)
    [row] = holder.accept(NOW)
    holder.settle(ORIGIN, place(row))
    holder.put_offset(ORIGIN)
    sql_store.release(0, holder.epoch)
    said = r"shard 0 were dispatched and are pending again.* is not archived; nothing was changed; run"
    with pytest.raises(StoreUnusable, match=said):
        sql_store.maintenance.reshard(3, lambda *_: 2, NOW + 60_000, archived_only=True)
    note(sql_store, {0: holder.highest_seq})
    assert sql_store.maintenance.reshard(3, lambda *_: 2, NOW + 60_000, archived_only=True).moved == 1


def test_numbers_and_marks_of_a_removed_shard_are_not_used_again(sql_store: SqlStore) -> None:
    holder = Holder(sql_store, 1)
    rows = holder.accept(*range(NOW, NOW + 50))
    holder.settle(ORIGIN, place(rows[-1]))
    sql_store.release(1, holder.epoch)
    note(sql_store, {1: holder.highest_seq})
    for shards in (1, 2):
        sql_store.maintenance.reshard(shards, shard_of, NOW + 60_000, archived_only=True)
    assert sql_store.state(1).seq > holder.highest_seq
    assert marks(sql_store, 1) == (sql_store.state(1).seq, 0)


def forget_named(holder: Holder, name: str, before_ms: int, **keep: object) -> int:
    """Forget all history of a name that is older, as rounds of housekeeping do; returns the number of rows."""
    total, place = 0, ForgetPlace()
    while True:
        count, after = holder.store.forget_named(0, holder.epoch, name, Retention(before_ms, 0, **keep), place)  # type: ignore[arg-type]
        total += count
        if not count and after == place:
            return total
        place = after


@pytest.mark.parametrize(("name", "others"), [("queue:mail", {"queue": "other"}), ("task:app.mail", {"task": "app.x"})])
def test_history_of_a_queue_or_a_task_may_be_kept_for_a_shorter_time(
    holder: Holder, name: str, others: dict[str, str]
) -> None:
    scope, of = name.split(":")
    start = ORIGIN
    for number in range(3):
        due_ms = NOW + 100 * number
        holder.accept(due_ms, **{scope: of})
        holder.accept(due_ms, **others)
        end = Position(due_ms + 50, 0)
        holder.settle(start, end, at_ms=NOW + number)
        start = end
    pending = holder.accept(NOW + 9_000, **{scope: of})
    stopped = holder.accept(NOW + 9_001, NOW + 9_002, **{scope: of})
    for row, at_ms in zip(stopped, (NOW, NOW + 2), strict=True):
        rest = holder.stop(row, at_ms)
        holder.apply(moves=[rest], outcomes=[holder.outcome(row.id, at_ms=at_ms)])
    assert forget_named(holder, name, NOW) == 0
    assert forget_named(holder, name, NOW + 1) == 2, "a settlement and a cancelled task are that old"
    assert forget_named(holder, name, NOW + 2, upto={0: Position(NOW + 60, 0)}) == 0, "an adoption needs the others"
    assert forget_named(holder, name, NOW + 2) == 1
    assert len(holder.ids()) == 3 + 1 + 1
    assert pending[0].id in holder.ids()
    assert [one.id for one in holder.store.rows(0, [one.id for one in stopped])] == [stopped[1].id]
    assert forget(holder) == 1 + 3 + 1, "the general retention removes the rest"


def test_a_shorter_retention_waits_for_the_archive(sql_holder: Holder) -> None:
    settled(sql_holder, 2)
    assert forget_named(sql_holder, "queue:celery", LATER, archived_only=True) == 0
    assert forget_named(sql_holder, "queue:celery", LATER) == 2


def test_a_shorter_retention_removes_some_rows_at_a_time(sql_holder: Holder) -> None:
    sql_holder.accept(*range(NOW, NOW + 1_300))
    sql_holder.settle(ORIGIN, Position(NOW + 2_000, 0), at_ms=NOW)
    first, place = sql_holder.store.forget_named(
        0, sql_holder.epoch, "queue:celery", Retention(LATER, 0), ForgetPlace()
    )
    assert (first, place.settlement) == (500, 0)
    assert forget_named(sql_holder, "queue:celery", LATER) == 800
