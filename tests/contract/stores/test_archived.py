"""With ``archived_only`` only archived history is forgotten; the store keeps the highest forgotten number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from sqlalchemy import select

from celery_wheel.broker.names import shard_of
from celery_wheel.errors import StoreUnusable
from celery_wheel.store.model import ORIGIN, STOPPED, Position
from celery_wheel.store.ports import Retention, Store
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import Unarchived
from tests.kit.holder import NO_LIMIT, NOW, Holder, place
from tests.simulation.model_store import ModelStore

LATER = NOW + 1_000


def note(store: Store, marks: Mapping[int, int]) -> None:
    """Raise the marks as an archive does."""
    if isinstance(store, ModelStore):
        store.disk.archived.update({shard: max(n, store.disk.archived.get(shard, 0)) for shard, n in marks.items()})
    else:
        assert isinstance(store, SqlStore)
        store.maintenance.note_archived(marks)


def forget(holder: Holder, before_ms: int = LATER, max_bytes: int = NO_LIMIT, limit: int = 1_000) -> int:
    return holder.store.forget(holder.shard, holder.epoch, Retention(before_ms, max_bytes, archived_only=True), limit)


def marks(store: SqlStore, shard: int = 0) -> tuple[int, int]:
    columns = select(schema.shard.c.archived, schema.shard.c.forgotten).where(schema.shard.c.shard == shard)
    with store.database.reading() as connection:
        return tuple(connection.execute(columns).one())  # type: ignore[return-value]


def test_batches_go_up_to_the_mark_however_old_or_large_they_are(holder: Holder) -> None:
    start, numbers, left = ORIGIN, [], []
    for n in range(3):
        [row] = holder.accept(NOW + n)
        holder.settle(start, place(row), at_ms=NOW + n, weight=100)
        numbers.append(holder.highest_seq)
        left.append(row.id)
        start = place(row)
    assert forget(holder, max_bytes=0) == 0
    note(holder.store, {0: numbers[1] - 1})
    assert forget(holder, before_ms=0, max_bytes=0) == 1
    note(holder.store, {0: numbers[1]})
    assert forget(holder, before_ms=NOW + 1) == 0, "young ones stay, archived or not"
    assert forget(holder) == 1
    assert holder.ids() == left[2:]
    forgotten = holder.store.forget(0, holder.epoch, Retention(LATER, NO_LIMIT), 100)
    assert forgotten == 1, "without ``archived_only`` it is removed"


def test_stopped_rows_stay_until_their_last_outcome_is_archived(holder: Holder) -> None:
    first, second, third = holder.accept(NOW, NOW, NOW)
    for row in (first, second, third):
        holder.apply(moves=[holder.stop(row)], outcomes=[holder.outcome(row.id)])
        if row is first:
            note(holder.store, {0: holder.highest_seq})
    assert forget(holder, limit=1) == 1
    assert forget(holder) == 0
    assert holder.ids(STOPPED) == [second.id, third.id]
    holder.apply(outcomes=[holder.outcome(third.id, "moved")])
    note(holder.store, {0: holder.highest_seq - 1})
    assert forget(holder) == 1
    assert holder.ids(STOPPED) == [third.id]
    note(holder.store, {0: holder.highest_seq})
    assert forget(holder) == 1


def test_a_replayed_row_stays_until_its_second_settlement_is_archived(holder: Holder) -> None:
    """After a rollback of the broker a range is dispatched twice, and its rows belong to both settlements."""
    rows = holder.accept(*range(NOW, NOW + 4))
    holder.settle(ORIGIN, place(rows[1]), at_ms=NOW)
    holder.settle(place(rows[1]), place(rows[3]), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.put_offset(place(rows[0]))
    holder.settle(place(rows[0]), place(rows[2]), at_ms=NOW + 1)
    assert forget(holder) == 0
    holder.settle(place(rows[2]), place(rows[3]), at_ms=NOW + 2)
    note(holder.store, {0: holder.highest_seq})
    assert forget(holder) == 4


def test_settlements_since_the_last_read_of_the_floors_count(holder: Holder) -> None:
    """The first read covers all settlements that are not archived, each later read the new ones."""
    rows = holder.accept(*range(NOW, NOW + 3))
    holder.settle(ORIGIN, place(rows[0]), at_ms=NOW)
    holder.settle(place(rows[0]), place(rows[1]), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.settle(place(rows[1]), place(rows[2]), at_ms=NOW)
    assert forget(holder, limit=1) == 1
    holder.put_offset(place(rows[0]))
    holder.settle(place(rows[0]), place(rows[2]), at_ms=NOW + 1)
    assert forget(holder) == 0
    assert holder.ids() == [row.id for row in rows[1:]]


def test_an_outcome_that_is_not_archived_keeps_a_dispatched_row(holder: Holder) -> None:
    first, second = holder.accept(NOW, NOW + 1)
    holder.settle(ORIGIN, place(second), at_ms=NOW)
    note(holder.store, {0: holder.highest_seq})
    holder.apply(outcomes=[holder.outcome(second.id, "rejected")])
    assert forget(holder) == 1
    assert holder.ids() == [second.id]
    note(holder.store, {0: holder.highest_seq})
    assert forget(holder) == 1
    assert first


def test_each_shard_has_a_mark_of_its_own_that_is_only_raised(sql_store: SqlStore) -> None:
    sql_store.maintenance.note_archived({0: 700, 1: 513})
    sql_store.maintenance.note_archived({0: 256, 1: 1_025})
    assert (marks(sql_store), marks(sql_store, 1)) == ((700, 0), (1_025, 0))


def test_the_highest_forgotten_number_is_stored(sql_store: SqlStore, sql_holder: Holder) -> None:
    first, second, third = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    sql_holder.settle(ORIGIN, place(second), at_ms=NOW)
    batch = sql_holder.highest_seq
    sql_holder.apply(moves=[sql_holder.stop(third, NOW + 5)], outcomes=[sql_holder.outcome(third.id)])
    outcome = sql_holder.highest_seq
    sql_store.forget(0, sql_holder.epoch, Retention(NOW, NO_LIMIT), 100)
    assert marks(sql_store) == (0, 0)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 1, NO_LIMIT), 1)
    assert marks(sql_store) == (0, batch), "also of a batch that was removed in part"
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 9, NO_LIMIT), 100)
    assert marks(sql_store) == (0, outcome)
    assert first


def test_the_oldest_event_that_is_not_archived_is_returned_with_its_time(
    sql_store: SqlStore, sql_holder: Holder
) -> None:
    assert sql_store.maintenance.unarchived() == []
    rows = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    sql_holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 10)
    first = sql_holder.highest_seq
    sql_holder.settle(place(rows[0]), place(rows[1]), at_ms=NOW + 20)
    sql_holder.apply(outcomes=[sql_holder.outcome(rows[2].id, at_ms=NOW + 30)])
    assert sql_store.maintenance.unarchived() == [Unarchived(0, 0, NOW + 10)]
    sql_store.maintenance.note_archived({0: first})
    assert sql_store.maintenance.unarchived() == [Unarchived(0, first, NOW + 20)]
    sql_store.maintenance.note_archived({0: sql_holder.highest_seq - 1})
    assert [one.at_ms for one in sql_store.maintenance.unarchived()] == [NOW + 30]
    sql_store.maintenance.note_archived({0: sql_holder.highest_seq})
    assert sql_store.maintenance.unarchived() == []


@pytest.mark.parametrize("archived", [False, True])
def test_a_shard_goes_only_with_its_history_archived(make_sql_store: Callable[[], SqlStore], archived: bool) -> None:
    store = make_sql_store()
    holder = Holder(store, 1)
    left, stopped, waiting = holder.accept(NOW, NOW + 1, NOW + 2)
    holder.settle(ORIGIN, place(left))
    holder.apply(moves=[holder.stop(stopped)], outcomes=[holder.outcome(stopped.id)])
    store.release(1, holder.epoch)
    note(store, {1: holder.highest_seq - (0 if archived else 1)})
    if not archived:
        with pytest.raises(StoreUnusable, match=r"shard 1 has history that is not archived.* nothing was changed; run"):
            store.maintenance.reshard(1, shard_of, LATER, archived_only=True)
    assert store.maintenance.reshard(1, shard_of, LATER, archived_only=archived).forgotten == 2
    assert [row.id for row in store.slice(0, 0, ORIGIN, Position(2**62, 0))] == [waiting.id]


def test_marks_stay_with_the_history_of_their_shard(make_sql_store: Callable[[], SqlStore]) -> None:
    """A pending task may have an outcome with a number of the shard from which it moved."""
    store = make_sql_store()
    first = Holder(store)
    [row] = first.accept(NOW)
    first.apply(moves=[first.move(row, NOW + 1)], outcomes=[first.outcome(row.id, "moved")])
    outcome = first.highest_seq
    note(store, {0: outcome - 1})
    store.release(0, first.epoch)
    store.maintenance.reshard(3, lambda key, task_id, shards: 2, NOW)
    assert [marks(store, shard)[0] for shard in range(2)] == [outcome - 1, 0]
    third = Holder(store, 2)
    [moved] = third.slice()
    third.settle(ORIGIN, place(moved), at_ms=NOW)
    note(store, {2: third.highest_seq})
    assert forget(third) == 0, "its outcome is in the numbers of shard 0"
    note(store, {0: outcome})
    assert forget(third) == 1


def test_a_task_that_is_pending_again_moves_only_once_its_dispatch_is_archived(
    make_sql_store: Callable[[], SqlStore],
) -> None:
    """After a rollback of the broker: in another shard, the row would not show its first dispatch."""
    store = make_sql_store()
    holder = Holder(store)
    [row] = holder.accept(NOW)
    holder.settle(ORIGIN, place(row))
    holder.put_offset(ORIGIN)
    store.release(0, holder.epoch)
    with pytest.raises(
        StoreUnusable,
        match=r"shard 0 were dispatched and are pending again.* is not archived; nothing was changed; run",
    ):
        store.maintenance.reshard(3, lambda key, task_id, shards: 2, NOW + 60_000, archived_only=True)
    note(store, {0: holder.highest_seq})
    assert store.maintenance.reshard(3, lambda key, task_id, shards: 2, NOW + 60_000, archived_only=True).moved == 1


def test_numbers_and_marks_of_a_removed_shard_are_not_used_again(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store, 1)
    rows = holder.accept(*range(NOW, NOW + 50))
    holder.settle(ORIGIN, place(rows[-1]))
    store.release(1, holder.epoch)
    note(store, {1: holder.highest_seq})
    for shards in (1, 2):
        store.maintenance.reshard(shards, shard_of, NOW + 60_000, archived_only=True)
    assert store.state(1).seq > holder.highest_seq
    assert marks(store, 1) == (store.state(1).seq, 0)
