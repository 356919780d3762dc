"""Recurrences in words, and their next occurrences as people see them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from celery_wheel.recurring import (
    AllOf,
    BusinessDays,
    Calendar,
    Crontab,
    Dates,
    Except,
    Holidays,
    Instants,
    Interval,
    OfSpec,
    Recurrence,
    RRule,
    Solar,
    Spec,
    Weekdays,
)
from celery_wheel.recurring.words import in_words, upcoming
from tests.unit.recurring.instants import ms

HOUR = 3_600_000


def rule(parts: str, day: str = "05T0930") -> RRule:
    return RRule(f"DTSTART:202601{day}00\nRRULE:FREQ={parts}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Interval(90_000), "every 1 min 30 s"),
        (Crontab(), "every minute"),
        (Crontab("0", "9"), "every day at 09:00"),
        (Crontab("0,30", "9,17"), "every day at 09:00, 09:30, 17:00, 17:30"),
        (Crontab("0", "9", "mon-fri"), "at 09:00 on Monday to Friday"),
        (Crontab("0", "9", "0,6"), "at 09:00 on Saturday, Sunday"),
        (Crontab("5", "9", "*", "1,15", "1-3"), "at 09:05 on day 1, 15 of the month in January to March"),
        (Crontab("0", "0", "*", "1-5"), "at 00:00 on day 1-5 of the month"),
        (Crontab("*/15"), "every 15 minutes"),
        (Crontab("*/15", "8-17"), "every 15 minutes from 08:00 to 17:45"),
        (Crontab("*/7"), "at hour *, minute */7, second 0"),
        (Crontab("*/15", "8,10"), "at hour 8,10, minute */15, second 0"),
        (Crontab("0"), "every hour"),
        (Crontab("5"), "every hour, minute 5"),
        (Crontab("5", "*/2"), "every 2 hours, minute 5"),
        (Crontab("5", "8-17"), "every hour from 08:05 to 17:05"),
        (Crontab(second="*"), "every second"),
        (Crontab(second="*/10"), "every 10 seconds"),
        (Crontab("0", "9", second="30"), "every day at 09:00:30"),
        (Crontab("*", "9", second="30"), "at hour 9, minute *, second 30"),
        (rule("DAILY"), "every day at 09:30"),
        (
            rule("WEEKLY;INTERVAL=2;BYDAY=MO,WE;UNTIL=20261231T000000"),
            "every 2 weeks on Monday, Wednesday at 09:30 until 2026-12-31 00:00",
        ),
        (rule("YEARLY;COUNT=3", "31T0900"), "every year on day 31 of the month in January at 09:00 at most 3 times"),
        (rule("HOURLY;INTERVAL=6"), "every 6 hours from 2026-01-05 09:30"),
        (rule("MONTHLY;BYDAY=-1FR"), "every month on the last Friday at 09:30"),
        (rule("MONTHLY;BYMONTHDAY=-1"), "every month on the last day of the month at 09:30"),
        (rule("YEARLY;BYDAY=-1FR"), "DTSTART:20260105T093000; RRULE:FREQ=YEARLY;BYDAY=-1FR"),
        (rule("MONTHLY;BYMONTHDAY=1,-1"), "DTSTART:20260105T093000; RRULE:FREQ=MONTHLY;BYMONTHDAY=1,-1"),
        (
            RRule("DTSTART:20260105T093000\nRDATE:20260106T093000"),
            "DTSTART:20260105T093000; RDATE:20260106T093000",
        ),
        (Solar("dusk_civil", 48.86, 2.35), "civil dusk at 48.86, 2.35"),
        (Instants((ms("2026-11-22T09:00+01:00"),)), "once, at 2026-11-22 09:00"),
        (
            Instants((ms("2026-11-22T09:00+01:00"), ms("2026-12-24T18:00:30+01:00"))),
            "2 times from 2026-11-22 09:00 to 2026-12-24 18:00:30",
        ),
    ],
)
def test_a_spec_in_words(spec: Spec, words: str) -> None:
    assert in_words(Recurrence(spec, "Europe/Paris")) == words


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (Weekdays(("sat", "sun")), "except Saturday, Sunday"),
        (Holidays("FR") | Weekdays(("sun",)), "except holidays of FR, Sunday"),
        (Holidays("DE", "BY"), "except holidays of DE-BY"),
        (Except(BusinessDays("FR")), "only on business days of FR"),
        (Dates((date(2026, 12, 24),)), "except 2026-12-24"),
        (Dates(tuple(date(2026, 12, day) for day in range(1, 9))), "except 8 dates"),
        (OfSpec(Crontab("0", "22"), 8 * HOUR), "except 8 h every day at 22:00"),
        (AllOf((Weekdays(("mon",)), Except(Holidays("FR")))), "except Monday and all but holidays of FR"),
    ],
)
def test_a_calendar_in_words(without: Calendar, words: str) -> None:
    assert in_words(Recurrence(Interval(HOUR), without=without)) == f"every 1 h, {words}"


def test_limits_are_in_the_zone() -> None:
    limited = Recurrence(
        Interval(HOUR),
        "Asia/Tokyo",
        start_ms=ms("2026-01-01T00:00+09:00"),
        until_ms=ms("2026-02-01T00:00:01+09:00"),
        times=1_000,
    )
    assert in_words(limited) == "every 1 h, from 2026-01-01 00:00, until 2026-02-01 00:00:01, at most 1,000 times"


def test_every_text_is_translated_as_a_whole() -> None:
    weekly = Recurrence(Crontab("0", "9", "mon-fri"), without=Weekdays(("wed",)))
    assert in_words(weekly, lambda text: f"<{text}>") == "<at 09:00> <on <<Monday> to <Friday>>>, <except <Wednesday>>"


@pytest.mark.parametrize(
    ("zone", "day", "shift_h"),
    [
        ("America/New_York", "2013-11-03", -1),
        ("America/New_York", "2013-03-10", 1),
        ("Australia/Lord_Howe", "2026-10-04", 0.5),
        ("Pacific/Apia", "2011-12-31", 24),
        ("UTC", "2013-03-10", 0),
    ],
)
def test_days_of_a_clock_change_are_marked_and_no_others(zone: str, day: str, shift_h: float) -> None:
    at_noon = Recurrence(Crontab("0", "12"), zone)
    around = upcoming(at_noon, ms(f"{day}T12:00+00:00") - 80 * HOUR, 6)
    shifts = {datetime.fromtimestamp(at.at_ms / 1_000, ZoneInfo(zone)): at.shift_ms for at in around}
    expected = {day: shift_h * HOUR} if shift_h else {}
    assert {f"{local:%Y-%m-%d}": shift for local, shift in shifts.items() if shift} == expected


def test_left_out_instants_are_between_the_occurrences() -> None:
    at_nine = Recurrence(Crontab("0", "9"), "Europe/Paris", without=Weekdays(("sat", "sun")))
    found = upcoming(at_nine, ms("2026-11-26T12:00+00:00"), 2)
    assert [(datetime.fromtimestamp(at.at_ms / 1_000, UTC).day, at.left_out) for at in found] == [
        (27, None),
        (28, "excluded"),
        (29, "excluded"),
        (30, None),
    ]


def test_an_instant_in_a_gap_is_left_out_where_gaps_are_skipped() -> None:
    skipping = Recurrence(Crontab("30", "2"), "America/New_York", gap="skip")
    found = upcoming(skipping, ms("2026-03-07T12:00+00:00"), 1)
    assert [(at.left_out, at.shift_ms) for at in found] == [("gap", HOUR), (None, 0)]


def test_a_dense_spec_is_searched_for_a_moment_only() -> None:
    each_second = Recurrence(Crontab(second="*"), "Europe/Paris", without=~BusinessDays("FR"))
    found = upcoming(each_second, ms("2026-11-27T22:59:58+00:00"), 2)
    assert [at.left_out for at in found if at.left_out] == ["excluded"] * 40
    assert len(found) == 42
