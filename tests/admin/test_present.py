"""Durations, instants and parts of messages in the form that people read."""

import json
import time
from collections import Counter
from typing import Any

import pytest
from django.test import override_settings
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.engine.stats import SPAN_MS, Recent
from celery_wheel.overview import HOURS, DueLoad, due_load
from celery_wheel.overview.ahead import ComingHerd
from celery_wheel.store.model import DAY_MS, HOUR_MS
from celery_wheel.store.ports.pages import OverviewRows
from celery_wheel.timing import TimingWheel
from celery_wheel.values import format as values
from django_wheel import formats
from django_wheel.drawing import charts, rings
from django_wheel.drawing import due_load as drawing
from django_wheel.drawing.due_load import round_top
from django_wheel.formats import Moments
from tests.kit.holder import NOW


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, "-"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (12_540, "12.5 s"),
        (-12_540, "-12.5 s"),
        (59_999, "60 s"),
        (200_000, "3 min 20 s"),
        (3_600_000, "1 h"),
        (93_600_000, "1 d 2 h"),
        (86_400_000 * 1_200, "1,200 d"),
    ],
)
def test_durations_have_at_most_two_units(ms: int | None, shown: str) -> None:
    assert values.format_duration(ms) == shown


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "2027-01-15 08:00:00.007"), ("Asia/Kolkata", "2027-01-15 13:30:00.007")]
)
def test_instants_are_in_the_sites_zone(zone: str, shown: str) -> None:
    with override_settings(TIME_ZONE=zone):
        assert formats.instant(NOW + 7) == shown
        with freeze_time("2027-01-15 12:00:00"):
            assert formats.clock(NOW + 7) == shown.split()[1]
            assert formats.clock(NOW + 7 + DAY_MS) == shown.replace("-15", "-16")


@pytest.mark.parametrize(
    ("distance_ms", "shown"),
    [(0, "now"), (999, "now"), (59_999, "in 59 s"), (200_000, "in 3 min"), (-93_600_000, "1 d ago")],
)
def test_the_distance_of_an_instant_has_its_largest_unit(distance_ms: int, shown: str) -> None:
    assert formats.relative(NOW + distance_ms, NOW) == shown


def test_headers_are_shown_without_those_that_are_null() -> None:
    headers = {"shadow": None, "id": "x", "said": '": null,', "limits": [None], "stamps": {"a": None}, "group": None}
    whole = json.dumps(headers).encode()
    assert json.loads(formats.format_headers(whole)) == {k: v for k, v in headers.items() if v is not None}
    assert formats.format_headers(b'{"a": null}') == "{}"
    assert formats.format_headers(b"{}") == "{}"
    assert formats.format_headers(b"no json\n") == "no json"


@pytest.mark.parametrize("at_ms", [None, 0])
def test_a_missing_instant_has_its_own_text(at_ms: int | None) -> None:
    assert formats.instant(at_ms) == "-"
    assert formats.clock(at_ms) == "-"


@given(st.integers(min_value=1, max_value=2**63))
def test_every_instant_can_be_shown(at_ms: int) -> None:
    assert formats.instant(at_ms)


@given(st.text())
def test_every_character_of_a_shown_text_is_printable(text: str) -> None:
    shown = values.printable(text, 50)
    assert shown.isprintable()
    if text.isprintable() and len(text) <= 50:
        assert shown == text


@given(st.binary(max_size=5_000))
def test_every_part_can_be_shown(raw: bytes) -> None:
    shown = values.format_part(raw)
    assert all(line.isprintable() for line in shown.splitlines())


def test_parts_of_messages_are_laid_out_where_json_permits() -> None:
    assert values.format_part(b'{"a": [1]}') == json.dumps({"a": [1]}, indent=2)
    assert values.format_part(b"plain\ntext\x1b[31m") == "plain\ntext\\x1b[31m"
    assert values.format_part(b"\xff\x00ab").split() == ["00000000", "ff", "00", "61", "62", "..ab"]
    assert values.format_part(b"[" * 100_000).endswith("more characters")
    assert values.format_part(b'{"a": 1, "a": 2}') == '{"a": 1, "a": 2}'  # laid out, one of the two would be missing
    assert values.format_part(b"\xff" * 5_000).endswith("3,976 more bytes")


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"1," * 4_000_000 + b"1]",
        b"[" * 900 + b"1," * 40_000 + b"1" + b"]" * 900,
        b'"' + b"\\u0041" * 30_000 + b'"',
        b"1" * 5_000,
    ],
)
def test_a_large_part_costs_little(raw: bytes) -> None:
    """The time-out is the test: laid out as a whole, the first two parts took seconds and up to a gigabyte."""
    began = time.process_time()
    shown = values.format_part(raw)
    assert time.process_time() - began < 0.5
    assert len(shown) < values.PART_CUT + 100


def test_the_last_hours_of_the_calendar_can_be_shown() -> None:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert formats.instant(253_402_300_799_999) == "9999-12-31 23:59:59.999"


def levels(wheel: TimingWheel) -> list[dict[str, Any]]:
    return [
        {
            "level": one.number,
            "tick_ms": one.tick_ms,
            "interval_ms": one.interval_ms,
            "current_time_ms": one.current_time_ms,
            "pending": one.pending,
            "buckets": [
                {"index": bucket.index, "expiration_ms": bucket.expiration_ms, "pending": bucket.pending}
                for bucket in one.buckets
            ],
        }
        for one in wheel.levels()
    ]


@given(
    st.integers(1, 50),
    st.integers(2, 200),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=40),
)
def test_an_arc_has_the_due_times_of_its_buckets(tick_ms: int, size: int, start_ms: int, delays: list[int]) -> None:
    wheel = TimingWheel(tick_ms, size, start_ms)
    due = {n: start_ms + delay for n, delay in enumerate(delays)}
    for n, due_ms in due.items():
        wheel.schedule(n, due_ms)
    found = rings.rings_of(levels(wheel))
    for level, ring in zip(wheel.levels(), found, strict=True):
        assert len(ring.arcs) <= rings.ARCS
        assert sum(arc.pending for arc in ring.arcs) == level.pending
        assert all(0 <= begin < end <= 1 for begin, end in (rings.turns_of(ring, arc) for arc in ring.arcs))
        for bucket in level.buckets:
            (arc,) = [one for one in ring.arcs if one.begins_ms <= bucket.expiration_ms < one.ends_ms]
            assert all(arc.from_ms <= due[int(str(n))] < arc.to_ms for n in bucket.timer_ids())


def load_of(due: list[tuple[int, int]], now: int) -> tuple[DueLoad, dict[int, int]]:
    """Return the load of (hour from NOW on, tasks), and the hours ahead."""
    hours, days = Counter[int](), Counter[int]()
    for hour, count in due:
        hours[NOW // HOUR_MS + hour] += count
        days[(NOW + hour * HOUR_MS) // DAY_MS] += count
    near = {hour: count for hour, count in hours.items() if hour < now // HOUR_MS + HOURS}
    ahead = {hour * HOUR_MS: count for hour, count in hours.items() if hour >= now // HOUR_MS}
    return due_load(OverviewRows([], [], [], {}, {}, near, days, None, {}), now, None), ahead


@given(st.lists(st.tuples(st.integers(-100, 24 * 400), st.integers(1, 50)), max_size=30), st.integers(0, HOUR_MS - 1))
def test_the_charts_count_every_due_task_once(due: list[tuple[int, int]], into_ms: int) -> None:
    now = NOW + into_ms
    load, ahead = load_of(due, now)
    _minute, _hour, day = drawing.due_charts(load, now)
    long = drawing.long_chart(ahead, now)
    overdue = sum(count for hour, count in due if hour < 0)
    assert long.pending + drawing.later_than(long, ahead) + overdue == sum(count for _, count in due)
    for span in [*day.spans, *long.spans]:
        inside = [count for hour, count in due if hour >= 0 and span.from_ms <= NOW + hour * HOUR_MS < span.to_ms]
        assert span.pending == sum(inside)


@pytest.mark.parametrize("days", [1, 30, 32, 300])
def test_every_bar_of_the_last_chart_can_be_seen(days: int) -> None:
    """365 bars were a pixel wide: two tasks of a year could not be seen."""
    chart = drawing.long_chart({NOW: 1, NOW + days * DAY_MS: 1}, NOW)
    assert (chart.period, chart.size) == (("month", 31) if days <= 30 else ("year", 53))
    assert [span.pending for span in chart.spans] in ([1, 1], [2])


@pytest.mark.parametrize(
    ("zone", "first", "second"),
    [
        ("Europe/Berlin", "2027-03-28", "2027-03-29"),  # the clocks are put forward: a day of 23 hours
        ("Asia/Tokyo", "2027-03-28", "2027-03-29"),
        ("Asia/Kolkata", "2027-03-28 00:30 - 2027-03-29 00:30", "2027-03-29 00:30 - 2027-03-30 00:30"),
    ],
)
def test_bars_of_days_are_days_of_the_current_zone(zone: str, first: str, second: str) -> None:
    now = 1_806_224_400_000 - 30 * 60_000  # noon of 2027-03-28 in Tokyo
    with override_settings(TIME_ZONE=zone):
        chart = drawing.long_chart({now - now % HOUR_MS + hour * HOUR_MS: 1 for hour in range(72)}, now)
        times = Moments(now)
        shown = [times.span(span.from_ms, span.to_ms) for span in chart.spans]
        assert shown[:2] == [first, second]


def test_a_herd_is_named_once_by_its_finest_span() -> None:
    herd_ms, far_ms = NOW + 1_800_000, NOW + 30 * HOUR_MS
    load = DueLoad({herd_ms: 900, NOW + 5_000: 3}, NOW, {NOW: 905, NOW + HOUR_MS: 20}, {NOW + 3 * DAY_MS: 5_000}, NOW)
    coming = [ComingHerd(far_ms, far_ms + 1_000, 20_000, ("shop.herd",)), ComingHerd(herd_ms, herd_ms + 1_000, 900, ())]
    found = [(one.from_ms, one.pending, one.tasks) for one in drawing.herds(drawing.due_charts(load, NOW), coming)]
    assert found == [(far_ms, 20_000, ("shop.herd",)), (herd_ms, 900, ())]
    assert [one.from_ms for one in drawing.herds(drawing.due_charts(load, NOW))] == [herd_ms]


def test_an_even_load_has_no_herd() -> None:
    load = DueLoad({}, 0, {NOW + hour * HOUR_MS: 4_000 + hour for hour in range(48)}, {}, NOW)
    assert drawing.herds(drawing.due_charts(load, NOW)) == []


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 4), (9, 10), (10, 10), (11, 20), (61, 80), (10_001, 20_000)]
)
def test_an_axis_ends_at_a_round_number(most: int, top: int) -> None:
    assert round_top(most) == top


@pytest.mark.parametrize(
    ("after_ms", "moment", "distance"),
    [
        (0, "09:00", "now"),
        (3_000, "09:00:03", "in 3 s"),
        (190_000, "09:03:10", "in 3 min"),
        (-190_000, "08:56:50", "3 min ago"),
        (20 * HOUR_MS, "tomorrow 05:00", "in 20 h"),
        (-10 * HOUR_MS, "yesterday 23:00", "10 h ago"),
        (49 * HOUR_MS, "2027-01-17 10:00", "in 2 d"),
    ],
)
def test_an_instant_of_another_day_has_its_day(after_ms: int, moment: str, distance: str) -> None:
    times = Moments(NOW)
    assert (times.moment(NOW + after_ms), times.distance(NOW + after_ms)) == (moment, distance)


def test_lines_break_off_where_values_are_missing() -> None:
    drawn = charts.draw_lines(10, {"p50": [None, 5, 10, None, 0]}, limit=5)
    assert 'class="wheel-line-p50" d="M1 20.0h.01L2 0.0M4 40.0h.01"' in drawn
    assert 'class="wheel-limit" d="M0 20.0' in drawn
    assert "wheel-limit" not in charts.draw_lines(10, {"p50": [1]}, limit=11)


def test_spans_of_several_holders_are_added_and_the_worst_lateness_is_shown() -> None:
    first, second = Recent(), Recent()
    first.add(NOW - 2 * SPAN_MS, 10, 10, {"p50_ms": 1, "p99_ms": 9})
    first.add(NOW - SPAN_MS, 50, 30, {"p50_ms": 2, "p99_ms": 7})
    second.add(NOW - SPAN_MS, 20, 0, None)
    one = first.add(NOW, 99, 99, {"p50_ms": 3, "p99_ms": 99})
    found = charts.minutes_of([{"recent": one}, {"recent": second.add(NOW, 20, 0, None)}, None], NOW)
    assert (found.accepted[-2:], found.dispatched[-2:]) == ([0.5, 3.0], [0.5, 1.0])
    assert (found.p50_ms[-2:], found.p99_ms[-2:]) == ([1, 2], [9, 7])
    assert found.accepted[:-2] == [None] * 28
