"""Columns that other rooms read, and the catalogue: routes are kept once, messages packed; also after a reopening."""

import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import Table, delete, select, text

from celery_wheel.errors import Fenced, StoreError
from celery_wheel.store.model import (
    ORIGIN,
    STOPPED,
    Answer,
    Change,
    Gate,
    LaneState,
    Outcome,
    Position,
    TallyKey,
    Tombstone,
    Watch,
)
from celery_wheel.store.ports import Retention
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.dictionaries import FIRST_LOOK
from celery_wheel.store.sql.schema import dictionary, route, timer
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import EVERYTHING, LEASE, NO_LIMIT, NOW, Holder, place
from tests.kit.rows import values_of


def rows_of(store: SqlStore, table: Table) -> list[dict[str, Any]]:
    with store.database.reading() as connection:
        return [dict(row) for row in connection.execute(select(table).order_by(*table.primary_key)).mappings()]


def test_a_settlement_has_range_time_and_epoch(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.acquire()
    sql_holder.settle(Position(1, 2), Position(3, 4), at_ms=NOW, weight=700, lane=5)
    [settlement] = rows_of(sql_store, schema.settlement)
    del settlement["id"]
    positions = {"from_due_ms": 1, "from_seq": 2, "to_due_ms": 3, "to_seq": 4}
    figures = {"count": 1, "bytes": 700, "dispatched_ms": NOW, "epoch": 2}
    assert settlement == {"shard": 0, "lane": 5, **positions, **figures}


def test_an_outcome_has_kind_reason_actor_and_time(sql_holder: Holder, sql_store: SqlStore) -> None:
    [row] = sql_holder.accept(NOW)
    outcome = Outcome(sql_holder.seq(), row.id, "cancelled", "order paid, 漢字", "admin:anna", NOW + 3)
    sql_holder.apply(outcomes=[outcome])
    assert rows_of(sql_store, schema.outcome) == [{"shard": 0, **asdict(outcome)}]


def test_history_is_numbered_in_the_order_of_commits(sql_holder: Holder, sql_store: SqlStore) -> None:
    """Two threads of a holder take numbers in one order and commit in the other."""
    first, second = sql_holder.accept(NOW, NOW + 1)
    early, expired = sql_holder.stop(first), sql_holder.outcome(first.id, "expired")
    change = Change(seq=sql_holder.highest_seq, moves=[early], outcomes=[expired])
    sql_holder.apply(moves=[sql_holder.stop(second)], outcomes=[sql_holder.outcome(second.id)])
    sql_holder.settle(ORIGIN, Position(NOW, 1))
    sql_store.apply(0, sql_holder.epoch, change)

    outcomes = {row["timer_id"]: row["id"] for row in rows_of(sql_store, schema.outcome)}
    [settlement] = rows_of(sql_store, schema.settlement)
    assert outcomes[second.id] < settlement["id"] < outcomes[first.id] == sql_store.state(0).seq
    assert settlement["id"] == sql_holder.highest_seq, "what is in order keeps the number that the holder gave"


def test_a_row_has_columns_that_the_window_does_not_need(sql_holder: Holder, sql_store: SqlStore) -> None:
    new = sql_holder.row(NOW, task_id="t-1", key="order:42", created_ms=NOW - 77)
    sql_holder.apply(rows=[new])
    [row] = rows_of(sql_store, schema.timer)
    assert (row["task_id"], row["key"], row["created_ms"], row["accepted_ms"]) == ("t-1", "order:42", NOW - 77, NOW)
    assert row["size"] == new.message.size
    assert row["envelope_id"] == new.message.envelope_id


def test_forgetting_removes_every_part_of_a_row(sql_holder: Holder, sql_store: SqlStore) -> None:
    first, second, waiting = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    sql_holder.settle(ORIGIN, place(first))
    outcomes = [sql_holder.outcome(row.id) for row in (first, second, waiting)]
    sql_holder.apply(moves=[sql_holder.stop(second)], outcomes=outcomes)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 1, NO_LIMIT), 100)
    assert [row["id"] for row in rows_of(sql_store, schema.timer)] == [waiting.id]
    assert [row["timer_id"] for row in rows_of(sql_store, schema.outcome)] == [waiting.id]
    assert rows_of(sql_store, schema.settlement) == []


def test_the_weight_of_the_history_is_that_of_its_settlements(sql_holder: Holder, sql_store: SqlStore) -> None:
    """The shard's row has the sum, since adding up millions of settlements would take seconds."""

    def weight() -> tuple[int, int]:
        kept = rows_of(sql_store, schema.shard)[0]["history_bytes"]
        return kept, sum(settlement["bytes"] for settlement in rows_of(sql_store, schema.settlement))

    start = ORIGIN
    for n in range(5):
        [row] = sql_holder.accept(NOW + n)
        sql_holder.settle(start, place(row), at_ms=NOW + n, weight=10**n)
        start = place(row)
    assert weight() == (11_111, 11_111)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 2, NO_LIMIT), 100)
    assert weight() == (11_100, 11_100)
    sql_holder.put_offset(ORIGIN)
    sql_store.forget(0, sql_holder.epoch, Retention(NOW + 9, 0), 100)
    assert weight() == (0, 0)


def test_counts_of_zero_do_not_pile_up(sql_holder: Holder, sql_store: SqlStore) -> None:
    keys = [TallyKey(hour, "q", "t") for hour in range(30)]
    sql_holder.apply(tally=dict.fromkeys(keys, 2))
    sql_holder.apply(tally=dict.fromkeys(keys[1:], -2))
    sql_store.forget(0, sql_holder.epoch, Retention(0, NO_LIMIT), 100)
    assert [row["hour"] for row in rows_of(sql_store, schema.tally)] == [0]


def test_every_row_survives_a_reopening(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store)
    waiting, resting = holder.accept(NOW + 5, NOW + 6, task_id="t-1", body=b"\x00" * 5_000)
    reject = holder.reject()
    holder.apply(
        rejects=[reject],
        moves=[holder.stop(resting)],
        outcomes=[holder.outcome(resting.id)],
        lanes=[LaneState(2, Position(1, 2), Position(3, 4))],
        tally={TallyKey(1, "q", "t"): 4},
        tombstones=[Tombstone("a", NOW, "", "")],
        watches=[Watch("watch", "k", waiting.id)],
        gates=[Gate("all", "", "paused", 0, "", "", NOW)],
        answers=[Answer(id_ := str(uuid.uuid4()), {}, NOW)],
    )
    store.put_inbox(0, [("message", b"x")])
    store.renew(0, holder.epoch, NOW, LEASE, {"a": 1})
    before = store.state(0)
    store.close()

    again = make_sql_store()
    assert again.uuid == store.uuid
    assert again.state(0) == before
    [row] = again.find(0, ["t-1"])
    assert (row.id, row.position, row.parts().body) == (waiting.id, place(waiting), b"\x00" * 5_000)
    assert {row.id for row in again.slice(0, STOPPED, ORIGIN, Position(2**62, 0))} == {resting.id, reject.id}
    assert again.lanes(0)[1] == LaneState(2, Position(1, 2), Position(3, 4))
    assert again.pending(0) == {TallyKey(1, "q", "t"): 4}
    assert [item.payload for item in again.read_inbox(0, 10)] == [b"x"]
    assert (len(again.tombstones(0, ["a"])), len(again.watchers(0, "watch", ["k"])), len(again.gates(0))) == (1, 1, 1)
    assert again.answer(id_) == {}
    assert len(rows_of(again, schema.outcome)) == 1
    assert Holder(again).epoch == before.epoch + 1


BODY = b"[[], {}, {}]" * 50


def test_messages_of_one_route_share_its_row(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.accept(*range(NOW, NOW + 50), queue="mail")
    sql_holder.accept(*range(NOW, NOW + 50), queue="mail")
    assert len(rows_of(sql_store, route)) == 1
    sql_holder.accept(NOW, queue="mail", priority=3)
    assert len(rows_of(sql_store, route)) == 2
    assert len({id(row.route) for row in sql_holder.slice()}) == 2


def test_a_route_of_a_change_that_was_rolled_back_is_made_again(sql_holder: Holder, sql_store: SqlStore) -> None:
    row = sql_holder.row(NOW, queue="mail")
    with pytest.raises(Fenced):
        sql_store.apply(0, sql_holder.epoch + 1, Change(rows=[row]))
    sql_holder.apply(rows=[row])
    [found] = sql_holder.slice()
    assert found.route.queue == "mail"


def test_a_store_packs_by_what_it_learned_also_after_a_restart(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store)
    holder.accept(*range(NOW, NOW + FIRST_LOOK), body=b'[["Dear customer, please pay your bill"], {}, {}]')
    holder.accept(NOW, body=b'[["Dear customer, please pay"], {}, {}]')
    before = [values_of(row) for row in holder.slice()]
    assert len(rows_of(store, dictionary)) == 2
    after = make_sql_store().slice(0, 0, *EVERYTHING)
    assert [values_of(row) for row in after] == before
    assert {row.packing.number for row in after} == {row.packing.number for row in holder.slice()}


@pytest.mark.parametrize("table", [route, dictionary])
def test_a_missing_part_of_the_catalogue_is_named(make_sql_store: Callable[[], SqlStore], table: object) -> None:
    Holder(make_sql_store()).accept(NOW, body=BODY)
    again = make_sql_store()
    with again.database.writing() as connection:
        connection.execute(delete(table))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="which is missing: a part of it was deleted or not restored"):
        again.slice(0, 0, *EVERYTHING)
    assert len(rows_of(again, timer)) == 1


def test_a_holder_packs_by_no_dictionary_that_the_database_has_lost(make_sql_store: Callable[[], SqlStore]) -> None:
    store = make_sql_store()
    holder = Holder(store)
    holder.accept(NOW, body=BODY)
    lose_the_catalogue(store)
    holder.acquire()
    holder.accept(NOW, body=BODY)
    [found] = make_sql_store().slice(0, 0, *EVERYTHING)
    assert found.parts().body == BODY


def test_a_route_that_has_the_number_of_a_lost_one_is_read_anew(sql_holder: Holder, sql_store: SqlStore) -> None:
    sql_holder.accept(NOW, queue="mail")
    sql_holder.slice()
    lose_the_catalogue(sql_store)
    sql_holder.acquire()
    sql_holder.accept(NOW, queue="sms")
    [found] = sql_holder.slice()
    assert found.route.queue == "sms"


def lose_the_catalogue(store: SqlStore) -> None:
    """Leave the database as a standby may be that became the server without the last commits."""
    with store.database.writing() as connection:
        for table in (timer, route, dictionary):
            connection.execute(delete(table))
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE wheel_route ALTER COLUMN id RESTART"))
            connection.execute(text("ALTER TABLE wheel_dictionary ALTER COLUMN id RESTART"))
