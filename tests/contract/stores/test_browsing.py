"""``Browse``: every page is complete and in order, and no line is on two pages."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection

from celery_wheel.store.model import HOUR_MS, ORIGIN, LaneState, Position
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.store.sql.browse import pages as pages_module
from celery_wheel.store.sql.holding import read_lanes
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_browsing_walks import walk
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, hour_of, ids, place

EVERYTHING = Criteria()


def test_rows_are_found_by_their_ids_in_every_state(sql_holder: Holder, second: Holder, sql_store: SqlStore) -> None:
    rows = sorted([*sql_holder.accept(*range(NOW, NOW + 600)), *second.accept(NOW + 5)], key=place)
    sql_holder.apply(moves=[sql_holder.stop(rows[-1], NOW + 1_000)])
    sql_holder.settle(ORIGIN, place(rows[0]))
    assert [one.id for one in sql_store.browse.tasks([*reversed(ids(rows)), 2**60, -1])] == ids(rows)
    assert sql_store.browse.tasks([]) == []


def test_a_dispatched_task_is_not_pending_and_has_its_dispatch_time(sql_holder: Holder, sql_store: SqlStore) -> None:
    rows = sql_holder.accept(*range(NOW, NOW + 10))
    sql_holder.settle(ORIGIN, place(rows[3]), at_ms=NOW + 100)
    sql_holder.settle(place(rows[3]), place(rows[6]), at_ms=NOW + 200)
    assert [one.id for one in sql_store.browse.pending(EVERYTHING).items] == ids(rows[7:])
    page = sql_store.browse.dispatched(EVERYTHING, limit=5)
    assert [one.id for one in page.items] == ids(rows[6:1:-1])
    assert [one.late_ms for one in page.items] == [194, 195, 196, 97, 98]
    rest = sql_store.browse.dispatched(EVERYTHING, page.next or ORIGIN, 5)
    assert ([one.id for one in rest.items], rest.next) == (ids(rows[1::-1]), None)
    sql_holder.put_offset(place(rows[7]))
    unknown = sql_store.browse.dispatched(EVERYTHING).items[0]
    assert (unknown.id, unknown.dispatched_ms, unknown.late_ms) == (rows[7].id, None, None), "no known settlement"


def test_a_filter_reads_a_bounded_number_of_rows_and_returns_where_to_continue(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "SCAN", 20)
    monkeypatch.setattr(pages_module, "SCAN_LEAST", 1)
    rows = [sql_holder.row(NOW + n, task="app.rare" if n in (3, 25, 47) else "app.often") for n in range(50)]
    sql_holder.apply(rows=rows, tally={hour_of(rows[3]): 3, hour_of(rows[0]): 47})
    rare = Criteria(task="app.rare")
    first = sql_store.browse.pending(rare, limit=5)
    assert ([one.id for one in first.items], first.next) == ([rows[3].id], place(rows[19]))
    found = walk(partial(sql_store.browse.pending, rare, limit=2))
    assert [one.id for one in found] == ids([rows[n] for n in (3, 25, 47)])
    sql_holder.put_offset(place(rows[-1]))
    found = walk(partial(sql_store.browse.dispatched, rare, limit=2), pages_module.END)
    assert [one.id for one in found] == ids([rows[n] for n in (47, 25, 3)])


def test_outcomes_come_latest_first_with_their_reasons(sql_holder: Holder, sql_store: SqlStore) -> None:
    bad = [sql_holder.reject(b"no message %d" % n, at_ms=NOW + n) for n in range(3)]
    [row] = sql_holder.accept(NOW)
    outcomes = [sql_holder.outcome(one.id, "rejected", NOW + n) for n, one in enumerate(bad)]
    outcomes.append(sql_holder.outcome(row.id, "cancelled", NOW + 1))
    sql_holder.apply(rejects=bad, moves=[sql_holder.stop(row)], outcomes=outcomes)
    page = sql_store.browse.outcomes(["rejected"], EVERYTHING, limit=2)
    assert [one.timer_id for one in page.items] == [bad[2].id, bad[1].id]
    assert page.items[0].reason == "asked for"
    both = sql_store.browse.outcomes(["rejected", "cancelled"], EVERYTHING)
    assert [one.at_ms - NOW for one in both.items] == [2, 1, 1, 0]
    assert sql_store.browse.outcomes(["rejected"], EVERYTHING, page.next or ORIGIN).items[0].timer_id == bad[0].id


def test_a_detail_has_the_bytes_and_outcomes_of_its_task(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    early, late, gone = sql_holder.accept(NOW, NOW + 10, NOW + 20, task_id="same", body=b"\x00\xff")
    [other] = second.accept(NOW + 15, task_id="same")
    assert [one.task.id for one in sql_store.browse.find("same")] == ids([gone, other, late, early])
    sql_holder.settle(ORIGIN, place(early), at_ms=NOW + 3)
    sql_holder.apply(moves=[sql_holder.stop(gone)], outcomes=[sql_holder.outcome(gone.id)])
    found = {one.task.id: one.state for one in sql_store.browse.find("same")}
    assert found == {early.id: "dispatched", late.id: "pending", gone.id: "cancelled", other.id: "pending"}
    left = sql_store.browse.detail(early.id)
    assert (left.task.late_ms, left.body, left.queue, left.outcomes) == (3, b"\x00\xff", "celery", [])
    assert left.envelope_id == early.message.envelope_id
    sql_holder.apply(lanes=[LaneState(0, Position(*place(early)), Position(*place(late)))])
    assert [one.state for one in sql_store.browse.find("same") if one.task.id == late.id] == ["in doubt"]
    assert sql_store.browse.detail(12345) is None
    assert sql_store.browse.find("nobody") == []


def test_counts_come_from_the_tally(sql_holder: Holder, second: Holder, sql_store: SqlStore) -> None:
    rows = sql_holder.accept(NOW, NOW + HOUR_MS)
    sql_holder.apply(tally={hour_of(rows[0]): 5, hour_of(rows[1]): 2})
    other = second.accept(NOW, queue="mail", task="app.mail")
    second.apply(tally={hour_of(other[0]): 1})
    due = sql_store.browse.due_by_name(Criteria())
    assert [(one.from_ms, one.pending) for one in due] == [(NOW, 6), (NOW + HOUR_MS, 2)]
    assert [sql_store.browse.count_pending(shard) for shard in (0, 1)] == [7, 1]
    names = sql_store.browse.names()
    assert (names.queues, names.tasks) == ({"celery": 7, "mail": 1}, {"app.remind": 7, "app.mail": 1})
    assert sql_store.browse.lanes(0).next_due_ms == {0: NOW}
    sql_holder.put_offset(place(rows[1]))
    assert sql_store.browse.lanes(0).next_due_ms == {}


@pytest.mark.parametrize("by", [None, "task"])
def test_a_forecast_has_the_hours_that_a_range_touches(by: str | None, sql_holder: Holder, sql_store: SqlStore) -> None:
    for row in sql_holder.accept(*(NOW + n * HOUR_MS for n in range(4))):
        sql_holder.apply(tally={hour_of(row): 1})

    def hours(from_ms: int | None, to_ms: int | None) -> list[int]:
        due = sql_store.browse.due_by_name(Criteria(from_ms=from_ms, to_ms=to_ms), by)
        return [(one.from_ms - NOW) // HOUR_MS for one in due]

    assert hours(None, NOW + 2 * HOUR_MS) == [0, 1]
    assert hours(NOW + 2 * HOUR_MS - 1, NOW + 2 * HOUR_MS + 1) == [1, 2]
    assert hours(NOW + HOUR_MS, 2**62) == [1, 2, 3]
    assert hours(2**62, None) == []


def test_settlements_come_latest_first(sql_holder: Holder, second: Holder, sql_store: SqlStore) -> None:
    rows = sql_holder.accept(NOW, NOW + 1)
    sql_holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 1)
    sql_holder.settle(place(rows[0]), place(rows[1]), at_ms=NOW + 2)
    second.settle(ORIGIN, place(second.accept(NOW)[0]), at_ms=NOW + 3)
    page = sql_store.browse.settlements(EVERYTHING, limit=2)
    last = sql_store.browse.settlements(EVERYTHING, page.next or ORIGIN, 2)
    found = [one.dispatched_ms - NOW for one in [*page.items, *last.items]]
    assert (found, last.next) == ([3, 2, 1], None)
    assert page.items[1].to == place(rows[1])


def test_tasks_of_a_rare_name_have_their_times_across_many_settlements(sql_holder: Holder, sql_store: SqlStore) -> None:
    rows = [sql_holder.row(NOW + n, task="app.rare" if n % 299 == 0 else "app.often") for n in range(600)]
    places = [ORIGIN, *map(place, rows)]
    settlements = [sql_holder.settlement(places[n], places[n + 1], at_ms=NOW + n + 7) for n in range(600)]
    sql_holder.apply(rows=rows, settlements=settlements, lanes=[LaneState(0, places[-1], places[-1])])
    page = sql_store.browse.dispatched(Criteria(task="app.rare"))
    assert [(one.due_ms - NOW, one.late_ms) for one in page.items] == [(598, 7), (299, 7), (0, 7)]


def test_after_a_replay_a_task_has_the_time_of_its_first_dispatch(sql_holder: Holder, sql_store: SqlStore) -> None:
    rows = sql_holder.accept(NOW, NOW, NOW)
    sql_holder.settle(ORIGIN, place(rows[2]), at_ms=NOW + 10)
    sql_holder.settle(ORIGIN, place(rows[1]), at_ms=NOW + 99)  # once more, up to an earlier position
    sql_holder.put_offset(place(rows[2]))
    assert [one.late_ms for one in sql_store.browse.dispatched(EVERYTHING).items] == [10, 10, 10]


def test_outcomes_are_read_within_bounds(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "SCAN", 20)  # for two shards
    monkeypatch.setattr(pages_module, "SCAN_LEAST", 1)
    rows = [sql_holder.row(NOW, task="app.rare" if n in (3, 25) else "app.often") for n in range(30)]
    outcomes = [sql_holder.outcome(row.id, "rejected", NOW + n) for n, row in enumerate(rows)]
    sql_holder.apply(rows=rows, moves=[sql_holder.stop(row) for row in rows], outcomes=outcomes)
    rare = Criteria(task="app.rare")
    first = sql_store.browse.outcomes(["rejected"], rare, limit=5)
    assert [one.at_ms - NOW for one in first.items] == [25]
    assert first.next is not None
    assert first.next.due_ms == NOW + 20
    seen = walk(partial(sql_store.browse.outcomes, ["rejected"], rare, limit=5), pages_module.END)
    assert [one.at_ms - NOW for one in seen] == [25, 3]
    of_a_time = sql_store.browse.outcomes(["rejected"], Criteria(from_ms=NOW + 5, to_ms=NOW + 8))
    assert [one.at_ms - NOW for one in of_a_time.items] == [7, 6, 5]


def test_a_page_shows_one_moment(sql_holder: Holder, sql_store: SqlStore) -> None:
    (row,) = sql_holder.accept(NOW)
    with sql_store.database.snapshot() as connection:
        before = read_lanes(connection, sql_store.database.statements, 0)
        sql_holder.put_offset(place(row))
        assert read_lanes(connection, sql_store.database.statements, 0) == before
    assert sql_store.lanes(0) != before
    with pytest.raises(ZeroDivisionError), sql_store.database.snapshot():
        raise ZeroDivisionError
    sql_holder.accept(NOW + 1)


def test_pages_go_by_an_index(sql_store: SqlStore, sql_holder: Holder, second: Holder) -> None:
    """Each part of a statement reads an index in its order, and stops after a page's rows, whatever the shard has."""
    for holder in (sql_holder, second):
        fill(holder)
    if sql_store.database.server() is not None:
        with sql_store.database.writing() as connection:
            connection.exec_driver_sql("ANALYZE")
    one_task = Criteria(task="app.remind", queue="celery", from_ms=NOW, to_ms=NOW + 400)
    for criteria in (EVERYTHING, one_task):
        given = list[Any]()
        with reads_of(sql_store, given) as said:
            for turn in (sql_store.browse.pending, sql_store.browse.dispatched, sql_store.browse.settlements):
                assert turn(criteria, limit=LIMIT).items
            assert sql_store.browse.outcomes(["rejected"], criteria, limit=LIMIT).items
        assert len(set(said)) > 8
        with sql_store.database.reading() as connection:
            for statement, values in zip(said, given, strict=True):
                plan = sqlite_plan if connection.dialect.name == "sqlite" else postgresql_plan
                plan(connection, statement, values, LIMIT + 2 if criteria == EVERYTHING else 400)


LIMIT = 10


def fill(holder: Holder) -> None:
    """Accept 600 tasks: 200 are dispatched, in as many settlements, 200 rejected and 200 pending."""
    rows = [holder.row(NOW + n) for n in range(600)]
    places = [ORIGIN, *map(place, rows[:200])]
    settlements = [holder.settlement(before, to, at_ms=NOW + n) for n, (before, to) in enumerate(pairwise(places))]
    lanes = [LaneState(0, places[-1], places[-1])]
    holder.apply(rows=rows, settlements=settlements, lanes=lanes, tally={hour_of(rows[0]): 200})
    outcomes = [holder.outcome(row.id, "rejected", row.due_ms - 400) for row in rows[400:]]
    holder.apply(moves=[holder.stop(row) for row in rows[400:]], outcomes=outcomes)


def sqlite_plan(connection: Connection, statement: str, values: Any, _most: int) -> None:
    """Assert that no table is scanned, and no part sorted: its LIMIT then ends the reading of its index."""
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    above = {number: parent for number, parent, _, _ in rows}
    parts = {number for number, _, _, what in rows if what.startswith("CO-ROUTINE")}
    for number, _, _, what in rows:
        assert not what.startswith("SCAN wheel_"), (statement, rows)
        if "TEMP B-TREE" in what and "wheel_tally" not in statement:  # the hours of the tally are bounded
            assert parts, (statement, rows)
            up = number
            while up in above:
                assert up not in parts, (statement, rows)
                up = above[up]


def postgresql_plan(connection: Connection, statement: str, values: Any, most: int) -> None:
    """Assert that no large table is scanned, and that a scan of an index has read at most so many rows."""
    [plan] = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).scalar_one()
    nodes = [plan["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") in ("wheel_timer", "wheel_settlement", "wheel_outcome"):
            assert node["Node Type"] != "Seq Scan", (statement, plan)
            assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= most, (statement, plan)
