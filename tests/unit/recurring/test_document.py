"""JSON documents: round trips of every kind, the call of a schedule, and refusals that name the field."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings

from celery_wheel.recurring import (
    BusinessDays,
    Calendar,
    Crontab,
    Dates,
    Holidays,
    Instants,
    Interval,
    OfSpec,
    Recurrence,
    RRule,
    Solar,
    Spec,
    Weekdays,
    from_json,
    to_json,
)
from celery_wheel.recurring.definition import ScheduledCall, check_call
from celery_wheel.recurring.document import KINDS
from celery_wheel.values.text import END_OF_TIME_MS
from tests.unit.recurring.instants import refused
from tests.unit.recurring.test_recurrence import CALENDARS, recurrences

DEFINITIONS: list[Recurrence | Spec | Calendar] = [
    Recurrence(Crontab("0", "9"), "Europe/Paris", "skip", "both", 10, 10**13, 5, Weekdays(("sun",)) | ~Holidays("FR")),
    Interval(1_000, 5),
    Crontab("*/5", second="30"),
    Solar("sunset", 52.5, 13),
    RRule("DTSTART:20260101T090000\nRRULE:FREQ=DAILY;UNTIL=20270101T000000Z"),
    Instants((3, 1, 2)),
    Dates((date(2026, 12, 24),)),
    BusinessDays("DE", "BY", ("fri", "sat")),
    OfSpec(Interval(5), 3) & Weekdays(("mon",)),
]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda found: type(found).__name__)
def test_a_definition_survives_its_document(definition: Recurrence | Spec | Calendar) -> None:
    text = json.dumps(to_json(definition))
    assert from_json(json.loads(text)) == definition
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_every_kind_is_among_the_examples() -> None:
    kinds = {part["kind"] for definition in DEFINITIONS for part in _documents(to_json(definition))}
    assert kinds == set(KINDS)


def _documents(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for one in value for found in _documents(one)]
    if isinstance(value, dict):
        return [value, *(found for one in value.values() for found in _documents(one))]
    return []


@settings(max_examples=25)
@given(recurrences())
def test_a_random_recurrence_survives_its_document(recurrence: Recurrence | None) -> None:
    if recurrence is not None:
        assert from_json(json.loads(json.dumps(to_json(recurrence)))) == recurrence


@given(CALENDARS)
def test_a_random_calendar_survives_its_document(calendar: Calendar) -> None:
    assert from_json(json.loads(json.dumps(to_json(calendar)))) == calendar


def test_a_field_with_its_default_is_left_out() -> None:
    assert to_json(Recurrence(Crontab("0"))) == {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0"}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "the document must be an object like"),
        ({}, "kind must be one of recurrence, interval"),
        ({"kind": "cron"}, "kind must be one of recurrence, interval"),
        ({"kind": ["crontab"]}, "kind must be one of"),
        ({"kind": "crontab", "minutes": "5"}, "minutes must be a field of crontab (did you mean minute?), got '5'"),
        ({"kind": "crontab", "x": "5"}, "x must be a field of crontab (there are minute, hour, "),
        ({"kind": "crontab", "minute": 5}, "minute must be a text like '*/15', got 5"),
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
        from_json(document)


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
