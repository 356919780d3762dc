"""Gaps and folds by name: each zone's own way to move its clocks, and each rule for it."""

from datetime import datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_wheel.recurring import Crontab, Recurrence
from celery_wheel.recurring.local import WallClock, resolve, zone_of
from tests.unit.recurring.instants import EPOCH, ms, shown
from tests.unit.recurring.proof import ZONES


@pytest.mark.parametrize(
    ("zone", "date", "fields", "rules", "expected"),
    [
        ("America/New_York", "2013-03-10", "*/20 2,3", {}, "03-10 03:00-0400, 03-10 03:20-0400, 03-10 03:40-0400"),
        ("America/New_York", "2013-03-10", "*/20 2", {}, "03-10 03:00-0400, 03-10 03:20-0400, 03-10 03:40-0400"),
        ("America/New_York", "2013-03-10", "*/20 3", {}, "03-10 03:00-0400, 03-10 03:20-0400, 03-10 03:40-0400"),
        ("America/New_York", "2013-03-10", "30 2", {}, "03-10 03:30-0400"),
        ("America/New_York", "2013-03-10", "30 2", {"gap": "skip"}, ""),
        ("America/New_York", "2013-11-03", "15,45 1", {"fold": "first"}, "11-03 01:15-0400, 11-03 01:45-0400"),
        ("America/New_York", "2013-11-03", "15,45 1", {"fold": "second"}, "11-03 01:15-0500, 11-03 01:45-0500"),
        (
            "America/New_York", "2013-11-03", "15,45 1", {"fold": "both"},
            "11-03 01:15-0400, 11-03 01:45-0400, 11-03 01:15-0500, 11-03 01:45-0500",
        ),
        ("Australia/Lord_Howe", "2026-10-03T12:00", "*/15 2", {}, "10-04 02:30+1100, 10-04 02:45+1100"),
        (
            "Australia/Lord_Howe", "2026-04-04T12:00", "*/15 1", {"fold": "both"},
            "04-05 01:00+1100, 04-05 01:15+1100, 04-05 01:30+1100, 04-05 01:45+1100, "
            "04-05 01:30+1030, 04-05 01:45+1030",
        ),
        ("Europe/Dublin", "2026-03-29", "30 1", {}, "03-29 02:30+0100"),
        ("Europe/Dublin", "2026-10-24T12:00", "30 1", {"fold": "both"}, "10-25 01:30+0100, 10-25 01:30+0000"),
        ("Africa/Casablanca", "2026-02-15", "30 2", {"fold": "both"}, "02-15 02:30+0100, 02-15 02:30+0000"),
        ("Africa/Casablanca", "2026-03-22", "30 2", {}, "03-22 03:30+0100"),
        (
            "America/Sao_Paulo", "2018-02-17T12:00", "30 23", {"fold": "both", "days": 2},
            "02-17 23:30-0200, 02-17 23:30-0300, 02-18 23:30-0300",
        ),
        ("Pacific/Apia", "2011-12-29", "0 9", {"days": 3}, "12-29 09:00-1000, 12-31 09:00+1400, 01-01 09:00+1400"),
        # The 30th is shifted by 24 hours, onto the 31st, where the same instant occurs already.
        ("Pacific/Apia", "2011-12-01", "0 9 30", {"days": 61}, "12-31 09:00+1400, 01-30 09:00+1400"),
        ("Pacific/Apia", "2011-12-01", "0 9 30", {"days": 61, "gap": "skip"}, "01-30 09:00+1400"),
    ],
    ids=[
        "an instant that two local times share occurs once", "the first of both times", "the second of both times",
        "a gap is shifted by its length", "a gap is skipped",
        "a fold: first", "a fold: second", "a fold: both",
        "a gap of half an hour", "a fold of half an hour",
        "winter time that is daylight saving time: gap", "winter time that is daylight saving time: fold",
        "back for Ramadan", "forward after Ramadan",
        "a fold at midnight repeats the end of the day before",
        "no 30 December 2011", "the missing day is shifted", "the missing day is skipped",
    ],
)  # fmt: skip
def test_a_time_occurs_by_the_rule_as_the_zone_shows_it(
    zone: str, date: str, fields: str, rules: dict[str, Any], expected: str
) -> None:
    minute, hour, *day_of_month = fields.split()
    days, rules = rules.get("days", 1), {name: rule for name, rule in rules.items() if name != "days"}
    crontab, start_ms = Crontab(minute, hour, day_of_month="".join(day_of_month) or "*"), ms(date)
    found = Recurrence(crontab, zone, **rules).between(start_ms - 1, start_ms + days * 86_400_000 - 1)
    assert ", ".join(shown(found, zone)) == expected


@pytest.mark.parametrize(
    ("wall", "kind", "first", "second"),
    [
        ("2013-03-10T02:30", "gap", "2013-03-10T07:30", "2013-03-10T06:30"),
        ("2013-11-03T01:30", "fold", "2013-11-03T05:30", "2013-11-03T06:30"),
        ("2013-07-01T01:30", "only", "2013-07-01T05:30", "2013-07-01T05:30"),
    ],
)
def test_a_single_time_is_resolved_with_its_candidates(wall: str, kind: str, first: str, second: str) -> None:
    found = resolve(datetime.fromisoformat(wall), ZoneInfo("America/New_York"))
    assert found.kind == kind
    assert [round(at.timestamp() * 1_000) for at in found[1:]] == [ms(first), ms(second)]


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "America", "+25:00", ""])
def test_a_name_that_is_no_zone_has_none(name: str) -> None:
    assert zone_of(name) is None


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
