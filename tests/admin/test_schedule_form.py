"""The form of a schedule on any input, and its times and durations there and back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.recurring.local import zone_of
from celery_wheel.values.text import END_OF_TIME_MS
from django_wheel.forms import DurationMsField, moment_ms, moment_text
from django_wheel.schedule_form import KINDS, ScheduleForm
from django_wheel.views.schedule import upcoming_values
from tests.admin.test_schedule_acting import FORM
from tests.kit.patience import patience

ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "+05:30"]

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *("", "*", "0", "-1", "1" * 5_000, "*/7", "mon-fri", "31", "null", "true", "[]", "{}", '"x"', "1e999"),
            *(
                "2026-11-22 09:00",
                "9998-12-31 23:59:59",
                "9999-12-31 23:59",
                "0001-01-01 00:00",
                "1970-01-01 00:00+14:00",
            ),
            *("Europe/Paris", "Pacific/Apia", "../etc/passwd", "DE", "US", "nan", "-inf", "90", "2026-12-24"),
            *("DTSTART:20260105T093000\nRRULE:FREQ=SECONDLY", "DTSTART:99990105T093000\nRRULE:FREQ=YEARLY"),
            *(
                "DTSTART:20260105T093000\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
                "RDATE:x",
                "DTSTART:20260105T093000",
            ),
            '{"kind": "of_spec", "spec": {"kind": "crontab"}, "lasts_ms": 60000}',
            '{"kind": "any_of", "parts": []}',
            '{"kind": "recurrence"}',
        ]
    ),
)
NAMES = sorted({*FORM, "anchor", "rrule", "event", "latitude", "longitude", "instants", "start", "until", "times"})
NAMES += ["weekdays", "holidays_country", "holidays_subdivision", "dates", "calendar", "every_0", "jitter_0", "made"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([kind for kind, _label in KINDS]), st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=8))
def test_no_input_makes_an_error_of_the_server(kind: str, values: dict[str, str]) -> None:
    """A form is valid, and its definition can be stored and shown; or it has an error."""
    began = time.process_time()
    form = ScheduleForm({**FORM, "kind": kind, "name": "report", **values})
    if form.is_valid():
        assert form.document is not None
        read_definition(to_text(form.document))
    else:
        assert form.errors
    if form.recurrence is not None:
        upcoming_values(form.recurrence, 1_800_000_000_000, form.cleaned_data.get("made") or 0)
    assert time.process_time() - began < patience(2)


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(ZONES))
def test_a_time_comes_back_from_its_text(at_ms: int, name: str) -> None:
    zone: Any = zone_of(name)
    assert moment_ms(moment_text(at_ms, zone), zone) == at_ms


@pytest.mark.parametrize("text", ["2026-10-25 02:30:00", "2026-10-25 02:30:00+01:00"])
def test_a_time_that_exists_twice_is_the_first_unless_it_has_an_offset(text: str) -> None:
    zone: Any = zone_of("Europe/Paris")
    first = 1_792_888_200_000
    assert moment_ms(text, zone) == first + (3_600_000 if "+" in text else 0)
    assert moment_text(moment_ms(text, zone), zone).startswith("2026-10-25 02:30:00+0")


@given(st.integers(1, END_OF_TIME_MS))
def test_a_duration_comes_back_from_its_number_and_unit(ms: int) -> None:
    field = DurationMsField()
    assert field.clean(field.widget.decompress(ms)) == ms
