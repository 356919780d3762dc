"""``Browse.groups``: the groups with waiting tasks or runs in flight, by pages, with the oldest task of each."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from celery_wheel.errors import ArgumentError
from celery_wheel.store.model import (
    FIRST_TIME,
    HOUR_MS,
    ORIGIN,
    PAUSED,
    RANK_BITS,
    WAITING,
    Gate,
    GroupLimit,
    LaneState,
    LineState,
    Move,
    StoredMessage,
)
from celery_wheel.store.ports.pages import END, Criteria, GroupPage, GroupSort, GroupState, LargeGroup, NamedHourCount
from celery_wheel.store.schedule_model import Run
from celery_wheel.store.sql.browse import pages as pages_module
from celery_wheel.store.sql.browse.groups import FORECAST, OTHER
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_browsing import postgresql_plan
from tests.contract.stores.test_browsing_walks import walk
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, place


def wait(
    holder: Holder, number: int, group: str, rows: list[StoredMessage], rank: int = 0, queue: str = "mail"
) -> None:
    code = number << RANK_BITS | FIRST_TIME | rank
    moves = [Move(row.id, WAITING, row.due_ms, holder.seq(), line=code) for row in rows]
    lane = LaneState(WAITING, ORIGIN, ORIGIN, scope="group")
    holder.apply(moves=moves, lines=[LineState(number, group, queue, len(rows))], lanes=[lane])


def all_groups(store: SqlStore, limit: int, sort: GroupSort) -> list[GroupState]:
    found, after = list[GroupState](), None
    while True:
        page: GroupPage = store.browse.groups(NOW, sort=sort, after=after, limit=limit)
        assert len(page.items) <= limit
        found += page.items
        after = page.next
        if after is None:
            return found


def test_a_group_has_its_counts_its_oldest_task_and_its_limit(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    assert sql_store.browse.groups(NOW) == GroupPage([], None)
    wait(sql_holder, 0, "tenant:1", sql_holder.accept(NOW + 9, NOW + 8))
    wait(sql_holder, 0, "tenant:1", sql_holder.accept(NOW + 2), rank=7)  # due first, and last in its line
    wait(sql_holder, 1, "tenant:1", sql_holder.accept(NOW + 5), queue="print")
    wait(second, 0, "tenant:2", second.accept(NOW, NOW))
    limit = GroupLimit("tenant:2", 5, None, None, None, None, "api", NOW)
    runs = [second.row(NOW) for _ in range(4)]
    open_, over, ended, of_schedule = (one.id for one in runs)
    second.apply(
        limits=[limit],
        runs=[
            Run(open_, group="tenant:3", until_ms=NOW + 1),
            Run(over, group="tenant:3", until_ms=NOW),
            Run(ended, group="tenant:3", until_ms=NOW + 1, ended_ms=NOW),
            Run(of_schedule, schedule=1, instant_ms=NOW),
        ],
    )
    wanted = [
        GroupState("tenant:1", 4, 0, NOW + 2, None),
        GroupState("tenant:2", 2, 0, NOW, limit),
        GroupState("tenant:3", 0, 1, None, None),
    ]
    with reads_of(sql_store) as said:
        assert sql_store.browse.groups(NOW).items == wanted
    assert len(said) == 3
    assert sql_store.browse.groups(NOW, "NANT:2").items == wanted[1:2]
    assert sql_store.browse.groups(NOW, "%").items == []


def test_groups_of_a_holders_memory_get_their_oldest_task_and_their_limit(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    limit = GroupLimit("tenant:1", 5, None, None, None, None, "api", NOW)
    sql_holder.apply(limits=[limit])
    wait(sql_holder, 3, "tenant:1", sql_holder.accept(NOW + 9, NOW + 8))
    wait(sql_holder, 4, "tenant:1", sql_holder.accept(NOW + 7), queue="print")
    wait(second, 3, "", second.accept(NOW + 5))
    wait(sql_holder, 7, "tenant:9", sql_holder.accept(NOW))
    largest = [
        LargeGroup("tenant:1", 3, 2, [(0, 3), (0, 4)]),
        LargeGroup("", 1, 0, [(0, 5), (1, 3)]),
        LargeGroup("tenant:2", 1, 0, [(0, 7)]),  # its line has ended, and another group has the number
        LargeGroup("tenant:3", 0, 1, []),
    ]
    wanted = [
        GroupState("tenant:1", 3, 2, NOW + 7, limit),
        GroupState("", 1, 0, NOW + 5, None),
        GroupState("tenant:2", 1, 0, None, None),
        GroupState("tenant:3", 0, 1, None, None),
    ]
    with reads_of(sql_store) as said:
        assert sql_store.browse.largest_groups(largest, 7) == GroupPage(wanted, None, 7)
    assert len(said) == 2
    assert sql_store.browse.largest_groups([], 0) == GroupPage([], None)


def test_tasks_without_a_group_are_one_group_of_all_shards(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    for number, holder in enumerate((sql_holder, second)):
        wait(holder, 3, "", holder.accept(NOW + number, NOW + 9))
    assert sql_store.browse.groups(NOW).items == [GroupState("", 4, 0, NOW, None)]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_have_each_group_once_in_order(sql_holder: Holder, sql_store: SqlStore, limit: int) -> None:
    names = {f"a:{number}": number % 3 + 1 for number in range(7)}
    for number, (name, count) in enumerate(names.items()):
        wait(sql_holder, number, name, sql_holder.accept(*[NOW] * count))
    by_name = all_groups(sql_store, limit, "name")
    assert [(one.name, one.waiting) for one in by_name] == sorted(names.items())
    by_waiting = all_groups(sql_store, limit, "waiting")
    assert [one.name for one in by_waiting] == sorted(names, key=lambda name: (-names[name], name))


def test_own_limits_are_those_of_all_shards_by_name(sql_holder: Holder, second: Holder, sql_store: SqlStore) -> None:
    found = {name: GroupLimit(name, 5, None, None, None, None, "api", NOW) for name in ("a", "b", "c")}
    sql_holder.apply(limits=[found["c"], found["a"]])
    second.apply(limits=[found["b"]])
    assert sql_store.browse.own_limits() == [*found.values()]
    assert sql_store.browse.own_limits(limit=2) == [found["a"], found["b"]]
    assert sql_store.browse.own_limits(["c", "b", "x"]) == [found["b"], found["c"]]
    assert sql_store.browse.own_limits([]) == []


def test_own_limits_of_named_groups_are_found_by_their_index(sql_store: SqlStore) -> None:
    given = list[object]()
    with reads_of(sql_store, given) as said:
        sql_store.browse.own_limits(["a"])
    with sql_store.database.reading() as connection:
        if connection.dialect.name == "sqlite":
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said[0]}", given[0])]
            assert any("SEARCH wheel_limit USING INDEX" in step for step in plan), plan


def test_a_cursor_of_another_page_is_refused(sql_store: SqlStore) -> None:
    with pytest.raises(ArgumentError, match="after must be the next of a page of groups, got 'tenant'"):
        sql_store.browse.groups(NOW, after="tenant")


def test_the_oldest_tasks_are_found_by_the_index_of_lines(sql_holder: Holder, sql_store: SqlStore) -> None:
    for number in range(20):
        wait(sql_holder, number, f"tenant:{number}", sql_holder.accept(*range(NOW, NOW + 50)))
    if sql_store.database.server() is not None:
        with sql_store.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE")
    given = list[object]()
    with reads_of(sql_store, given) as said:
        assert len(sql_store.browse.groups(NOW, limit=5).items) == 5
    [(statement, values)] = [one for one in zip(said, given, strict=True) if one[0].startswith("WITH")]
    with sql_store.database.reading() as connection:
        if connection.dialect.name == "postgresql":
            postgresql_plan(connection, statement, values, 1)
            return
        plan = [str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert sum("SEARCH wheel_timer USING COVERING INDEX wheel_timer_line" in step for step in plan) == 3
    assert not [step for step in plan if "SCAN wheel_timer" in step]


def test_pending_tasks_are_counted_by_hour_and_group_and_small_groups_are_added_up(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    gone = sql_holder.accept(NOW - 9, group="gone:1")
    sql_holder.put_offset(place(gone[0]))
    for number in range(FORECAST + 1):
        sql_holder.accept(NOW, NOW + 5, NOW + HOUR_MS, group=f"a:{number:02}")
    sql_holder.accept(NOW, NOW, *[NOW + HOUR_MS] * 4, task="app.other")
    wait(second, 0, "a:00", second.accept(NOW + 1, group="a:00"))
    stopped = second.accept(NOW, group="a:00")
    second.apply(moves=[second.stop(stopped[0])], outcomes=[second.outcome(stopped[0].id)])

    def counts(**criteria: Any) -> dict[tuple[int, str], int]:
        return {((one.from_ms - NOW) // HOUR_MS, one.name): one.pending for one in due(**criteria)}

    def due(**criteria: Any) -> list[NamedHourCount]:
        return sql_store.browse.due_by_group(Criteria(**criteria))

    found = counts()
    groups = {"": (2, 4), "a:00": (3, 1), OTHER: (4, 2)} | {f"a:{n:02}": (2, 1) for n in range(1, FORECAST - 1)}
    assert found == {(hour, name): count for name, both in groups.items() for hour, count in enumerate(both)}
    assert [one.from_ms for one in due()] == sorted(one.from_ms for one in due())
    assert {hour for hour, _ in counts(from_ms=NOW + HOUR_MS - 1)} == {0, 1}
    assert {hour for hour, _ in counts(to_ms=NOW + HOUR_MS)} == {0}
    assert {hour for hour, _ in counts(from_ms=NOW + HOUR_MS)} == {1}
    assert counts(shard=1) == {(0, "a:00"): 1}
    assert counts(task="app.other") == {(0, ""): 2, (1, ""): 4}
    assert counts(group="a:20") == {(0, "a:20"): 2, (1, "a:20"): 1}, "not one of the largest groups of all"
    assert counts(queue="nowhere") == counts(shard=9) == {}


def test_open_runs_are_found_by_their_index(sql_holder: Holder, sql_store: SqlStore) -> None:
    given = list[object]()
    with reads_of(sql_store, given) as said:
        sql_store.browse.groups(NOW)
    with sql_store.database.reading() as connection:
        if connection.dialect.name == "sqlite":
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {said[0]}", given[0])]
            assert any("SEARCH wheel_run USING INDEX wheel_run_open" in step for step in plan), plan


def test_pages_of_a_group_read_on_where_others_have_more(
    sql_holder: Holder, second: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "SCAN", 40)
    monkeypatch.setattr(pages_module, "SCAN_LEAST", 1)
    rows = {n: sql_holder.accept(NOW + n, group="tenant:1" if n in (3, 50) else "tenant:2")[0] for n in range(60)}
    wait(sql_holder, 0, "tenant:1", [rows[3]])
    far = second.accept(NOW + 70, group="tenant:1")[0]
    wanted = Criteria(group="tenant:1")
    first = sql_store.browse.pending(wanted, limit=2)
    assert [one.id for one in first.items] == [rows[3].id]
    assert first.next is not None
    assert first.next.due_ms < NOW + 50, "a page reads a part"
    found = walk(partial(sql_store.browse.pending, wanted, limit=2))
    assert [one.id for one in found] == [rows[3].id, rows[50].id, far.id]
    assert [
        one.id for one in walk(partial(sql_store.browse.pending, Criteria(group="tenant:1", shard=1), limit=2))
    ] == [far.id]
    assert sql_store.browse.pending(Criteria(group="tenant")).items == []
    sql_holder.apply(lanes=[LaneState(0, place(rows[50]), place(rows[50]))])
    assert [one.id for one in walk(partial(sql_store.browse.dispatched, wanted, limit=9), END)] == [rows[50].id]


def test_a_task_of_a_paused_group_says_so(sql_holder: Holder, sql_store: SqlStore) -> None:
    (row,) = sql_holder.accept(NOW, group="tenant:1", task_id="wanted")
    wait(sql_holder, 0, "tenant:1", [row])
    (detail,) = sql_store.browse.find("wanted")
    assert detail.blocked_by == "group tenant:1, queue celery"
    sql_holder.apply(gates=[Gate("group", "tenant:1", PAUSED, 0, "", "anna", NOW)])
    assert sql_store.browse.find("wanted")[0].blocked_by == "group tenant:1 (paused), queue celery"
