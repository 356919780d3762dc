"""The form of a schedule on any input, and its times and durations there and back.

Several schedules are changed at once: the fields that are filled in, and no others.
"""

import time
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.recurring.local import zone_of
from celery_wheel.testing import VirtualWheel
from celery_wheel.values.text import END_OF_TIME_MS
from django_wheel.forms import DurationMsField, moment_ms, moment_text
from django_wheel.project import project_wheel
from django_wheel.schedule_form import KINDS, ScheduleForm
from django_wheel.views.schedule import upcoming_values
from tests.admin.conftest import text_of
from tests.admin.test_schedule_acting import ACT, DAILY, FORM, act, document, said, save, stored
from tests.admin.test_schedules import definition
from tests.kit.holder import Holder
from tests.kit.patience import patience
from tests.kit.schedules import create

ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "+05:30"]

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *("", "*", "0", "-1", "1" * 5_000, "*/7", "mon-fri", "31", "null", "true", "[]", "{}", '"x"', "1e999"),
            *("2026-11-22 09:00", "9998-12-31 23:59:59", "9999-12-31 23:59", "0001-01-01 00:00"),
            *("1970-01-01 00:00+14:00", "../etc/passwd", "DE", "US", "nan", "-inf", "90", "2026-12-24"),
            *("Europe/Paris", "Pacific/Apia", f"{DAILY}\nRRULE:FREQ=SECONDLY", "RDATE:x", DAILY),
            *("DTSTART:99990105T093000\nRRULE:FREQ=YEARLY", f"{DAILY}\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"),
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
    assert moment_ms(text, zone) == 1_792_888_200_000 + (3_600_000 if "+" in text else 0)
    assert moment_text(moment_ms(text, zone), zone).startswith("2026-10-25 02:30:00+0")


@given(st.integers(1, END_OF_TIME_MS))
def test_a_duration_comes_back_from_its_number_and_unit(ms: int) -> None:
    field = DurationMsField()
    assert field.clean(field.widget.decompress(ms)) == ms


def change(client: Client, *names: str, **values: Any) -> Any:
    return act(client, "change", *names, **values)


def errors(client: Client, **values: Any) -> dict[str, list[str]]:
    page = client.post(ACT, {"verb": "change", "row": "a", "sure": "yes", **values})
    assert page.status_code == 200
    return dict(page.context["form"].errors)


def revisions(name: str) -> list[tuple[int, str, str, str]]:
    found = project_wheel().store.browse.schedule(name)
    assert found is not None
    return [(one.number, one.what, one.actor, one.reason) for one in found.revisions]


def test_the_selected_schedules_get_the_values_that_are_given(operator: Client, wheel: VirtualWheel) -> None:
    save(operator, "a", options='{"queue": "mail", "headers": {"x": 1}}', overlap="skip")
    save(operator, "b", minute="5")
    save(operator, "c")
    assert "<h1>Change 2 schedules?</h1>" in text_of(operator.post(ACT, {"verb": "change", "row": ["a", "b"]}))
    assert [one.revision for one in map(stored, "ab") if one] == [1, 1], "a confirmation changes nothing"
    values = {"zone": "Asia/Tokyo", "queue": "slow", "priority": "7", "jitter_0": "2", "jitter_1": "60000"}
    values |= {"catch_up": "all", "catch_up_window_0": "3", "catch_up_window_1": "3600000", "jitter_by": "name"}
    values |= {"max_runtime_0": "90", "max_runtime_1": "1000", "expires_0": "5", "expires_1": "60000"}
    said = change(operator, "a", "b", reason="moved to Tokyo", **values)
    assert said == [("success", "2 schedules are changed: a, b.")]
    for name, minute in (("a", "0"), ("b", "5")):
        found = document(name)
        assert found["recurrence"]["zone"] == "Asia/Tokyo"
        assert found["recurrence"]["spec"]["minute"] == minute
        assert (found["catch_up"], found["catch_up_ms"]) == ("all", 10_800_000)
        assert (found["jitter_ms"], found["jitter_by"], found["max_runtime_ms"]) == (120_000, "name", 90_000)
        assert found["options"] == {
            **({"headers": {"x": 1}} if name == "a" else {}),
            **{"queue": "slow", "priority": 7, "expires": 300.0},
        }
        assert revisions(name)[0] == (2, "changed", "operator", "moved to Tokyo")
        assert len(revisions(name)) == 2
    assert document("a")["overlap"] == "skip"
    assert len(revisions("c")) == 1
    entry = LogEntry.objects.order_by("pk").last()
    assert entry is not None
    assert entry.object_repr == "Change: 2 schedules"
    assert change(operator, "a", "b", **values) == [("info", "2 schedules had these values already: a, b.")]


def test_values_are_set_to_their_defaults(operator: Client, wheel: VirtualWheel) -> None:
    policies = {"catch_up": "all", "catch_up_within_0": "2", "catch_up_within_1": "3600000", "jitter_0": "5"}
    save(operator, "a", options='{"queue": "mail", "priority": 3, "expires": 60}', max_runtime_0="3", **policies)
    save(operator, "b")
    every = ["max_runtime", "jitter", "queue", "priority", "expires"]
    found = change(operator, "a", "b", catch_up="latest", defaults=every)
    assert found == [("success", "1 schedule is changed: a."), ("info", "1 schedule had these values already: b.")]
    assert set(document("a")) == {"recurrence", "task"}


@pytest.mark.parametrize(
    ("values", "field", "text"),
    [
        ({}, "__all__", "Nothing is to be changed. Fill in a field first."),
        ({"zone": "Europe/Atlantis"}, "zone", "zone must be a time zone, like Europe/Paris or +02:00"),
        ({"catch_up": "all"}, "catch_up_window", 'Within must be given with the catch_up "all"'),
        ({"catch_up_window_0": "1"}, "catch_up_window", "and with no other, got '1 ms'"),
        ({"catch_up": "soon"}, "catch_up", "Select a valid choice."),
        ({"overlap": "maybe"}, "overlap", "Select a valid choice."),
        ({"max_runtime_0": "0"}, "max_runtime", "Longest run must be at least 1 ms, got 0 ms"),
        ({"max_runtime_0": "9" * 14, "max_runtime_1": "604800000"}, "max_runtime", "max_runtime must be"),
        ({"jitter_0": "8", "jitter_1": "604800000"}, "jitter", "Jitter must be at most 7 d, got 56 d"),
        ({"expires_0": "0"}, "expires", "expires must be a number of seconds, more than 0"),
        ({"expires_0": "54", "expires_1": "604800000"}, "expires", "expires must be a number of seconds"),
        ({"queue": "q" * 600}, "queue", "queue must be a text of 1 to 512 characters"),
        ({"queue": "a\0"}, "queue", "Null characters are not allowed."),
        ({"priority": "300"}, "priority", "less than or equal to 255"),
        ({"priority": "high"}, "priority", "Enter a whole number."),
        ({"queue": "slow", "defaults": "queue"}, "queue", "Enter a value, or set it to the default, not both."),
        ({"defaults": "task"}, "defaults", "Select a valid choice."),
        ({"zone": "UTC", "reason": "r" * 600}, "reason", "at most 500 characters"),
    ],
)
def test_a_wrong_value_stands_beside_its_field_and_nothing_is_requested(
    operator: Client, wheel: VirtualWheel, values: dict[str, Any], field: str, text: str
) -> None:
    save(operator, "a")
    found = errors(operator, **values)
    assert list(found) == [field]
    assert text in found[field][0]
    assert len(revisions("a")) == 1


def test_each_schedule_that_is_not_changed_has_its_reason(operator: Client, wheel: VirtualWheel) -> None:
    save(operator, "good")
    save(operator, "daily", overlap="skip")
    wheel.app.wheel.schedules.create_many({"calm": {"recurrence": 60, "task": "site.nothing"}}, source="crm")
    schedules = project_wheel().schedules
    schedules.change("create", {"broken": {"task": "site.nothing", "broken": "args must be JSON"}})
    *told, (level, refusal), left_out = change(operator, "good", "daily", "broken", "calm", "no-such", overlap="skip")
    assert told == [
        ("success", "1 schedule is changed: good."),
        ("info", "1 schedule had these values already: daily."),
        ("warning", "1 schedule does not exist any more: no-such."),
    ]
    assert (level, refusal.partition(": ")[0]) == ("error", "Schedule broken was not changed")
    assert "broken must be a field of a definition" in refusal
    assert left_out == ("warning", "1 selected schedule follows another source, and is changed there: calm.")
    page = text_of(operator.post(ACT, {"verb": "change", "row": ["good", "calm"]}))
    assert "follows another source, and is changed there: calm." in page
    assert 'name="row" value="calm"' not in page


def test_only_schedules_of_other_sources_are_left(operator: Client, holder: Holder) -> None:
    create(holder, "from-beat", "from-code", definition=definition(), source="beat")
    for verb in ("change", "delete", "rollback"):
        names = ["from-beat"] if verb == "rollback" else ["from-beat", "from-code"]
        ((level, text),) = said(operator.post(ACT, {"verb": verb, "row": names, "revision": "1"}, follow=True))
        assert level == "warning"
        assert text.startswith("Nothing was done. ")
        assert f"{', '.join(names)}." in text
