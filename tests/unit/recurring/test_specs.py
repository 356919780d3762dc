"""Specs: intervals, instants, crontabs and the sun as Celery means them; Celery's schedules become recurrences.

Gaps and folds by name: each zone's own way to move its clocks, and each rule for it.
"""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Solar, Spec
from celery_wheel.recurring.celery_schedules import from_celery
from celery_wheel.recurring.local import WallClock, resolve, zone_of
from celery_wheel.recurring.solar import EVENTS
from tests.unit.recurring.instants import EPOCH, following, ms, refused, shown
from tests.unit.recurring.proof import ZONES


@given(st.integers(1, 10**10), st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**13))
def test_the_next_point_of_the_grid_is_strictly_after(every_ms: int, anchor_ms: int, at_ms: int) -> None:
    found = Interval(every_ms, anchor_ms).next_after(at_ms)
    assert at_ms < found <= at_ms + every_ms
    assert (found - anchor_ms) % every_ms == 0


def test_a_day_of_an_interval_has_24_hours_when_the_clocks_change() -> None:
    recurrence = Recurrence(Interval(86_400_000, ms("2026-03-28T09:00+01:00")), "Europe/Berlin")
    found = recurrence.preview(ms("2026-03-28"), 2)
    assert shown(found, "Europe/Berlin") == ["03-28 09:00+0100", "03-29 10:00+0200"]


def test_instants_are_sorted_and_without_repetition() -> None:
    spec = Instants((30, 10, 20, 10))
    assert spec == Instants((10, 20, 30))
    assert [spec.next_after(at) for at in (0, 10, 29, 30)] == [10, 20, 30, None]


def test_an_instant_may_be_a_datetime_of_any_zone() -> None:
    eve = datetime(2026, 12, 24, 18, tzinfo=ZoneInfo("Europe/Paris"))
    assert Instants([eve, eve.astimezone(UTC), 5]) == Instants((5, ms("2026-12-24T17:00")))
    with refused("at_ms[1] must be a datetime with a time zone, as of value.replace(tzinfo=ZoneInfo('Europe/Paris'))"):
        Instants([eve, eve.replace(tzinfo=None)])


_NAMES = {
    "day_of_week": ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "month_of_year": (
        *("January", "February", "March", "April", "May", "June"),
        *("July", "August", "September", "October", "November", "December"),
    ),
}


@st.composite
def ways_to_write_a_field(draw: st.DrawFn) -> tuple[str, str, Any]:
    """Return a field of a crontab, its numbers as a text, and another way to write them."""
    name, least, most = draw(st.sampled_from([("minute", 0, 59), ("day_of_week", 0, 6), ("month_of_year", 1, 12)]))
    numbers = draw(st.lists(st.integers(least, most), min_size=1, max_size=4))
    text = ",".join(map(str, numbers))
    if name in _NAMES and draw(st.booleans()):
        cased = draw(st.sampled_from([str.lower, str.upper, str.title]))
        written = [cased(_NAMES[name][number - least])[: draw(st.sampled_from((3, 20)))] for number in numbers]
        return name, text, ",".join(written)
    return name, text, numbers[0] if len(numbers) == 1 else draw(st.sampled_from([list, tuple, set]))(numbers)


@given(ways_to_write_a_field(), st.integers(0, 10**13))
def test_each_way_to_write_a_crontab_has_the_same_instants(written: tuple[str, str, Any], at_ms: int) -> None:
    name, text, value = written
    found = Crontab(**{name: value})
    assert found.next_after(at_ms) == Crontab(**{name: text}).next_after(at_ms)
    assert Crontab(**{name: getattr(found, name)}) == found, "a field has one form"
    assert getattr(found, name) == getattr(found, name).lower()


def test_two_ways_to_write_a_crontab_are_equal() -> None:
    assert Crontab(0, 9, "Monday-FRIDAY", [15, 1]) == Crontab("0", "9", "mon-fri", "1,15")


def test_a_day_needs_both_its_number_and_its_weekday() -> None:
    spec = Crontab("0", "0", day_of_week="fri", day_of_month="13")
    assert following(spec, "2026-01-01", 3) == [ms(f"2026-{day}") for day in ("02-13", "03-13", "11-13")]


def test_29_february_on_a_monday_is_found_over_40_years() -> None:
    spec = Crontab("0", "0", "mon", "29", "2")
    days = ("2044-02-29", "2072-02-29", "2112-02-29")
    assert following(spec, "2026-01-01", 3) == [ms(day) for day in days]


def test_the_second_is_a_field_too() -> None:
    spec = Crontab("59", "23", second="58-59")
    times = ("2026-12-31T23:59:58", "2026-12-31T23:59:59", "2027-01-01T23:59:58")
    assert following(spec, "2026-12-31T23:59:57.999", 3) == [ms(time) for time in times]


def test_the_end_of_time_is_the_end_of_a_crontab() -> None:
    assert Crontab("0", "0").next_after(ms("9998-12-31")) is None


@pytest.mark.parametrize("text", ["*", "*/7", "5", "1-3", "3-1", "1-9/4", "1,2,3", "*/5,3"])
@pytest.mark.parametrize("field", ["minute", "hour", "day_of_week", "day_of_month", "month_of_year"])
def test_a_field_means_the_numbers_that_it_means_to_celery(field: str, text: str) -> None:
    if field == "day_of_week" and text == "1-9/4":
        return
    ours, theirs = Crontab(**{field: text}), crontab(**{field: text})
    numbers = {
        "minute": ours.times.minutes,
        "hour": ours.times.hours,
        "day_of_week": ours.weekdays,
        "day_of_month": ours.days,
        "month_of_year": ours.months,
    }
    assert set(numbers[field]) == getattr(theirs, field)


TROMSO = (69.65, 18.96)


class _App:
    timezone = UTC


@pytest.mark.parametrize("event", sorted(EVENTS))
@pytest.mark.parametrize("place", [(52.5, 13.4), (-33.9, 151.2), (0.0, -179.0), (40.7, -74.0), TROMSO])
def test_an_event_is_at_the_instant_of_celerys_own_schedule(event: str, place: tuple[float, float]) -> None:
    if celery.VERSION < (5, 7) and (place == TROMSO or "astronomical" in event):
        pytest.skip("Celery before 5.7 fails where the sun stays up or down, before 5.6 its astronomical dusk is wrong")
    random, spec = Random(f"{event}{place}"), Solar(event, *place)
    for _ in range(5):
        after_ms = ms("2026-01-01") + random.randrange(365 * 86_400) * 1_000
        found = spec.next_after(after_ms)
        assert found is not None
        now = EPOCH + timedelta(milliseconds=after_ms)
        theirs = solar(event, *place, app=_App(), nowfun=lambda now=now: now)
        expected = now + theirs.remaining_estimate(now)
        assert abs(EPOCH + timedelta(milliseconds=found) - expected) < timedelta(seconds=2)


def test_polar_night_is_skipped_to_the_next_sunrise() -> None:
    recurrence = Recurrence(Solar("sunrise", *TROMSO))
    last, first = recurrence.preview(ms("2026-11-26"), 2)
    assert datetime.fromtimestamp(last / 1_000, UTC).date() < datetime(2026, 11, 29, tzinfo=UTC).date()
    found = recurrence.preview(last, 60)
    pause_ms = max(later - earlier for earlier, later in pairwise([last, *found]))
    assert 45 * 86_400_000 < pause_ms < 55 * 86_400_000
    assert first > last


def test_sunsets_around_midnight_are_all_found() -> None:
    """Before the midnight sun a sunset comes after midnight: some dates have two, and others none."""
    found = Recurrence(Solar("sunset", 66.0, 18.96)).preview(ms("2026-05-20"), 80)
    pauses = [later - earlier for earlier, later in pairwise(found)]
    assert all(pause > 20 * 3_600_000 for pause in pauses)
    assert sorted(pauses)[40] < 25 * 3_600_000


@pytest.mark.parametrize("event", ["sunrise", "solar_noon", "dusk_civil"])
def test_an_event_does_not_depend_on_the_instant_of_the_question(event: str) -> None:
    spec, random = Solar(event, 60.2, 24.9), Random(event)
    first = spec.next_after(ms("2026-06-01"))
    assert first is not None
    second = spec.next_after(first)
    assert second is not None
    assert {spec.next_after(random.randrange(first, second)) for _ in range(50)} == {second}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(0), "every_ms must be at "),
        (lambda: Interval(-5), "every_ms must be"),
        (lambda: Interval(1.5), "every_ms must be"),  # type: ignore[arg-type]
        (lambda: Interval(1, None), "anchor_ms must be"),  # type: ignore[arg-type]
        (lambda: Instants(()), "at_ms must be a list of 1 to 10,000 instants, got '0 of them'"),
        (lambda: Instants(tuple(range(10_001))), "at_ms must be a list of 1 to 10,000 instants, got '10,001 of them'"),
        (lambda: Instants((1, -1)), "at_ms[1] must be a whole number of at least 0"),
        (lambda: Instants("12"), "at_ms must be a list of instants"),  # type: ignore[arg-type]
        (lambda: Crontab(minute="61"), "minute must be a crontab field of 0 to 59, like '*/15', got '61'"),
        # Celery ignores the rest after */5.
        (lambda: Crontab(minute="*/5-7"), "minute must be a crontab field of 0 to 59"),
        (lambda: Crontab(minute="*/0"), "minute must be a crontab field"),
        (lambda: Crontab(minute=""), "minute must be a text like"),
        (lambda: Crontab(minute=60), "minute must be a crontab field of 0 to 59"),
        (lambda: Crontab(minute=[]), "minute must be a text like"),
        (lambda: Crontab(minute=["5", 6]), "minute must be a text like"),  # type: ignore[list-item]
        (lambda: Crontab(hour="-1"), "hour must be a crontab field of 0 to 23"),
        (lambda: Crontab(day_of_week="7"), "day_of_week must be a crontab field of 0 to 6, like 'mon-fri'"),
        (lambda: Crontab(day_of_week="noday"), "day_of_week must be"),
        (lambda: Crontab("0", "0", "*", "30", "2"), "day_of_month must be a day that occurs in month_of_year '2'"),
        (lambda: Crontab(second="*/61x"), "second must be a crontab field"),
        (lambda: Solar("moonrise", 0, 0), "event must be one of dawn_astronomical"),
        (lambda: Solar("sunrise", 91, 0), "latitude must be a number of degrees from -90 to 90, got 91"),
        (lambda: Solar("sunrise", 0, -181), "longitude must be a number of degrees from -180 to 180"),
        (lambda: Solar("sunrise", "52", 0), "latitude must be"),
        (lambda: Solar("sunrise", float("nan"), 0), "latitude must be"),
    ],
)
def test_a_wrong_definition_is_refused_with_the_rule_of_its_field(make: Callable[[], Spec], message: str) -> None:
    with refused(message):
        make()


def test_a_place_without_the_event_is_refused() -> None:
    with pytest.raises(RecurrenceError, match=r"^spec must be a rule with an occurrence"):
        Recurrence(Solar("sunrise", 90, 0))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    with pytest.raises(PackageMissing, match=r"pip install 'celery-wheel\[solar\]'"):
        Solar("sunrise", 1, 2)


ANCHOR = ms("2026-11-22T13:46:07.250")


def app_in(zone: str) -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False, timezone=zone)  # type: ignore[no-any-return]


class _OnlyDue(schedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at)


class _Harmless(crontab):
    """A subclass that decides nothing anew."""


UTC_APP = app_in("UTC")


@pytest.mark.parametrize(
    ("celery_schedule", "expected"),
    [
        (schedule(30), Recurrence(Interval(30_000, ANCHOR))),
        (schedule(timedelta(seconds=0.5)), Recurrence(Interval(500, ANCHOR))),
        (
            crontab("*/15", "8-17", day_of_week="mon-fri", app=app_in("Europe/Berlin")),
            Recurrence(Crontab("*/15", "8-17", day_of_week="mon-fri"), "Europe/Berlin"),
        ),
        (crontab(5, [9, 8], {1}, range(1, 4), app=UTC_APP), Recurrence(Crontab("5", "8,9", "1", "1,2,3"))),
        (solar("sunset", -37.81753, 144.96715, app=UTC_APP), Recurrence(Solar("sunset", -37.81753, 144.96715))),
        (_Harmless("5", app=UTC_APP), Recurrence(Crontab("5"))),
        *((value, None) for value in (schedule(0), _OnlyDue(30), object(), None, 30, timedelta(seconds=30))),
    ],
)
def test_a_schedule_keeps_its_meaning_or_has_no_recurrence(celery_schedule: Any, expected: Recurrence | None) -> None:
    """A schedule that only knows when it is due has none."""
    assert from_celery(celery_schedule, ANCHOR) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "every", [{"days": 1}, {"days": 2, "hours": 5}, {"hours": 3}, {"minutes": 150}, {"seconds": 90}]
)
def test_a_relative_interval_runs_at_the_rounded_times_of_celery(zone: str, every: dict[str, int]) -> None:
    now = [EPOCH + timedelta(milliseconds=ANCHOR)]
    celery_schedule = schedule(timedelta(**every), relative=True, nowfun=lambda: now[0], app=app_in(zone))
    recurrence = from_celery(celery_schedule, ANCHOR)
    assert recurrence is not None
    expected = []
    for _ in range(5):
        last_run_at = now[0].astimezone(ZoneInfo(zone))
        now[0] += celery_schedule.remaining_estimate(last_run_at)
        expected.append(round(now[0].timestamp() * 1_000))
    assert recurrence.preview(expected[0] - 1, 5) == expected


@pytest.mark.parametrize("nowfun_zone", ["Asia/Tokyo", "UTC"])
def test_a_crontab_with_a_clock_of_its_own_runs_when_the_installed_celery_runs_it(nowfun_zone: str) -> None:
    now = datetime(2026, 11, 22, 3, tzinfo=UTC)
    celery_schedule = crontab(
        "0", "9", app=app_in("Europe/Berlin"), nowfun=lambda: now.astimezone(ZoneInfo(nowfun_zone))
    )
    found = from_celery(celery_schedule, ANCHOR)
    assert found is not None
    theirs = now + celery_schedule.remaining_estimate(celery_schedule.now())
    assert found.next_after(round(now.timestamp() * 1_000)) == round(theirs.timestamp() * 1_000)


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


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "America", "+25:00", "", "a/" * 1_500])
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
