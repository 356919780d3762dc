"""Lines of groups: rows wait in lane WAITING, by number and rank, and the first of many lines are read at once."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.model import (
    FIRST_TIME,
    ORIGIN,
    RANK_BITS,
    WAITING,
    GroupLimit,
    LaneState,
    LineState,
    Move,
    StoredMessage,
)
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql import schema
from celery_wheel.store.sql.groups import LINES_AT_ONCE
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.store.store_model import ShardEpoch
from tests.contract.stores.test_tables import rows_of
from tests.kit.holder import EVERYTHING, NOW, Holder, ids
from tests.kit.statements import prepared


def into(holder: Holder, row: StoredMessage, number: int, rank: int = 0) -> Move:
    code = number << RANK_BITS | FIRST_TIME | rank
    return Move(row.id, WAITING, row.due_ms, holder.seq(), line=code)


def wait(holder: Holder, rows: dict[int, list[StoredMessage]], **more: Any) -> None:
    moves = [into(holder, row, number) for number, own in rows.items() for row in own]
    lines = [LineState(number, f"tenant:{number}", "mail", len(own)) for number, own in rows.items()]
    lane = LaneState(WAITING, ORIGIN, ORIGIN, scope="group")
    holder.apply(moves=moves, lines=lines, lanes=[lane], **more)


def test_the_first_rows_of_many_lines_come_in_order(holder: Holder) -> None:
    lines = {number: holder.accept(NOW + 2, NOW, NOW + 1, group=f"tenant:{number}") for number in range(100)}
    wait(holder, lines)
    found = holder.store.first_waiting(0, [(number, number % 4) for number in range(100)])
    wanted = {number: [own[1], own[2], own[0]][: number % 4] for number, own in lines.items()}
    assert [row.id for row in found] == [row.id for number in range(100) for row in wanted[number]]
    assert {row.group for row in found} == {f"tenant:{number}" for number in range(100) if number % 4}
    assert {(row.line or 0) >> RANK_BITS for row in found} == {number for number in range(100) if number % 4}
    assert len(found) > LINES_AT_ONCE


def test_a_rank_goes_before_a_due_time(holder: Holder) -> None:
    late, early = holder.accept(NOW + 9, NOW)
    holder.apply(
        moves=[into(holder, late, 3, rank=0), into(holder, early, 3, rank=5)], lines=[LineState(3, "", "q", 2)]
    )
    assert [row.id for row in holder.store.first_waiting(0, [(3, 9)])] == [late.id, early.id]


def test_a_row_that_leaves_its_line_has_none(holder: Holder) -> None:
    rows = holder.accept(NOW, NOW + 1)
    wait(holder, {7: rows})
    holder.apply(moves=[holder.move(rows[0], NOW + 5)], lines=[LineState(7, "tenant:7", "mail", -1)])
    assert [row.line for row in holder.slice()] == [None]
    assert ids(rows[1:]) == [row.id for row in holder.store.first_waiting(0, [(7, 9)])]
    assert holder.store.lines(0) == [LineState(7, "tenant:7", "mail", 1)]


def test_a_line_ends_when_nothing_waits_in_it(holder: Holder) -> None:
    rows = holder.accept(NOW, NOW)
    wait(holder, {7: rows[:1], 8: rows[1:]})
    back = holder.move(rows[0], NOW)
    holder.apply(moves=[back], lines=[LineState(7, "tenant:7", "mail", -1)], ended_lines=[7, 8])
    assert holder.store.lines(0) == [LineState(8, "tenant:8", "mail", 1)]
    wait(holder, {7: rows[:1]})
    assert [one.number for one in holder.store.lines(0)] == [7, 8]
    assert holder.store.lines(1) == []


def test_a_number_is_used_again_for_another_group_and_queue(holder: Holder) -> None:
    (row,) = holder.accept(NOW)
    wait(holder, {7: [row]})
    holder.apply(moves=[holder.move(row, NOW)], lines=[LineState(7, "tenant:7", "mail", -1)])
    other = LineState(7, "user:1", "news", 1)
    holder.apply(moves=[into(holder, row, 7)], lines=[other], ended_lines=[7])
    assert holder.store.lines(0) == [other]


def test_limits_of_a_group_replace_each_other(holder: Holder) -> None:
    first = GroupLimit("tenant:1", 5, None, None, None, None, "api", NOW)
    second = GroupLimit("tenant:1", None, 100, 60_000, 3, 9_000, "admin", NOW + 1)
    other = GroupLimit("tenant:2", 1, None, None, None, None, "api", NOW)
    holder.apply(limits=[first, other])
    holder.apply(limits=[second])
    assert holder.store.limits(0) == [second, other]
    holder.apply(unlimited=["tenant:2", "tenant:3"])
    assert holder.store.limits(0) == [second]
    assert holder.store.limits(1) == []
    holder.apply(limits=[other])
    assert holder.store.limits(0, ["tenant:2", "tenant:9"]) == [other]
    assert holder.store.limits(0, []) == []


def test_a_used_rate_is_kept_until_it_is_as_unused(holder: Holder) -> None:
    holder.apply(rates={"tenant:1": NOW + 500, "tenant:2": NOW + 9})
    holder.apply(rates={"tenant:1": NOW + 400, "tenant:2": NOW + 700})
    assert holder.store.rates(0) == {"tenant:1": NOW + 500, "tenant:2": NOW + 700}, "a thread committed late"
    assert holder.store.rates(1) == {}
    holder.store.expire(0, holder.epoch, NOW + 600, 0)
    assert holder.store.rates(0) == {"tenant:2": NOW + 700}


def test_a_waiting_row_is_pending_for_every_page(sql_holder: Holder) -> None:
    store = sql_holder.store
    assert isinstance(store, SqlStore)
    rows = sql_holder.accept(NOW, NOW + 1, group="tenant:7")
    wait(sql_holder, {7: rows})
    assert [one.id for one in store.browse.pending(Criteria()).items] == ids(rows)


def test_drained_rows_leave_their_lines(sql_holder: Holder) -> None:
    store = sql_holder.store
    assert isinstance(store, SqlStore)
    rows = sql_holder.accept(NOW, NOW + 1, NOW + 2)
    wait(sql_holder, {7: rows[:2]})
    again = Move(rows[2].id, WAITING, NOW, sql_holder.seq(), line=7 << RANK_BITS)
    sql_holder.apply(moves=[again], lines=[LineState(7, "tenant:7", "mail", 1)])
    marked = {one.id: one.redelivered for one in store.handover.pending(0)}
    assert marked == {rows[0].id: False, rows[1].id: False, rows[2].id: True}
    assert store.handover.mark_moved(ShardEpoch(0, sql_holder.epoch, NOW), ids(rows[1:]), "drained") == 2
    assert store.lines(0) == [LineState(7, "tenant:7", "mail", 1)]
    assert [row.id for row in store.first_waiting(0, [(7, 9)])] == ids(rows[:1])


def test_a_resharding_takes_rows_out_of_their_lines(sql_holder: Holder) -> None:
    store = sql_holder.store
    assert isinstance(store, SqlStore)
    rows = sql_holder.accept(NOW, NOW + 1)
    wait(sql_holder, {7: rows})
    store.release(0, sql_holder.epoch)
    store.maintenance.reshard(2, lambda _, task_id, __: int(task_id == rows[1].message.task_id), NOW)
    assert store.lines(0) == [LineState(7, "tenant:7", "mail", 1)]
    assert [[row.id for row in store.first_waiting(shard, [(7, 9)])] for shard in (0, 1)] == [ids(rows[:1]), []]
    assert [row.line for row in Holder(store, shard=1).slice()] == [None]
    store.release(1, store.state(1).epoch)
    store.maintenance.reshard(1, lambda *_: 0, NOW)
    assert store.lines(1) == []


def test_lines_are_read_by_their_index(sql_holder: Holder) -> None:
    store = sql_holder.store
    assert isinstance(store, SqlStore)
    wait(sql_holder, {number: sql_holder.accept(*range(NOW, NOW + 50)) for number in range(20)})
    statement = prepared(store, "groups.first_rows")
    values = tuple({"shard": 0}.get(name, 5) for name in statement.names)
    with store.database.reading() as connection:
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        plan = [str(row) for row in connection.exec_driver_sql(explain + statement.sql, values)]
    assert sum("wheel_timer_line" in step for step in plan) == LINES_AT_ONCE
    assert not [step for step in plan if "TEMP B-TREE" in step or "Sort" in step]


def test_lines_are_counted_by_their_rows(holder: Holder) -> None:
    """A holder that trusted a wrong number would look for rows that are not there for ever."""
    wait(holder, {0: holder.accept(NOW), 5: holder.accept(NOW, NOW), 6: holder.accept(NOW)})
    assert [one.waiting for one in holder.store.lines(0)] == [1, 2, 1]


def test_a_drain_takes_rows_out_of_their_lines(sql_holder: Holder) -> None:
    store = sql_holder.store
    assert isinstance(store, SqlStore)
    rows = sql_holder.accept(NOW, NOW, NOW)
    wait(sql_holder, {5: rows[:2], 6: rows[2:]})
    hold = ShardEpoch(0, sql_holder.epoch, NOW)
    assert store.handover.mark_moved(hold, ids(rows[1:]), "drained") == 2
    assert [(one["number"], one["waiting"]) for one in rows_of(store, schema.line)] == [(5, 1)]


def test_a_waiting_row_that_may_have_been_dispatched_keeps_its_shard(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    [row] = holder.accept(NOW)
    holder.apply(moves=[Move(row.id, WAITING, NOW, holder.seq(), line=5 << RANK_BITS)])
    sql_store.release(0, holder.epoch)
    with pytest.raises(StoreUnusable, match="wait for their group may have been dispatched before"):
        sql_store.maintenance.reshard(3, lambda *_: 2, NOW + 1_000)


def test_rows_leave_their_lines_as_they_change_their_shard(sql_store: SqlStore) -> None:
    holder = Holder(sql_store)
    staying, moving = holder.accept(NOW, NOW, group="tenant:1", key="tenant:1"), holder.accept(NOW, NOW, key="other")
    wait(holder, {5: [*staying, moving[0]], 6: moving[1:]})
    sql_store.release(0, holder.epoch)
    sql_store.maintenance.reshard(3, lambda key, *_: 2 if key == "other" else 0, NOW + 1_000)
    assert sql_store.lines(0) == [LineState(5, "tenant:5", "mail", 2)]
    assert [(row["number"], row["waiting"]) for row in rows_of(sql_store, schema.line)] == [(5, 2)]
    assert [(row.id, row.line) for row in sql_store.slice(2, 0, *EVERYTHING)] == [(row.id, None) for row in moving]
