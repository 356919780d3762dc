"""Durations, instants and parts of messages in the form that people read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports.pages import HourCount
from celery_wheel.timing import TimingWheel
from django_wheel import charts, formats
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
    assert formats.format_duration(ms) == shown


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "2027-01-15 08:00:00.007"), ("Asia/Kolkata", "2027-01-15 13:30:00.007")]
)
def test_instants_are_in_the_sites_zone(zone: str, shown: str) -> None:
    with override_settings(TIME_ZONE=zone):
        assert formats.instant(NOW + 7) == shown
        assert formats.clock(NOW + 7) == shown.split()[1]


@pytest.mark.parametrize("at_ms", [None, 0])
def test_a_missing_instant_has_its_own_text(at_ms: int | None) -> None:
    assert formats.instant(at_ms) == "-"
    assert formats.clock(at_ms) == "-"


@given(st.integers(min_value=1, max_value=2**63))
def test_every_instant_can_be_shown(at_ms: int) -> None:
    assert formats.instant(at_ms)


@given(st.text())
def test_every_character_of_a_shown_text_is_printable(text: str) -> None:
    shown = formats.printable(text, 50)
    assert shown.isprintable()
    if text.isprintable() and len(text) <= 50:
        assert shown == text


@given(st.binary(max_size=5_000))
def test_every_part_can_be_shown(raw: bytes) -> None:
    shown = formats.format_part(raw)
    assert all(line.isprintable() for line in shown.splitlines())


def test_parts_of_messages_are_laid_out_where_json_permits() -> None:
    assert formats.format_part(b'{"a": [1]}') == json.dumps({"a": [1]}, indent=2)
    assert formats.format_part(b"plain\ntext\x1b[31m") == "plain\ntext\\x1b[31m"
    assert formats.format_part(b"\xff\x00ab").split() == ["00000000", "ff", "00", "61", "62", "..ab"]
    assert formats.format_part(b"[" * 100_000).endswith("more characters")
    assert formats.format_part(b'{"a": 1, "a": 2}') == '{"a": 1, "a": 2}'  # laid out, one of the two would be missing
    assert formats.format_part(b"\xff" * 5_000).endswith("3,976 more bytes")


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
    shown = formats.format_part(raw)
    assert time.process_time() - began < 0.5
    assert len(shown) < formats.PART_CUT + 100


def test_the_last_hours_of_the_calendar_can_be_shown() -> None:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert formats.instant(253_402_300_799_999) == "9999-12-31 23:59:59.999"


def levels(wheel: TimingWheel) -> list[dict[str, Any]]:
    """Return levels in the form of a holder's snapshot."""
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
    st.integers(2, 30),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=40),
)
def test_the_span_of_a_bar_has_the_due_times_of_its_bucket(
    tick_ms: int, size: int, start_ms: int, delays: list[int]
) -> None:
    wheel = TimingWheel(tick_ms, size, start_ms)
    due = {n: start_ms + delay for n, delay in enumerate(delays)}
    for n, due_ms in due.items():
        wheel.schedule(n, due_ms)
    bars = [bar for strip in charts.level_charts(levels(wheel)) for bar in strip.bars]
    assert sum(bar.pending for bar in bars) == len(wheel)
    for strip in charts.level_charts(levels(wheel)):
        assert all(0 <= bar.x < strip.size for bar in strip.bars)
        assert all(0 < bar.height <= charts.HEIGHT and bar.y >= 0 for bar in strip.bars)
    for level in wheel.levels():
        (strip,) = [one for one in charts.level_charts(levels(wheel)) if one.number == level.number]
        for bucket in level.buckets:
            (bar,) = [one for one in strip.bars if one.index == bucket.index]
            assert all(bar.from_ms <= due[int(str(n))] < bar.to_ms for n in bucket.timer_ids())


@given(st.lists(st.tuples(st.integers(-100, 24 * 70), st.integers(1, 50)), max_size=30), st.integers(0, HOUR_MS - 1))
def test_the_chart_counts_every_due_task_once(due: list[tuple[int, int]], into_ms: int) -> None:
    now = NOW + into_ms
    shown = charts.due_chart([HourCount(0, NOW + hour * HOUR_MS, count) for hour, count in due], now)
    total = sum(bar.pending for bar in [*shown.hours, *shown.days]) + shown.later + shown.overdue
    assert total == sum(count for _, count in due)
    for bar in [*shown.hours, *shown.days]:
        inside = [count for hour, count in due if bar.from_ms <= NOW + hour * HOUR_MS < bar.to_ms]
        assert bar.pending == sum(inside)
