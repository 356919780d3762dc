"""The search for coming herds: it names the second, the count and the task, however far ahead a herd is."""

import pytest

from celery_wheel.overview import ahead
from celery_wheel.overview.ahead import ComingHerd, read_ahead
from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.test_overview import accept
from tests.kit.counts import reads_of
from tests.kit.holder import NOW, Holder, hour_of

FAR = NOW + 30 * HOUR_MS


def herd(holder: Holder, at_ms: int, count: int, task: str) -> None:
    rows = [holder.row(at_ms + n % 1_000, task=task) for n in range(count)]
    holder.apply(rows=rows, tally={hour_of(rows[0]): count})


def test_a_herd_far_ahead_is_named_by_its_second_and_its_task(
    sql_holder: Holder, second: Holder, sql_store: SqlStore
) -> None:
    accept(sql_holder, NOW - 5, NOW + 400, *[FAR + n * 60_000 for n in range(60)], task="app.usual")
    herd(sql_holder, FAR + 7_000, 1_200, "app.herd")
    herd(second, FAR + 7_000, 900, "app.herd")
    accept(second, FAR + 7_001, task="app.other")
    herd(second, NOW + 500 * HOUR_MS, 300, "app.small")
    with reads_of(sql_store) as statements:
        found = read_ahead(sql_store, NOW)
    assert len(statements) == 3
    assert found.herds == [
        ComingHerd(FAR + 7_000, FAR + 8_000, 2_101, ("app.herd", "app.other")),
        ComingHerd(NOW + 500 * HOUR_MS, NOW + 500 * HOUR_MS + 1_000, 300, ("app.small",)),
    ]
    assert found.hours == {NOW: 1, FAR: 2_161, NOW + 500 * HOUR_MS: 300}


def test_tasks_that_are_overdue_or_dispatched_are_no_coming_herd(sql_holder: Holder, sql_store: SqlStore) -> None:
    herd(sql_holder, NOW, 500, "app.herd")
    assert [one.pending for one in read_ahead(sql_store, NOW - 1).herds] == [500]
    assert read_ahead(sql_store, NOW + 2_000).herds == []


def test_an_even_load_has_no_herd(sql_holder: Holder, sql_store: SqlStore) -> None:
    rows = [sql_holder.row(FAR + n * 1_000) for n in range(3_600)]
    sql_holder.apply(rows=rows, tally={hour_of(rows[0]): len(rows)})
    assert read_ahead(sql_store, NOW).herds == []


def test_an_hour_with_too_many_tasks_to_be_counted_is_named_as_a_whole(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "HOUR_ROWS", 999)
    herd(sql_holder, FAR, 1_000, "app.herd")
    assert read_ahead(sql_store, NOW).herds == [ComingHerd(FAR, FAR + HOUR_MS, 1_000, ())]


def test_full_hours_do_not_hide_a_herd_and_the_search_reads_a_bounded_number_of_rows(
    sql_holder: Holder, sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in range(5):
        rows = [sql_holder.row(NOW + 3 * hour * HOUR_MS + n * 7_000) for n in range(500)]
        sql_holder.apply(rows=rows, tally={hour_of(rows[0]): len(rows)})
    herd(sql_holder, FAR + HOUR_MS, 200, "app.herd")
    assert [one.tasks for one in read_ahead(sql_store, NOW).herds] == [("app.herd",)]
    monkeypatch.setattr(ahead, "ROWS_SEARCHED", 5 * 500)
    assert read_ahead(sql_store, NOW).herds == []
