"""JSON documents: round trips of every kind, and refusals that name the field."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings

from celery_wheel.errors import RecurrenceError
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
from celery_wheel.recurring.document import KINDS
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
    with pytest.raises(RecurrenceError) as caught:
        from_json(document)
    assert str(caught.value).startswith(message)
