"""JSON documents with round trips of every kind, recurrences in words, and refusals that name the field."""

import json
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings

from celery_wheel import recurring as r
from celery_wheel.recurring.definition import ScheduledCall, check_call
from celery_wheel.recurring.document import KINDS
from celery_wheel.recurring.words import in_words, upcoming
from celery_wheel.values.text import END_OF_TIME_MS
from tests.unit.recurring.instants import ms, refused
from tests.unit.recurring.test_recurrence import CALENDARS, recurrences

DEFINITIONS: list[r.Recurrence | r.Spec | r.Calendar] = [
    r.Recurrence(
        r.Crontab("0", "9"), "Europe/Paris", "skip", "both", 10, 10**13, 5, r.Weekdays(("sun",)) | ~r.Holidays("FR")
    ),
    r.Interval(1_000, 5),
    r.Crontab("*/5", second="30"),
    r.Solar("sunset", 52.5, 13),
    r.RRule("DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20270101T000000Z"),
    r.Instants((3, 1, 2)),
    r.Dates((date(2026, 12, 24),)),
    r.BusinessDays("DE", "BY", ("fri", "sat")),
    r.OfSpec(r.Interval(5), 3) & r.Weekdays(("mon",)),
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda found: type(found).__name__)
def test_a_definition_survives_its_document(definition: r.Recurrence | r.Spec | r.Calendar) -> None:
    text = json.dumps(r.to_json(definition))
    assert r.from_json(json.loads(text)) == definition
    assert json.dumps(r.to_json(r.from_json(json.loads(text)))) == text


def test_every_kind_is_among_the_examples() -> None:
    kinds = {part["kind"] for definition in DEFINITIONS for part in _documents(r.to_json(definition))}
    assert kinds == set(KINDS)


def _documents(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for one in value for found in _documents(one)]
    if isinstance(value, dict):
        return [value, *(found for one in value.values() for found in _documents(one))]
    return []


@settings(max_examples=25)
@given(recurrences())
def test_a_random_recurrence_survives_its_document(recurrence: r.Recurrence | None) -> None:
    if recurrence is not None:
        assert r.from_json(json.loads(json.dumps(r.to_json(recurrence)))) == recurrence


@given(CALENDARS)
def test_a_random_calendar_survives_its_document(calendar: r.Calendar) -> None:
    assert r.from_json(json.loads(json.dumps(r.to_json(calendar)))) == calendar


def test_a_field_with_its_default_is_left_out() -> None:
    assert r.to_json(r.Recurrence(r.Crontab("0"))) == {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0"}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "the document must be an object like"),
        ({}, "kind must be one of recurrence, interval"),
        ({"kind": "cron"}, "kind must be one of recurrence, interval"),
        ({"kind": ["crontab"]}, "kind must be one of"),
        ({"kind": "crontab", "minutes": "5"}, "minutes must be a field of crontab (did you mean minute?), got '5'"),
        ({"kind": "crontab", "x": "5"}, "x must be a field of crontab (there are minute, hour, "),
        ({"kind": "crontab", "minute": 5.5}, "minute must be a text like '*/15', got 5.5"),
        ({"kind": "crontab", "minute": True}, "minute must be a text like '*/15', got True"),
        ({"kind": "crontab", "_times": 5}, "_times must be a field of crontab"),
        ({"kind": "interval"}, "every_ms must be given: interval has no default for it"),
        ({"kind": "interval", "every_ms": "5"}, "every_ms must be a whole number"),
        ({"kind": "recurrence", "spec": {"kind": "interval", "every_ms": 0}}, "spec.every_ms must be "),
        ({"kind": "recurrence", "spec": 5}, "spec must be an object like"),
        ({"kind": "recurrence", "spec": {"kind": "weekdays", "days": ["sat"]}}, "spec must be a Spec, got Weekdays"),
        ({"kind": "any_of", "parts": [{"kind": "weekdays", "days": ["x"]}]}, "parts[0].days[0] must be one of mon"),
        ({"kind": "any_of", "parts": {"kind": "weekdays"}}, "parts[0] must be an object"),
        ({"kind": "dates", "dates": ["24.12."]}, "dates[0] must be a date like '2026-12-24', got '24.12.'"),
        ({"kind": "dates", "dates": "2026-12-24"}, "dates must be a list of dates, got '2026-12-24'"),
        ({"kind": "instants", "at_ms": 5}, "at_ms must be a list of instants, got 5"),
        ({"kind": "except", "calendar": None}, "calendar must be a Calendar, got None"),
    ],
)
def test_a_wrong_document_is_refused_with_the_path_of_the_field(document: Any, message: str) -> None:
    with refused(message):
        r.from_json(document)


OPTIONS = {
    "queue": "mail",
    "priority": 3,
    "expires": 1.5,
    "headers": {"tenant": "acme"},
    "ignore_result": True,
    "link": {"task": "app.next", "args": []},
}


def test_a_call_keeps_what_it_is_given() -> None:
    document = {"task": "app.report", "args": [1], "kwargs": {"a": 2}, "recurrence": "ignored"}
    found = check_call({**document, "options": {**OPTIONS, "wheel": {"misfire": "skip", "key": "acme"}}})
    assert found == ScheduledCall("app.report", [1], {"a": 2}, OPTIONS, {"misfire": "skip", "key": "acme"})
    assert check_call({"task": "app.report", "jitter_ms": 5, "jitter_by": "name"}).jitter_by == "name"


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("task", {"task": None}),
        ("task", {"task": "a\0b"}),
        ("args", {"args": {}}),
        ("kwargs", {"kwargs": []}),
        ("options", {"options": None}),
        ("options.quue must be an option of a schedule (did you mean queue?)", {"options": {"quue": "mail"}}),
        ("options.countdown", {"options": {"countdown": 5}}),
        ("options.queue", {"options": {"queue": ""}}),
        ("options.priority", {"options": {"priority": 256}}),
        ("options.priority", {"options": {"priority": True}}),
        ("options.expires", {"options": {"expires": 0}}),
        ("options.expires", {"options": {"expires": float("nan")}}),
        ("options.expires", {"options": {"expires": "2026-12-24"}}),
        ("options.time_limit", {"options": {"time_limit": 1e12}}),
        ("options.ignore_result", {"options": {"ignore_result": 1}}),
        ("options.headers", {"options": {"headers": []}}),
        ("options.headers.wheel_occurrence", {"options": {"headers": {"wheel_occurrence": 1}}}),
        ("options.link", {"options": {"link": ["app.next"]}}),
        ("options.wheel", {"options": {"wheel": False}}),
        ("options.wheel.jitter", {"options": {"wheel": {"jitter": 5}}}),
        ("options.wheel.misfire", {"options": {"wheel": {"misfire": "never"}}}),
        ("options.wheel.misfire", {"options": {"wheel": {"misfire": True}}}),
        ("options.wheel.key", {"options": {"wheel": {"key": 5}}}),
        ("options.wheel.group", {"options": {"wheel": {"group": ""}}}),
        ("options.wheel.group must be a text without line breaks", {"options": {"wheel": {"group": "a\n"}}}),
        ("options.wheel.key must be left out", {"options": {"wheel": {"group": "tenant:42", "key": "acme"}}}),
        ("jitter_ms", {"jitter_ms": -1}),
        ("jitter_ms", {"jitter_ms": 10**12}),
        ("jitter_by", {"jitter_by": "day"}),
    ],
)
def test_a_value_without_a_meaning_is_refused_by_its_path(path: str, document: dict[str, Any]) -> None:
    with refused(path):
        check_call({"task": "app.report", **document})


@pytest.mark.parametrize("misfire", ["run", "skip", 0, 1.5])
def test_each_misfire_of_apply_async_is_one_here(misfire: Any) -> None:
    assert check_call({"task": "app.report", "options": {"wheel": {"misfire": misfire}}}).wheel == {"misfire": misfire}


def test_jitter_is_redrawn_for_each_run_or_fixed_by_the_name() -> None:
    each, fixed = (ScheduledCall("app.report", jitter_ms=60_000, jitter_by=by) for by in ("run", "name"))
    instants = range(0, 3_600_000, 60_000)
    drawn = [each.due_ms(7, "daily", at_ms) - at_ms for at_ms in instants]
    assert drawn == [each.due_ms(7, "renamed", at_ms) - at_ms for at_ms in instants], "a repeated call draws the same"
    assert len(set(drawn)) > 50
    assert 0 <= min(drawn) < 10_000 < 50_000 < max(drawn) <= 60_000
    assert len({fixed.due_ms(7, "daily", at_ms) - at_ms for at_ms in instants}) == 1
    assert len({fixed.due_ms(7, f"daily {n}", 0) for n in range(60)}) > 50


def test_jitter_ends_before_the_end_of_time() -> None:
    last_ms = END_OF_TIME_MS - 1
    assert all(ScheduledCall("app.report", jitter_ms=60_000).due_ms(n, "daily", last_ms) == last_ms for n in range(9))


HOUR = 3_600_000


def rule(parts: str, day: str = "05T0930") -> r.RRule:
    return r.RRule(f"DTSTART:202601{day}00\nRRULE:FREQ={parts}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (r.Interval(90_000), "every 1 min 30 s"),
        (r.Crontab(), "every minute"),
        (r.Crontab("0", "9"), "every day at 09:00"),
        (r.Crontab("0,30", "9,17"), "every day at 09:00, 09:30, 17:00, 17:30"),
        (r.Crontab("0", "9", "mon-fri"), "at 09:00 on Monday to Friday"),
        (r.Crontab("0", "9", "0,6"), "at 09:00 on Saturday, Sunday"),
        (r.Crontab("5", "9", "*", "1,15", "1-3"), "at 09:05 on day 1, 15 of the month in January to March"),
        (r.Crontab("0", "0", "*", "1-5"), "at 00:00 on day 1-5 of the month"),
        (r.Crontab("*/15"), "every 15 minutes"),
        (r.Crontab("*/15", "8-17"), "every 15 minutes from 08:00 to 17:45"),
        (r.Crontab("*/7"), "at hour *, minute */7, second 0"),
        (r.Crontab("*/15", "8,10"), "at hour 8,10, minute */15, second 0"),
        (r.Crontab("0"), "every hour"),
        (r.Crontab("5"), "every hour, minute 5"),
        (r.Crontab("5", "*/2"), "every 2 hours, minute 5"),
        (r.Crontab("5", "8-17"), "every hour from 08:05 to 17:05"),
        (r.Crontab(second="*"), "every second"),
        (r.Crontab(second="*/10"), "every 10 seconds"),
        (r.Crontab("0", "9", second="30"), "every day at 09:00:30"),
        (r.Crontab("*", "9", second="30"), "at hour 9, minute *, second 30"),
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
            r.RRule("DTSTART:20260105T093000\nRDATE:20260106T093000"),
            "DTSTART:20260105T093000; RDATE:20260106T093000",
        ),
        (r.Solar("dusk_civil", 48.86, 2.35), "civil dusk at 48.86, 2.35"),
        (r.Instants((ms("2026-11-22T09:00+01:00"),)), "once, at 2026-11-22 09:00"),
        (
            r.Instants((ms("2026-11-22T09:00+01:00"), ms("2026-12-24T18:00:30+01:00"))),
            "2 times from 2026-11-22 09:00 to 2026-12-24 18:00:30",
        ),
    ],
)
def test_a_spec_in_words(spec: r.Spec, words: str) -> None:
    assert in_words(r.Recurrence(spec, "Europe/Paris")) == words


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (r.Weekdays(("sat", "sun")), "except Saturday, Sunday"),
        (r.Holidays("FR") | r.Weekdays(("sun",)), "except holidays of FR, Sunday"),
        (r.Holidays("DE", "BY"), "except holidays of DE-BY"),
        (r.Except(r.BusinessDays("FR")), "only on business days of FR"),
        (r.Dates((date(2026, 12, 24),)), "except 2026-12-24"),
        (r.Dates(tuple(date(2026, 12, day) for day in range(1, 9))), "except 8 dates"),
        (r.OfSpec(r.Crontab("0", "22"), 8 * HOUR), "except 8 h every day at 22:00"),
        (r.AllOf((r.Weekdays(("mon",)), r.Except(r.Holidays("FR")))), "except Monday and all but holidays of FR"),
    ],
)
def test_a_calendar_in_words(without: r.Calendar, words: str) -> None:
    assert in_words(r.Recurrence(r.Interval(HOUR), without=without)) == f"every 1 h, {words}"


def test_limits_are_in_the_zone() -> None:
    limited = r.Recurrence(
        r.Interval(HOUR),
        "Asia/Tokyo",
        start_ms=ms("2026-01-01T00:00+09:00"),
        until_ms=ms("2026-02-01T00:00:01+09:00"),
        times=1_000,
    )
    assert in_words(limited) == "every 1 h, from 2026-01-01 00:00, until 2026-02-01 00:00:01, at most 1,000 times"


def test_every_text_is_translated_as_a_whole() -> None:
    weekly = r.Recurrence(r.Crontab("0", "9", "mon-fri"), without=r.Weekdays(("wed",)))
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
    around = upcoming(r.Recurrence(r.Crontab("0", "12"), zone), ms(f"{day}T12:00+00:00") - 80 * HOUR, 6)
    shifts = {datetime.fromtimestamp(at.at_ms / 1_000, ZoneInfo(zone)): at.shift_ms for at in around}
    expected = {day: shift_h * HOUR} if shift_h else {}
    assert {f"{local:%Y-%m-%d}": shift for local, shift in shifts.items() if shift} == expected


def test_left_out_instants_are_between_the_occurrences() -> None:
    at_nine = r.Recurrence(r.Crontab("0", "9"), "Europe/Paris", without=r.Weekdays(("sat", "sun")))
    found = upcoming(at_nine, ms("2026-11-26T12:00+00:00"), 2)
    assert [(datetime.fromtimestamp(at.at_ms / 1_000, UTC).day, at.left_out) for at in found] == [
        (27, None),
        (28, "excluded"),
        (29, "excluded"),
        (30, None),
    ]


def test_an_instant_in_a_gap_is_left_out_where_gaps_are_skipped() -> None:
    skipping = r.Recurrence(r.Crontab("30", "2"), "America/New_York", gap="skip")
    found = upcoming(skipping, ms("2026-03-07T12:00+00:00"), 1)
    assert [(at.left_out, at.shift_ms) for at in found] == [("gap", HOUR), (None, 0)]


def test_a_dense_spec_is_searched_for_a_moment_only() -> None:
    each_second = r.Recurrence(r.Crontab(second="*"), "Europe/Paris", without=~r.BusinessDays("FR"))
    found = upcoming(each_second, ms("2026-11-27T22:59:58+00:00"), 2)
    assert [at.left_out for at in found if at.left_out] == ["excluded"] * 40
    assert len(found) == 42
