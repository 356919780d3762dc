"""Rules of RFC 5545: its examples, far rules, refusals; and as many seeds of ``proof`` as fit in a few seconds."""

from collections import Counter
from datetime import UTC, date, datetime
from random import Random

import celery
import pytest
from dateutil.rrule import rrulestr

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Crontab, Recurrence, RRule
from tests.unit.recurring.instants import following, ms, refused
from tests.unit.recurring.proof import (
    CELERY_DIFFERENCES,
    NAMED,
    ZONES,
    _from_dateutil,
    celery_runs,
    prove_crontab,
    prove_one,
    to_ms,
    walk,
)
from tests.unit.recurring.random_specs import CrontabText

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


GAP = datetime(2026, 3, 29, 1, tzinfo=UTC)


@pytest.mark.parametrize("turn", range(4))
def test_random_specs_agree_with_the_oracles(turn: int) -> None:
    seed = Random().randrange(1_000_000)
    zone, counts = Random(seed).choice(ZONES), Counter[str]()
    found = list(prove_one(Random(f"unit/{seed}"), zone, turn, counts))
    if celery.VERSION < (5, 5):  # whose crontab misses runs and invents some where the clocks change
        found = [difference for difference in found if not difference.startswith("Celery's ")]
    assert [difference for difference in found if difference not in NAMED] == [], seed
    assert counts["windows"] >= 1


def test_celery_runs_only_the_first_time_of_a_gap() -> None:
    """The example of ``CELERY_DIFFERENCES``: it holds for the installed Celery."""
    assert list(CELERY_DIFFERENCES) == ["only the first of a gap"]
    seen = walk("Europe/Berlin", GAP)
    runs = celery_runs(("0,20,40", "2", "*", "*", "*"), "Europe/Berlin", seen.start, seen.end)
    ours = list(Recurrence(Crontab("0,20,40", "2"), "Europe/Berlin").between(to_ms(seen.start), to_ms(seen.end)))
    assert len(ours) - len(runs) == 2
    assert set(ours) - set(runs) == {to_ms(GAP.replace(minute=minute)) for minute in (20, 40)}


def test_celery_passes_over_the_times_before_the_first_moved_one() -> None:
    """A gap of half an hour: 02:24 is moved to 02:54, and 02:31 and 02:48, which exist, never run."""
    around = datetime(2007, 10, 27, 18, tzinfo=UTC)
    text = CrontabText(
        ("24,14-49/17", "*", "*", "*", "*"),
        frozenset({24, 14, 31, 48}),
        frozenset(range(24)),
        frozenset(range(7)),
        frozenset(range(1, 32)),
        frozenset(range(1, 13)),
    )
    assert set(prove_crontab(text, "Australia/Lord_Howe", around, "shift", "first")) == {"only the first of a gap"}


@pytest.mark.parametrize(("weeks", "named"), [("5,12,52", True), ("5,12", False)])
def test_dateutil_takes_the_first_of_january_2011_for_a_day_of_week_53(weeks: str, named: bool) -> None:
    text = f"DTSTART:20100929T225600\nRRULE:FREQ=YEARLY;BYWEEKNO={weeks};BYHOUR=4"
    assert date(2011, 1, 1).isocalendar() == (2010, 52, 6)
    found = set(
        _from_dateutil(Random(0), text, RRule(text), datetime(2010, 9, 29, 22, 56, tzinfo=UTC).replace(tzinfo=None))
    )
    assert found == ({"last week of the year before"} if named else set())


@pytest.mark.parametrize(
    ("start", "rule"),
    [
        ("20210704T052400", "BYWEEKNO=53;BYMINUTE=51"),  # the lists end at different days
        ("20370605T025400", "WKST=FR;BYWEEKNO=52;BYSETPOS=1,-4,6"),  # 1 January 2042 is a day of week 52: the first
    ],
)
def test_days_of_january_that_dateutil_counts_wrongly_have_a_name(start: str, rule: str) -> None:
    text = f"DTSTART:{start}\nRRULE:FREQ=YEARLY;{rule}"
    found = list(_from_dateutil(Random(0), text, RRule(text), datetime.fromisoformat(start)))
    assert found == ["last week of the year before"]
