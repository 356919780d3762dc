"""The lists: the columns that they need, times beside their distance, the lateness chart, and a bounded cost."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from freezegun import freeze_time

from celery_wheel.store import open_store
from celery_wheel.store.model import DAY_MS, HOUR_MS, ORIGIN
from celery_wheel.store.sql.store import SqlStore
from django_wheel.drawing.charts import TimeAxis, duration_axis
from tests.admin.conftest import ADMIN, Configure, end, shown, tallied
from tests.kit.holder import NOW, Holder, place

PAGES = ("pending", "history", "rejected", "settlement")


def heads(text: str) -> list[str]:
    head = text.split('id="content-main"')[1].split("<thead>")[1].split("</thead>")[0]
    return re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', head)


def filled(store: SqlStore, **parts: Any) -> Holder:
    holder = Holder(store)
    rows = tallied(holder, NOW + 1, NOW + 2, NOW + 3, **parts)
    holder.settle(ORIGIN, place(rows[0]), at_ms=NOW + 12)
    end(holder, rows[2])
    return holder


@pytest.fixture
def single(tmp_path: Any, conf: Configure) -> SqlStore:
    url = f"sqlite:///{tmp_path}/single.sqlite3"
    conf(wheel_store=url)
    return open_store(url, shards=1)


def test_a_column_without_a_value_is_left_out(viewer: Client, single: SqlStore) -> None:
    filled(single)
    assert heads(shown(viewer, f"{ADMIN}/pending/")) == ["Due", "Task", "Queue", "Size"]
    assert heads(shown(viewer, f"{ADMIN}/history/")) == ["Due", "Dispatched", "Late", "Task", "Queue", "Size"]
    assert heads(shown(viewer, f"{ADMIN}/rejected/")) == ["Time", "Reason", "By", "Task", "Queue", "Body"]
    assert "Shard" not in heads(shown(viewer, f"{ADMIN}/settlement/"))
    assert 'name="shard"' not in shown(viewer, f"{ADMIN}/pending/")
    tallied(Holder(single), NOW + 9, key="order-1", priority=0)
    assert heads(shown(viewer, f"{ADMIN}/pending/")) == ["Due", "Task", "Queue", "Priority", "Key", "Size"]


def test_a_store_with_several_shards_has_their_column_and_filter(viewer: Client, store: SqlStore) -> None:
    filled(store)
    for page in PAGES:
        assert heads(shown(viewer, f"{ADMIN}/{page}/"))[-1] == "Shard"
    assert 'name="shard"' in shown(viewer, f"{ADMIN}/pending/")


@pytest.mark.parametrize("page", PAGES)
def test_each_cell_has_the_label_of_its_column_for_narrow_screens(viewer: Client, store: SqlStore, page: str) -> None:
    filled(store, key="a", priority=3)
    text = shown(viewer, f"{ADMIN}/{page}/")
    assert re.findall('data-label="([^"]*)"', text.split("<tbody>")[1].split("</tr>")[0]) == heads(text)


@pytest.mark.usefixtures("still")
def test_a_time_has_its_date_unless_that_is_today_and_its_distance(viewer: Client, holder: Holder) -> None:
    tallied(holder, NOW + 200_340, NOW + HOUR_MS, NOW + DAY_MS)
    text = shown(viewer, f"{ADMIN}/pending/")
    at = r'<time datetime="[^"]*Z" title="[^"]*">([^<]*)</time> <span class="wheel-relative">([^<]*)'
    found = re.findall(at, text)
    assert found == [("09:03:20.340", "in 3 min"), ("10:00", "in 1 h"), ("2027-01-16 09:00", "in 1 d")]


@freeze_time("2027-01-15 08:30:00")
def test_the_history_draws_the_lateness_of_its_tasks(viewer: Client, holder: Holder) -> None:
    rows = tallied(holder, *(NOW + n * 60_000 for n in range(1, 5)))
    before = ORIGIN
    for row, late_ms in zip(rows, (10, 40, 200, 45_000), strict=True):
        holder.settle(before, place(row), at_ms=row.due_ms + late_ms)
        before = place(row)
    drawn = unescape(shown(viewer, f"{ADMIN}/history/")).split('id="wheel-lateness"')[1].split("</figure>")[0]
    assert "p50 40 ms, p99 45 s, maximum 45 s" in drawn
    assert "1 is later than the objective of 30 s." in drawn
    points = re.findall(r'<circle class="([^"]*)" cx="([\d.]*)%" cy="([\d.]*)%"', drawn)
    assert [one[0] for one in points] == ["wheel-point-late", *["wheel-point"] * 3]
    assert (points[0][1:], points[-1][1]) == (("100.0", "0.0"), "0.0")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert labels == ["0 ms", "15 s", "30 s", "45 s", "09:02", "2027-01-15", "09:03", "09:04"]
    assert f"/pending/{rows[3].id}/" in drawn


def test_a_history_without_times_of_dispatch_has_no_chart(viewer: Client, holder: Holder) -> None:
    assert 'id="wheel-lateness"' not in shown(viewer, f"{ADMIN}/history/")


def test_axes_have_round_steps_and_few_labels() -> None:
    for most in (1, 3, 17, 999, 61_000, 5 * HOUR_MS, 40 * DAY_MS, 10**15):
        axis = duration_axis(most)
        assert axis.most >= most
        assert 2 <= len(axis.ticks) <= 6
        assert (axis.ticks[0].at, axis.ticks[-1].at) == (100.0, 0.0)


def test_the_ticks_of_time_stay_at_round_hours_where_the_clocks_change() -> None:
    night_ms = 1_792_879_200_000  # 2026-10-25 00:00 in Berlin; the clocks go back at 03:00
    ticks = TimeAxis(night_ms, night_ms + 25 * HOUR_MS).ticks
    assert [one.label for one in ticks] == ["00:00", "12:00", "00:00"]
    assert [one.date for one in ticks] == ["2026-10-25", "", "2026-10-26"]
    assert [one.at for one in ticks] == [0.0, 52.0, 100.0]
