"""Calendars: days of a zone, holidays, combinations, and until when an answer holds."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import holidays
import pytest

from celery_wheel.errors import PackageMissing
from celery_wheel.recurring import (
    AllOf,
    AnyOf,
    BusinessDays,
    Calendar,
    Crontab,
    Dates,
    Except,
    Holidays,
    Interval,
    OfSpec,
    Recurrence,
    Weekdays,
)
from celery_wheel.recurring import calendars as calendars_module
from celery_wheel.recurring.local import wall_clock
from tests.unit.recurring.instants import EPOCH, ms, refuse_import, refused

HOUR, DAY = 3_600_000, 86_400_000
BERLIN = wall_clock(ZoneInfo("Europe/Berlin"))


def to_date(at_ms: int) -> date:
    return (EPOCH + timedelta(milliseconds=at_ms)).date()


CHRISTMAS = Dates((date(2026, 12, 24), date(2026, 12, 25), date(2026, 12, 31)))


def test_a_list_of_dates_holds_to_the_end_of_its_last_day_in_a_row() -> None:
    assert CHRISTMAS.at(ms("2026-12-24T12:00"), BERLIN) == (True, ms("2026-12-26T00:00+01:00"))
    inside, until_ms = CHRISTMAS.at(ms("2026-12-26T12:00"), BERLIN)
    assert not inside
    assert ms("2026-12-30") < until_ms <= ms("2026-12-31T00:00+01:00")
    assert CHRISTMAS.at(ms("2027-01-01T12:00"), BERLIN)[0] is False


def test_the_last_date_of_a_calendar_is_followed_by_nothing() -> None:
    assert Recurrence(Crontab("0", "9"), "Europe/Berlin", without=~CHRISTMAS).preview(0, 9) == [
        ms("2026-12-24T08:00"),
        ms("2026-12-25T08:00"),
        ms("2026-12-31T08:00"),
    ]


@pytest.mark.parametrize("subdivision", ["", "BY"])
def test_holidays_are_those_of_the_package(subdivision: str) -> None:
    expected = holidays.country_holidays("DE", subdiv=subdivision or None, years=(2026, 2027))
    noon = Recurrence(Crontab("0", "12"), "Europe/Berlin", without=~Holidays("DE", subdivision))
    found = [to_date(at) for at in noon.between(ms("2026-01-01"), ms("2027-12-31T23:00"))]
    assert found == sorted(expected)


def test_business_days_are_neither_of_the_weekend_nor_holidays() -> None:
    noon = Recurrence(Crontab("0", "12"), "Europe/Berlin", without=~BusinessDays("DE"))
    either = Recurrence(Crontab("0", "12"), "Europe/Berlin", without=Weekdays(("sun", "sat")) | Holidays("DE"))
    assert noon.preview(ms("2026-01-01"), 300) == either.preview(ms("2026-01-01"), 300)


def test_a_spec_leaves_out_a_time_from_each_of_its_occurrences() -> None:
    nightly = OfSpec(Crontab("0", "22"), 8 * HOUR)
    assert nightly.at(ms("2026-01-01T23:30+01:00"), BERLIN) == (True, ms("2026-01-02T06:00+01:00"))
    assert nightly.at(ms("2026-01-02T06:00+01:00"), BERLIN) == (False, ms("2026-01-02T22:00+01:00"))
    exact = OfSpec(Interval(1_000))
    assert exact.at(5_000, BERLIN) == (True, 5_001)
    assert exact.at(5_001, BERLIN) == (False, 6_000)


def test_operators_combine_calendars() -> None:
    weekend, noon = Weekdays(("sat", "sun")), OfSpec(Crontab("0", "12"), HOUR)
    assert weekend | noon == AnyOf((weekend, noon))
    assert weekend & noon == AllOf((weekend, noon))
    assert ~weekend == Except(weekend)
    saturday, monday = ms("2026-11-21T11:30"), ms("2026-11-23T11:30")
    cases = [(weekend | noon, True, True), (weekend & noon, True, False), (~weekend & noon, False, True)]
    for calendar, on_saturday, on_monday in cases:
        assert (calendar.at(saturday, BERLIN)[0], calendar.at(monday, BERLIN)[0]) == (on_saturday, on_monday)


def test_a_combination_holds_as_long_as_a_part_decides_it() -> None:
    weekend, noon = Weekdays(("sat", "sun")), OfSpec(Crontab("0", "12"), HOUR)
    saturday, monday = ms("2026-11-21T11:30"), ms("2026-11-23T11:30")
    assert (weekend | noon).at(saturday, BERLIN) == (True, ms("2026-11-23T00:00+01:00"))
    assert (weekend & noon).at(saturday, BERLIN) == (True, ms("2026-11-21T13:00+01:00"))
    assert (weekend & noon).at(monday, BERLIN) == (False, ms("2026-11-28T00:00+01:00"))


def test_all_days_of_the_week_hold_forever() -> None:
    inside, until_ms = Weekdays(("mon", "tue", "wed", "thu", "fri", "sat", "sun")).at(0, BERLIN)
    assert (inside, until_ms) == (True, 253_370_764_800_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dates(()), "dates must be a list of 1 to 10,000 dates"),
        (lambda: Dates(("2026-12-24",)), "dates[0] must be a date without a time"),  # type: ignore[arg-type]
        (lambda: Weekdays(("monday",)), "days[0] must be one of mon, tue, wed, thu, fri, sat, sun, got 'monday'"),
        (lambda: Weekdays("mon"), "days must be a list of weekdays"),  # type: ignore[arg-type]
        (lambda: Holidays("XX"), "country must be a code that the package holidays knows, like 'DE', got 'XX'"),
        (lambda: Holidays("DE", "XX"), "subdivision must be one of BB"),
        (lambda: Holidays("DE", {"kind": "BY"}), "subdivision must be one of BB"),  # type: ignore[arg-type]
        (lambda: Holidays("VA", "XX"), "subdivision must be '': VA has no parts"),
        (lambda: BusinessDays("DE", weekend=("x",)), "days[0] must be one of"),
        (lambda: OfSpec(Interval(5), 0), "lasts_ms must be at least 1 ms, got 0 ms"),
        (lambda: OfSpec("* * * * *"), "spec must be a Spec"),  # type: ignore[arg-type]
        (lambda: AnyOf((1,)), "parts[0] must be a Calendar"),  # type: ignore[arg-type]
        (lambda: Except(None), "calendar must be a Calendar"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_calendar_is_refused(make: Any, message: str) -> None:
    with refused(message):
        make()


def test_the_last_days_of_time_have_holidays_ahead_of_utc() -> None:
    daily = Recurrence(Crontab("0", "9"), "Pacific/Kiritimati", without=Holidays("US"))
    assert daily.next_after(253_370_764_799_000) is None


def test_only_calendars_combine() -> None:
    with pytest.raises(TypeError):
        Weekdays(("sat",)) | 5  # type: ignore[operator]
    assert isinstance(Weekdays(("sat",)), Calendar)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_import(monkeypatch, "holidays")
    calendars_module._countries.cache_clear()
    with pytest.raises(PackageMissing, match=r"pip install 'celery-wheel\[holidays\]'"):
        Holidays("FR")
