"""Recurrences: limits, calendars and until when they hold, reasons, refusals, and properties that hold for all."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise, takewhile
from operator import and_, invert, or_
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import holidays
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring import (
    AllOf,
    AnyOf,
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
from celery_wheel.recurring import calendars as calendars_module
from celery_wheel.recurring.local import FOLDS, GAPS, wall_clock
from tests.unit.recurring.instants import EPOCH, ms, refuse_import, refused, shown
from tests.unit.recurring.random_specs import random_crontab

HOUR, DAY = 3_600_000, 86_400_000
EACH_SECOND = Crontab(second="*")
NINE = Crontab("0", "9")
WEEKEND = Weekdays(("sat", "sun"))


def test_limits_are_inclusive() -> None:
    recurrence = Recurrence(Interval(10, 0), start_ms=20, until_ms=40)
    assert recurrence.preview(-1, 10) == [20, 30, 40]
    assert recurrence.next_after(40) is None


def test_the_number_of_times_counts_those_that_the_caller_has_made() -> None:
    recurrence = Recurrence(Interval(10, 0), times=3)
    assert recurrence.preview(100, 10) == [110, 120, 130]
    assert recurrence.preview(100, 10, made=2) == [110]
    assert recurrence.next_after(100, made=3) is None


def test_a_backfill_begins_after_its_first_instant_and_includes_its_last() -> None:
    assert list(Recurrence(Interval(10)).between(20, 40)) == [30, 40]


def test_each_second_but_not_on_weekends_asks_once_a_weekend() -> None:
    asked = []

    class Watched(Calendar):
        def at(self, at_ms, clock):  # type: ignore[no-untyped-def]
            asked.append(at_ms)
            return Weekdays(("sat", "sun")).at(at_ms, clock)

    recurrence = Recurrence(EACH_SECOND, "Europe/Paris", without=Watched())
    asked.clear()
    friday = ms("2026-11-20T22:59:59")
    assert recurrence.next_after(friday) == ms("2026-11-22T23:00:00")
    assert len(asked) <= 3


def test_a_time_that_does_not_run_has_its_reason() -> None:
    zone = "America/New_York"
    gap, excluded = ms("2013-03-10T07:30"), ms("2013-03-09T07:30")
    recurrence = Recurrence(Crontab("30", "2"), zone, gap="skip", without=Weekdays(("sat",)))
    assert recurrence.why_not(gap) == "gap"
    assert recurrence.why_not(excluded) == "excluded"
    assert recurrence.why_not(ms("2013-03-11T06:30")) is None
    assert recurrence.why_not(ms("2013-03-11T06:31")) is None
    shifting = Recurrence(Crontab("30", "2"), zone, without=Weekdays(("sat",)))
    assert shifting.why_not(gap) is None
    assert shifting.next_after(gap - 1) == gap


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("without must leave one of 10,000", {"without": WEEKEND | ~WEEKEND}),
        ("without must be a calendar that leaves", {"spec": Instants((5,)), "without": OfSpec(Interval(1))}),
        ("without must leave one of 10,000", {"spec": Interval(1_000), "without": OfSpec(Interval(1_000))}),
        ("until_ms must be at or after the start", {"start_ms": 10, "until_ms": 9}),
        ("spec must be a rule with an occurrence", {"start_ms": 1, "until_ms": 2}),
        ("spec must be a rule with an occurrence", {"spec": Instants((5,)), "start_ms": 6}),
        ("zone must be a time zone", {"zone": "Mars/Base"}),
        ("zone must be a text", {"zone": None}),
        ("gap must be one of shift, skip", {"gap": "later"}),
        ("fold must be one of first, second, both", {"fold": None}),
        ("times must be a whole number of at least 1", {"times": 0}),
        ("start_ms must be a whole number", {"start_ms": 1.5}),
        ("until_ms must be a whole number", {"until_ms": True}),
        ("spec must be a Spec", {"spec": "0 9 * * *"}),
        ("without must be a Calendar", {"without": NINE}),
    ],
)  # fmt: skip
def test_an_invalid_recurrence_is_refused(message: str, arguments: dict[str, object]) -> None:
    with pytest.raises(RecurrenceError, match=f"^{message}"):
        Recurrence(**{"spec": NINE, **arguments})  # type: ignore[arg-type]


def test_a_recurrence_is_a_value() -> None:
    one, other = (Recurrence(Crontab("0", "9"), "Europe/Paris", without=Holidays("FR")) for _ in range(2))
    assert one == other
    assert one != Recurrence(Crontab("0", "9"), "Europe/Rome", without=Holidays("FR"))


def test_the_end_of_time_ends_a_recurrence() -> None:
    assert Recurrence(NINE, "Pacific/Apia").next_after(253_370_764_800_000) is None
    assert Recurrence(Interval(DAY)).preview(253_370_764_800_000 - DAY, 3) == []


def test_a_zone_may_be_an_offset() -> None:
    assert Recurrence(NINE, "+02:00").next_after(0) == 7 * HOUR


# -- properties ----------------------------------------------------------------------------------------


CALENDARS = st.recursive(
    st.sampled_from([
        Weekdays(("sat", "sun")),
        Weekdays(("mon", "wed")),
        Holidays("DE", "BY"),
        OfSpec(Crontab("0", "22"), 8 * HOUR),
        OfSpec(Interval(7 * HOUR), HOUR),
    ]),
    lambda parts: st.one_of(
        st.builds(or_, parts, parts), st.builds(and_, parts, parts), st.builds(invert, parts)
    ),
    max_leaves=3,
)  # fmt: skip
SPECS = st.one_of(
    st.integers(0, 10_000).map(lambda seed: random_crontab(Random(seed)).fields),
    st.tuples(st.integers(1_000, 10 * DAY), st.integers(0, 10**12)).map(lambda pair: Interval(*pair)),
    st.lists(st.integers(ms("2010-01-01"), ms("2012-01-01")), min_size=1).map(lambda found: Instants(tuple(found))),
    st.sampled_from([
        Solar("sunset", 69.6, 18.9),
        RRule("DTSTART:20000101T013000\nRRULE:FREQ=MINUTELY;INTERVAL=45"),
        RRule("DTSTART:20000101T013000\nRRULE:FREQ=WEEKLY;BYDAY=SU,MO\nEXDATE:20111030T013000"),
    ]),
)  # fmt: skip
INSTANTS = st.one_of(
    st.integers(ms("2010-01-01"), ms("2012-01-01")),
    st.integers(-2 * DAY, 2 * DAY).map(lambda by: ms("2011-10-30T01:00") + by),
)


@st.composite
def recurrences(draw: st.DrawFn) -> Recurrence | None:
    found = draw(SPECS)
    try:
        spec: Spec = found if isinstance(found, Spec) else Crontab(*found)
        return Recurrence(
            spec,
            draw(st.sampled_from(["Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Australia/Lord_Howe", "UTC"])),
            draw(st.sampled_from(GAPS)),
            draw(st.sampled_from(FOLDS)),
            without=draw(st.one_of(st.none(), CALENDARS)),
        )
    except RecurrenceError:  # such a combination never fires
        return None


@given(recurrences(), INSTANTS, st.data())
def test_occurrences_increase_and_do_not_depend_on_where_the_question_starts(
    recurrence: Recurrence | None, at_ms: int, data: st.DataObject
) -> None:
    if recurrence is None:
        return
    found = recurrence.preview(at_ms, 8)
    assert all(earlier < later for earlier, later in pairwise([at_ms, *found]))
    for earlier, later in pairwise([at_ms, *found]):
        middle = data.draw(st.integers(earlier, later - 1))
        assert recurrence.next_after(middle) == later
    assert all(recurrence.why_not(at) is None for at in found)
    if found:
        assert list(recurrence.between(at_ms, found[-1])) == found
        upto = data.draw(st.integers(at_ms, found[-1]))
        assert list(recurrence.between(at_ms, upto)) == list(takewhile(lambda at: at <= upto, found))


@given(st.sampled_from(["Europe/Berlin", "Pacific/Apia", "America/St_Johns"]), CALENDARS, INSTANTS)
def test_a_calendar_leaves_out_exactly_its_own_instants(zone: str, calendar: Calendar, at_ms: int) -> None:
    bare = Recurrence(Crontab("*/20"), zone)
    try:
        recurrence = Recurrence(Crontab("*/20"), zone, without=calendar)
    except RecurrenceError:
        return
    all_ = bare.preview(at_ms, 200)
    assert list(recurrence.between(at_ms, all_[-1])) == [at for at in all_ if not calendar.at(at, recurrence._clock)[0]]
    assert {recurrence.why_not(at) for at in all_ if calendar.at(at, recurrence._clock)[0]} <= {"excluded"}


def test_dates_are_days_of_the_zone() -> None:
    recurrence = Recurrence(Crontab("0"), "Asia/Tokyo", without=~Dates((date(2026, 12, 24),)))
    found = shown(recurrence.preview(0, 24), "Asia/Tokyo")
    assert (found[0], found[-1]) == ("12-24 00:00+0900", "12-24 23:00+0900")
    assert recurrence.preview(0, 25)[24:] == []


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
