"""The segments of a zone against its offsets, asked one by one."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from celery_wheel.recurring.local import WallClock
from tests.unit.recurring.instants import EPOCH, ms
from tests.unit.recurring.proof import ZONES

HOUR = 3_600_000


def offset_ms(zone: ZoneInfo, at_ms: int) -> int:
    offset = (EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def test_segments_have_the_offset_of_each_hour_of_40_years() -> None:
    zone = Random().choice(ZONES)
    clock, tz = WallClock(ZoneInfo(zone)), ZoneInfo(zone)
    found = [clock.segment(at_ms).offset_ms for at_ms in range(ms("2000-01-01"), ms("2040-01-01"), HOUR)]
    assert found == [offset_ms(tz, at_ms) for at_ms in range(ms("2000-01-01"), ms("2040-01-01"), HOUR)], zone


@pytest.mark.parametrize("zone", ["Pacific/Apia", "Africa/Casablanca", "America/Recife", "Asia/Gaza", "UTC"])
def test_a_segment_begins_and_ends_exactly_at_a_change(zone: str) -> None:
    clock, tz, at_ms = WallClock(ZoneInfo(zone)), ZoneInfo(zone), ms("2000-01-01")
    while at_ms < ms("2042-01-01"):
        segment = clock.segment(at_ms)
        assert segment.end_ms > at_ms
        assert offset_ms(tz, segment.end_ms) == segment.after_ms
        assert offset_ms(tz, segment.end_ms - 1) == segment.offset_ms == offset_ms(tz, at_ms)
        at_ms = segment.end_ms
        after = clock.segment(at_ms)
        if segment.after_ms != segment.offset_ms:
            assert (after.start_ms, after.before_ms) == (at_ms, segment.offset_ms)
            assert after.gap_ms == after.offset_ms - segment.offset_ms


@pytest.mark.parametrize(
    ("zone", "date"),
    [
        ("America/Recife", "2000-10-10"),
        ("Asia/Gaza", "2040-10-24"),
        ("Asia/Gaza", "2054-04-01"),
        ("Asia/Gaza", "2072-10-26"),
    ],
)
def test_the_shortest_times_of_an_offset_are_found(zone: str, date: str) -> None:
    """A week: the reason why the offset is asked every four days."""
    clock, tz = WallClock(ZoneInfo(zone)), ZoneInfo(zone)
    hours = range(ms(date) - 240 * HOUR, ms(date) + 240 * HOUR, HOUR)
    expected = [offset_ms(tz, at_ms) for at_ms in hours]
    assert len(set(expected)) == 2
    assert expected[0] == expected[-1]
    assert [clock.segment(at_ms).offset_ms for at_ms in hours] == expected


@pytest.mark.parametrize("zone", ["America/St_Johns", "Pacific/Apia", "Europe/Berlin"])
def test_a_wall_clock_shows_no_later_time_before_the_instant_that_is_promised(zone: str) -> None:
    clock, random = WallClock(ZoneInfo(zone)), Random(zone)
    for _ in range(2_000):
        at_ms = random.randrange(ms("2000-01-01"), ms("2013-01-01"), 60_000)
        local = clock.local(at_ms) + random.choice((1, 60_000, HOUR, 20 * HOUR, 200 * HOUR, 9_000 * HOUR))
        promised = clock.not_before(at_ms, local)
        assert promised > at_ms
        if clock.segment(at_ms).end_ms > promised:
            assert clock.local(promised - 1) < local
