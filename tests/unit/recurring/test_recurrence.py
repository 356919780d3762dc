"""Recurrences: limits, calendars and until when they hold, reasons, refusals, and properties that hold for all."""

import sys
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from itertools import pairwise, takewhile
from operator import and_, invert, or_
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import holidays
import pytest
from dateutil.tz import tzlocal
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel import recurring as r
from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring import calendars as calendars_module
from celery_wheel.recurring.local import FOLDS, GAPS, wall_clock
from tests.unit.recurring.instants import EPOCH, ms, refused, shown
from tests.unit.recurring.random_specs import random_crontab

HOUR, DAY = 3_600_000, 86_400_000
EACH_SECOND = r.Crontab(second="*")
NINE = r.Crontab("0", "9")
WEEKEND = r.Weekdays(("sat", "sun"))


def test_limits_are_inclusive() -> None:
    recurrence = r.Recurrence(r.Interval(10, 0), start_ms=20, until_ms=40)
    assert recurrence.preview(-1, 10) == [20, 30, 40]
    assert recurrence.next_after(40) is None


def test_the_number_of_times_counts_those_that_the_caller_has_made() -> None:
    recurrence = r.Recurrence(r.Interval(10, 0), times=3)
    assert recurrence.preview(100, 10) == [110, 120, 130]
    assert recurrence.preview(100, 10, made=2) == [110]
    assert recurrence.next_after(100, made=3) is None


def test_a_backfill_begins_after_its_first_instant_and_includes_its_last() -> None:
    assert list(r.Recurrence(r.Interval(10)).between(20, 40)) == [30, 40]


def test_each_second_but_not_on_weekends_asks_once_a_weekend() -> None:
    asked = []

    class Watched(r.Calendar):
        def at(self, at_ms, clock):  # type: ignore[no-untyped-def]
            asked.append(at_ms)
            return r.Weekdays(("sat", "sun")).at(at_ms, clock)

    recurrence = r.Recurrence(EACH_SECOND, "Europe/Paris", without=Watched())
    asked.clear()
    assert recurrence.next_after(ms("2026-11-20T22:59:59")) == ms("2026-11-22T23:00:00")
    assert len(asked) <= 3


def test_a_time_that_does_not_run_has_its_reason() -> None:
    zone = "America/New_York"
    gap, excluded = ms("2013-03-10T07:30"), ms("2013-03-09T07:30")
    recurrence = r.Recurrence(r.Crontab("30", "2"), zone, gap="skip", without=r.Weekdays(("sat",)))
    assert recurrence.why_not(gap) == "gap"
    assert recurrence.why_not(excluded) == "excluded"
    assert recurrence.why_not(ms("2013-03-11T06:30")) is None
    assert recurrence.why_not(ms("2013-03-11T06:31")) is None
    shifting = r.Recurrence(r.Crontab("30", "2"), zone, without=r.Weekdays(("sat",)))
    assert shifting.why_not(gap) is None
    assert shifting.next_after(gap - 1) == gap


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("without must leave one of 10,000", {"without": WEEKEND | ~WEEKEND}),
        ("without must be a calendar that leaves", {"spec": r.Instants((5,)), "without": r.OfSpec(r.Interval(1))}),
        ("without must leave one of 10,000", {"spec": r.Interval(1_000), "without": r.OfSpec(r.Interval(1_000))}),
        ("until_ms must be at or after the start", {"start_ms": 10, "until_ms": 9}),
        ("spec must be a rule with an occurrence", {"start_ms": 1, "until_ms": 2}),
        ("spec must be a rule with an occurrence", {"spec": r.Instants((5,)), "start_ms": 6}),
        ("zone must be a time zone", {"zone": "Mars/Base"}),
        ("zone must be a text", {"zone": None}),
        ("zone must be a time zone", {"zone": timezone(timedelta(seconds=90))}),
        ("zone must be a time zone", {"zone": tzlocal()}),
        ("gap must be one of shift, skip", {"gap": "later"}),
        ("fold must be one of first, second, both", {"fold": None}),
        ("times must be a whole number of at least 1", {"times": 0}),
        ("start_ms must be a whole number", {"start_ms": 1.5}),
        ("until_ms must be a whole number", {"until_ms": True}),
        ("spec must be a Spec", {"spec": 60}),
        ("a crontab must be a text of five fields", {"spec": "0 9 * *"}),
        ("a crontab must be clear about days: cron takes either day, Crontab", {"spec": "0 9 1 * mon"}),
        ("day_of_week must be a crontab field", {"spec": "0 9 * * 8"}),
        ("without must be a Calendar", {"without": NINE}),
    ],
)  # fmt: skip
def test_an_invalid_recurrence_is_refused(message: str, arguments: dict[str, object]) -> None:
    with pytest.raises(RecurrenceError, match=f"^{message}"):
        r.Recurrence(**{"spec": NINE, **arguments})  # type: ignore[arg-type]


def test_days_have_one_form() -> None:
    assert r.Weekdays(("Sunday", "SAT")) == WEEKEND
    assert r.Dates(("2026-12-24",)) == r.Dates((date(2026, 12, 24),))


def test_a_recurrence_is_a_value() -> None:
    one, other = (r.Recurrence(r.Crontab("0", "9"), "Europe/Paris", without=r.Holidays("FR")) for _ in range(2))
    assert one == other
    assert one != r.Recurrence(r.Crontab("0", "9"), "Europe/Rome", without=r.Holidays("FR"))


def test_the_end_of_time_ends_a_recurrence() -> None:
    assert r.Recurrence(NINE, "Pacific/Apia").next_after(253_370_764_800_000) is None
    assert r.Recurrence(r.Interval(DAY)).preview(253_370_764_800_000 - DAY, 3) == []


def test_a_zone_may_be_an_offset() -> None:
    assert r.Recurrence(NINE, "+02:00").next_after(0) == 7 * HOUR


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (ZoneInfo("Europe/Paris"), "Europe/Paris"),
        (UTC, "UTC"),
        (timezone(timedelta(hours=2)), "+02:00"),
        (timezone(-timedelta(hours=3, minutes=30)), "-03:30"),
    ],
)
def test_a_zone_of_python_is_kept_as_a_text(zone: tzinfo, text: str) -> None:
    recurrence = r.Recurrence(NINE, zone)
    assert (recurrence.zone, recurrence) == (text, r.Recurrence(NINE, text))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("*/5 * * * *", r.Crontab("*/5")),
        (" 30  2 1,15 jan * ", r.Crontab("30", "2", "*", "1,15", "jan")),
        ("0 9 * * 7", r.Crontab("0", "9", "sun")),
        ("0 9 * * 5-7", r.Crontab("0", "9", "fri,sat,sun")),
        ("0 9 * * 0-7/2", r.Crontab("0", "9", "sun,tue,thu,sat")),
        ("@weekly", r.Crontab("0", "0", "sun")),
    ],
)
def test_five_fields_are_a_crontab_in_the_order_of_cron(text: str, spec: r.Spec) -> None:
    assert r.Recurrence(text).preview(0, 300) == r.Recurrence(spec).preview(0, 300)


CALENDARS = st.recursive(
    st.sampled_from([
        r.Weekdays(("sat", "sun")),
        r.Weekdays(("mon", "wed")),
        r.Holidays("DE", "BY"),
        r.OfSpec(r.Crontab("0", "22"), 8 * HOUR),
        r.OfSpec(r.Interval(7 * HOUR), HOUR),
    ]),
    lambda parts: st.one_of(
        st.builds(or_, parts, parts), st.builds(and_, parts, parts), st.builds(invert, parts)
    ),
    max_leaves=3,
)  # fmt: skip
SPECS = st.one_of(
    st.integers(0, 10_000).map(lambda seed: random_crontab(Random(seed)).fields),
    st.tuples(st.integers(1_000, 10 * DAY), st.integers(0, 10**12)).map(lambda pair: r.Interval(*pair)),
    st.lists(st.integers(ms("2010-01-01"), ms("2012-01-01")), min_size=1).map(lambda found: r.Instants(tuple(found))),
    st.sampled_from([
        r.Solar("sunset", 69.6, 18.9),
        r.RRule("DTSTART:20000101T013000\nRRULE:FREQ=MINUTELY;INTERVAL=45"),
        r.RRule("DTSTART:20000101T013000\nRRULE:FREQ=WEEKLY;BYDAY=SU,MO\nEXDATE:20111030T013000"),
    ]),
)  # fmt: skip
INSTANTS = st.one_of(
    st.integers(ms("2010-01-01"), ms("2012-01-01")),
    st.integers(-2 * DAY, 2 * DAY).map(lambda by: ms("2011-10-30T01:00") + by),
)


@st.composite
def recurrences(draw: st.DrawFn) -> r.Recurrence | None:
    found = draw(SPECS)
    try:
        spec: r.Spec = found if isinstance(found, r.Spec) else r.Crontab(*found)
        return r.Recurrence(
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
    recurrence: r.Recurrence | None, at_ms: int, data: st.DataObject
) -> None:
    if recurrence is None:
        return
    found = recurrence.preview(at_ms, 8)
    assert all(earlier < later for earlier, later in pairwise([at_ms, *found]))
    for earlier, later in pairwise([at_ms, *found]):
        assert recurrence.next_after(data.draw(st.integers(earlier, later - 1))) == later
    assert all(recurrence.why_not(at) is None for at in found)
    if found:
        assert list(recurrence.between(at_ms, found[-1])) == found
        upto = data.draw(st.integers(at_ms, found[-1]))
        assert list(recurrence.between(at_ms, upto)) == list(takewhile(lambda at: at <= upto, found))


@given(st.sampled_from(["Europe/Berlin", "Pacific/Apia", "America/St_Johns"]), CALENDARS, INSTANTS)
def test_a_calendar_leaves_out_exactly_its_own_instants(zone: str, calendar: r.Calendar, at_ms: int) -> None:
    bare = r.Recurrence(r.Crontab("*/20"), zone)
    try:
        recurrence = r.Recurrence(r.Crontab("*/20"), zone, without=calendar)
    except RecurrenceError:
        return
    all_ = bare.preview(at_ms, 200)
    assert list(recurrence.between(at_ms, all_[-1])) == [at for at in all_ if not calendar.at(at, recurrence._clock)[0]]
    assert {recurrence.why_not(at) for at in all_ if calendar.at(at, recurrence._clock)[0]} <= {"excluded"}


def test_dates_are_days_of_the_zone() -> None:
    recurrence = r.Recurrence(r.Crontab("0"), "Asia/Tokyo", without=~r.Dates((date(2026, 12, 24),)))
    found = shown(recurrence.preview(0, 24), "Asia/Tokyo")
    assert (found[0], found[-1]) == ("12-24 00:00+0900", "12-24 23:00+0900")
    assert recurrence.preview(0, 25)[24:] == []


BERLIN = wall_clock(ZoneInfo("Europe/Berlin"))


def to_date(at_ms: int) -> date:
    return (EPOCH + timedelta(milliseconds=at_ms)).date()


CHRISTMAS = r.Dates((date(2026, 12, 24), date(2026, 12, 25), date(2026, 12, 31)))


def test_a_list_of_dates_holds_to_the_end_of_its_last_day_in_a_row() -> None:
    assert CHRISTMAS.at(ms("2026-12-24T12:00"), BERLIN) == (True, ms("2026-12-26T00:00+01:00"))
    inside, until_ms = CHRISTMAS.at(ms("2026-12-26T12:00"), BERLIN)
    assert not inside
    assert ms("2026-12-30") < until_ms <= ms("2026-12-31T00:00+01:00")
    assert CHRISTMAS.at(ms("2027-01-01T12:00"), BERLIN)[0] is False


def test_the_last_date_of_a_calendar_is_followed_by_nothing() -> None:
    assert r.Recurrence(r.Crontab("0", "9"), "Europe/Berlin", without=~CHRISTMAS).preview(0, 9) == [
        ms("2026-12-24T08:00"),
        ms("2026-12-25T08:00"),
        ms("2026-12-31T08:00"),
    ]


@pytest.mark.parametrize("subdivision", ["", "BY"])
def test_holidays_are_those_of_the_package(subdivision: str) -> None:
    expected = holidays.country_holidays("DE", subdiv=subdivision or None, years=(2026, 2027))
    noon = r.Recurrence(r.Crontab("0", "12"), "Europe/Berlin", without=~r.Holidays("DE", subdivision))
    assert [to_date(at) for at in noon.between(ms("2026-01-01"), ms("2027-12-31T23:00"))] == sorted(expected)


def test_business_days_are_neither_of_the_weekend_nor_holidays() -> None:
    noon = r.Recurrence(r.Crontab("0", "12"), "Europe/Berlin", without=~r.BusinessDays("DE"))
    either = r.Recurrence(r.Crontab("0", "12"), "Europe/Berlin", without=r.Weekdays(("sun", "sat")) | r.Holidays("DE"))
    assert noon.preview(ms("2026-01-01"), 300) == either.preview(ms("2026-01-01"), 300)


def test_a_spec_leaves_out_a_time_from_each_of_its_occurrences() -> None:
    nightly = r.OfSpec(r.Crontab("0", "22"), 8 * HOUR)
    assert nightly.at(ms("2026-01-01T23:30+01:00"), BERLIN) == (True, ms("2026-01-02T06:00+01:00"))
    assert nightly.at(ms("2026-01-02T06:00+01:00"), BERLIN) == (False, ms("2026-01-02T22:00+01:00"))
    exact = r.OfSpec(r.Interval(1_000))
    assert exact.at(5_000, BERLIN) == (True, 5_001)
    assert exact.at(5_001, BERLIN) == (False, 6_000)


def test_operators_combine_calendars_which_hold_as_long_as_a_part_decides_it() -> None:
    weekend, noon = r.Weekdays(("sat", "sun")), r.OfSpec(r.Crontab("0", "12"), HOUR)
    assert weekend | noon == r.AnyOf((weekend, noon))
    assert weekend & noon == r.AllOf((weekend, noon))
    assert ~weekend == r.Except(weekend)
    saturday, monday = ms("2026-11-21T11:30"), ms("2026-11-23T11:30")
    cases = [(weekend | noon, True, True), (weekend & noon, True, False), (~weekend & noon, False, True)]
    for calendar, on_saturday, on_monday in cases:
        assert (calendar.at(saturday, BERLIN)[0], calendar.at(monday, BERLIN)[0]) == (on_saturday, on_monday)
    assert (weekend | noon).at(saturday, BERLIN) == (True, ms("2026-11-23T00:00+01:00"))
    assert (weekend & noon).at(saturday, BERLIN) == (True, ms("2026-11-21T13:00+01:00"))
    assert (weekend & noon).at(monday, BERLIN) == (False, ms("2026-11-28T00:00+01:00"))


def test_all_days_of_the_week_hold_forever() -> None:
    inside, until_ms = r.Weekdays(("mon", "tue", "wed", "thu", "fri", "sat", "sun")).at(0, BERLIN)
    assert (inside, until_ms) == (True, 253_370_764_800_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: r.Dates(()), "dates must be a list of 1 to 10,000 dates"),
        (lambda: r.Dates(("24.12.2026",)), "dates[0] must be a date like '2026-12-24', got '24.12.2026'"),
        (
            lambda: r.Dates((datetime(2026, 12, 24, tzinfo=UTC),)),
            "dates[0] must be a date without a time, as of value.",
        ),
        (lambda: r.Weekdays(("monkey",)), "days[0] must be one of mon, tue, wed, thu, fri, sat, sun, got 'monkey'"),
        (lambda: r.Weekdays((5,)), "days[0] must be one of mon, tue, wed, thu, fri, sat, sun, got 5"),  # type: ignore[arg-type]
        (lambda: r.Weekdays("mon"), "days must be a list of weekdays"),  # type: ignore[arg-type]
        (lambda: r.Holidays("XX"), "country must be a code that the package holidays knows, like 'DE', got 'XX'"),
        (lambda: r.Holidays("DE", "XX"), "subdivision must be one of BB"),
        (lambda: r.Holidays("DE", {"kind": "BY"}), "subdivision must be one of BB"),  # type: ignore[arg-type]
        (lambda: r.Holidays("VA", "XX"), "subdivision must be '': VA has no parts"),
        (lambda: r.BusinessDays("DE", weekend=("x",)), "days[0] must be one of"),
        (lambda: r.OfSpec(r.Interval(5), 0), "lasts_ms must be at least 1 ms, got 0 ms"),
        (lambda: r.OfSpec("* * * * *"), "spec must be a Spec"),  # type: ignore[arg-type]
        (lambda: r.AnyOf((1,)), "parts[0] must be a Calendar"),  # type: ignore[arg-type]
        (lambda: r.Except(None), "calendar must be a Calendar"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_calendar_is_refused(make: Any, message: str) -> None:
    with refused(message):
        make()


def test_the_last_days_of_time_have_holidays_ahead_of_utc() -> None:
    daily = r.Recurrence(r.Crontab("0", "9"), "Pacific/Kiritimati", without=r.Holidays("US"))
    assert daily.next_after(253_370_764_799_000) is None


def test_only_calendars_combine() -> None:
    with pytest.raises(TypeError):
        r.Weekdays(("sat",)) | 5  # type: ignore[operator]
    assert isinstance(r.Weekdays(("sat",)), r.Calendar)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    calendars_module._countries.cache_clear()
    with pytest.raises(PackageMissing, match=r"pip install 'celery-wheel\[holidays\]'"):
        r.Holidays("FR")
