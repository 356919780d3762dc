"""Rules of RFC 5545: the examples of the RFC, far rules, and what is refused. See ``proof`` for random rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from dateutil.rrule import rrulestr

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Recurrence, RRule
from tests.unit.recurring.instants import following, ms, refused

START = "DTSTART:19970902T090000\n"


#: The rules of RFC 5545, section 3.8.5.3, that start on 2 September 1997.
EXAMPLES = [
    "FREQ=DAILY;COUNT=10",
    "FREQ=DAILY;UNTIL=19971224T000000",
    "FREQ=DAILY;INTERVAL=2",
    "FREQ=DAILY;INTERVAL=10;COUNT=5",
    "FREQ=YEARLY;UNTIL=20000131T140000;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA",
    "FREQ=DAILY;UNTIL=20000131T140000;BYMONTH=1",
    "FREQ=WEEKLY;COUNT=10",
    "FREQ=WEEKLY;INTERVAL=2;WKST=SU",
    "FREQ=WEEKLY;UNTIL=19971007T000000;WKST=SU;BYDAY=TU,TH",
    "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000;WKST=SU;BYDAY=MO,WE,FR",
    "FREQ=MONTHLY;COUNT=10;BYDAY=1FR",
    "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
    "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
    "FREQ=MONTHLY;BYMONTHDAY=-3",
    "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=2,15",
    "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
    "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
    "FREQ=MONTHLY;INTERVAL=2;BYDAY=TU",
    "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
    "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
    "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
    "FREQ=YEARLY;BYDAY=20MO",
    "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
    "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
    "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8",
    "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
    "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
    "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
    "FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
    "FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000",
    "FREQ=MINUTELY;INTERVAL=15;COUNT=6",
    "FREQ=MINUTELY;INTERVAL=90;COUNT=4",
    "FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40",
    "FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16",
    "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO",
    "FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU",
    "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
    "FREQ=YEARLY;BYWEEKNO=-1",
    "FREQ=YEARLY;BYYEARDAY=-1,366",
]


@pytest.mark.parametrize("rule", EXAMPLES)
def test_an_example_of_the_rfc_has_the_times_of_dateutil(rule: str) -> None:
    text = START + "RRULE:" + rule
    expected = [ms(at.isoformat()) for at, _ in zip(rrulestr(text), range(50), strict=False)]
    assert following(RRule(text), "1997-01-01", 50) == expected
    assert len(expected) >= 3


def test_numbered_and_other_weekdays_of_one_rule_are_a_union() -> None:
    """RFC 5545 lists weekdays; dateutil wants both kinds at once, which no day is."""
    spec = RRule(START + "RRULE:FREQ=MONTHLY;BYDAY=MO,1TU")
    days = ("09-02", "09-08", "09-15", "09-22", "09-29", "10-06", "10-07")
    assert following(spec, "1997-01-01", 7) == [ms(f"1997-{day}T09:00") for day in days]


def test_a_rule_of_seconds_since_2000_answers_at_once() -> None:
    spec = RRule("DTSTART:20000101T000000\nRRULE:FREQ=SECONDLY;INTERVAL=7")
    at_ms = ms("2026-11-22T13:00:00")
    elapsed = (at_ms - ms("2000-01-01")) // 1_000
    assert spec.next_after(at_ms) == at_ms + (7 - elapsed % 7) * 1_000


def test_rdate_adds_and_exdate_removes_and_count_counts_the_removed() -> None:
    spec = RRule(
        "DTSTART:20260105T090000\nRRULE:FREQ=DAILY;COUNT=3\n"
        "RDATE:20260110T120000,20260106T\n 100000\nEXDATE:20260106T090000"
    )
    times = ("05T09:00", "06T10:00", "07T09:00", "10T12:00")
    assert following(spec, "2026-01-01", 9) == [ms(f"2026-01-{time}") for time in times]


def test_an_until_that_is_an_instant_is_read_in_the_zone() -> None:
    text = "DTSTART:20260105T090000\nRRULE:FREQ=DAILY;UNTIL=20260107T080000Z"
    assert len(Recurrence(RRule(text), "Europe/Berlin").preview(0, 9)) == 3  # 08:00Z is 09:00 there
    assert len(Recurrence(RRule(text), "Europe/Helsinki").preview(0, 9)) == 3
    assert len(Recurrence(RRule(text), "Europe/London").preview(0, 9)) == 2


def test_dtstart_is_local_in_the_zone() -> None:
    recurrence = Recurrence(RRule("DTSTART:20260105T090000\nRRULE:FREQ=DAILY"), "Asia/Tokyo")
    assert recurrence.next_after(0) == ms("2026-01-05T09:00+09:00")


def test_the_first_week_counts_whole_by_position() -> None:
    """dateutil counts from DTSTART on; see ``DATEUTIL_DIFFERENCES``."""
    text = "DTSTART:20260107T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO,TU,WE,TH;BYSETPOS=2"  # a Wednesday
    assert following(RRule(text), "2026-01-01", 2) == [ms("2026-01-13T09:00"), ms("2026-01-20T09:00")]
    assert next(iter(rrulestr(text))).replace(tzinfo=UTC) == datetime(2026, 1, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RRULE:FREQ=DAILY", "text must be a text with one DTSTART"),
        ("DTSTART:20260101T000000", "text must be a text with an RRULE or an RDATE"),
        ("DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY", "DTSTART must be a wall-clock time"),
        ("DTSTART;TZID=Europe/Paris:20260101T000000\nRRULE:FREQ=DAILY", "DTSTART must be without TZID"),
        ("DTSTART:2026\nRRULE:FREQ=DAILY", "DTSTART must be a time like 20260105T090000, got '2026'"),
        ("DTSTART:20260230T000000\nRRULE:FREQ=DAILY", "DTSTART must be a time like"),
        (START + "EXRULE:FREQ=DAILY", "text must be lines of DTSTART, RRULE, RDATE and EXDATE (RFC 5545 has no EXRULE"),
        (START + "RRULE:FREQ=OFTEN", "FREQ must be one of YEARLY"),
        (START + "RRULE:FREQ=DAILY;BYEASTER=1", "RRULE must be parts NAME=value"),
        (START + "RRULE:FREQ=DAILY;COUNT=2;UNTIL=20300101T000000", "RRULE must be a rule with UNTIL or COUNT"),
        (START + "RRULE:FREQ=DAILY;UNTIL=20300101", "UNTIL must be a time, like 20300101T235959"),
        (START + "RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL must be whole numbers from 1"),
        (START + "RRULE:FREQ=DAILY;COUNT=10001", "COUNT must be whole numbers from 1 to 10,000"),
        (START + "RRULE:FREQ=DAILY;BYHOUR=24", "BYHOUR must be whole numbers from 0 to 23"),
        (START + "RRULE:FREQ=DAILY;BYDAY=1MO", "BYDAY must be weekdays without a number"),
        (START + "RRULE:FREQ=WEEKLY;BYDAY=XX", "BYDAY must be weekdays like MO or -1FR"),
        (START + "RRULE:FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY must be"),
        (START + "RRULE:FREQ=WEEKLY;BYWEEKNO=1", "BYWEEKNO must be in a rule with FREQ=YEARLY"),
        (START + "RRULE:FREQ=DAILY;BYYEARDAY=1", "BYYEARDAY must be"),
        (START + "RRULE:FREQ=HOURLY;BYSETPOS=1", "BYSETPOS must be in a rule with FREQ=DAILY or longer"),
        (START + "RRULE:FREQ=DAILY;WKST=XX", "WKST must be one of"),
        (START + "RDATE:" + ",".join(["20260101T000000"] * 10_001), "RDATE must be a list of at most 10,000"),
        ("", "text must be a text like"),
        (None, "text must be a text like"),
    ],
)
def test_a_wrong_text_is_refused_with_its_part(text: str, message: str) -> None:
    with refused(message):
        RRule(text)


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=HOURLY;INTERVAL=2;BYHOUR=10",
        "FREQ=YEARLY;BYMONTH=1;BYYEARDAY=200",
        "FREQ=MONTHLY;BYMONTHDAY=1;BYSETPOS=2",
        "FREQ=DAILY;UNTIL=19960101T000000",
    ],
)
def test_a_rule_that_never_fires_is_refused(rule: str) -> None:
    with pytest.raises(RecurrenceError, match=r"^RRULE must be a rule with an occurrence, got "):
        RRule(START + "RRULE:" + rule + "\nRDATE:20260101T000000")


def test_a_rule_whose_occurrences_are_all_removed_is_refused() -> None:
    with pytest.raises(RecurrenceError, match=r"^spec must be a rule with an occurrence"):
        Recurrence(RRule(START + "RRULE:FREQ=DAILY;COUNT=1\nEXDATE:19970902T090000"))
