"""Schedules are created, changed, paused, resumed, rolled back and deleted from the admin, with the real engine.

The form of a schedule on any input, and its times and durations there and back.

Several schedules are changed at once: the fields that are filled in, and no others.
"""

import json
import re
import time
from functools import cache
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from freezegun import freeze_time
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheel.errors import WheelUnavailable
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.recurring.local import zone_of
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.testing import VirtualWheel
from celery_wheel.values.text import END_OF_TIME_MS
from django_wheel.forms import DurationMsField, moment_ms, moment_text
from django_wheel.project import project_wheel
from django_wheel.schedule_form import KINDS, ScheduleForm, to_document, to_values
from django_wheel.views import schedule_edit
from django_wheel.views.schedule import upcoming_values
from tests.admin.conftest import text_of
from tests.admin.test_schedules import SCHEDULE, definition, one
from tests.kit.holder import Holder
from tests.kit.patience import patience
from tests.kit.schedules import create
from tests.kit.site import celery_app

ACT, EDIT, PREVIEW = f"{SCHEDULE}act/", f"{SCHEDULE}edit/", f"{SCHEDULE}preview/"

#: A form as a browser sends it, of a crontab at 09:00.
FORM = {
    **{"kind": "crontab", "minute": "0", "hour": "9", "day_of_week": "*", "day_of_month": "*", "month_of_year": "*"},
    **{"second": "0", "zone": "Europe/Paris", "gap": "shift", "fold": "first", "task": "site.nothing"},
    **{"args": "[]", "kwargs": "{}", "options": "{}", "catch_up": "latest", "overlap": "allow", "jitter_by": "run"},
    **{"max_runtime_0": "1", "max_runtime_1": "86400000", "every_1": "60000", "jitter_1": "1000"},
}

#: Parts of a form of other kinds.
SUNSET = {"kind": "solar", "event": "sunset", "latitude": "48.86", "longitude": "1"}
DAILY = "DTSTART:20260105T093000"

#: JSON that can be parsed, and is too deep to be read.
NESTED = '{"kind": "except", "calendar": ' * 600 + '{"kind": "weekdays", "days": ["mon"]}' + "}" * 600

Said = list[tuple[str, str]]


def stored(name: str) -> Schedule | None:
    found = project_wheel().store.browse.schedule(name)
    return None if found is None else found.schedule


def document(name: str) -> Any:
    schedule = stored(name)
    assert schedule is not None
    return json.loads(schedule.definition)


def said(response: Any) -> Said:
    assert response.redirect_chain, text_of(response)
    return [(message.level_tag, str(message)) for message in response.context["messages"]]


def save(client: Client, name: str = "report", /, **values: Any) -> Said:
    return said(client.post(EDIT, {**FORM, **values, "name": name}, follow=True))


def edit(client: Client, name: str, /, **values: Any) -> Said:
    return said(client.post(f"{EDIT}?name={name}", {**FORM, **values, "name": name}, follow=True))


def act(client: Client, verb: str, *names: str, **more: Any) -> Said:
    return said(client.post(ACT, {"verb": verb, "row": names, "sure": "yes", **more}, follow=True))


def errors(client: Client, **values: Any) -> dict[str, list[str]]:
    """Return the errors that the live preview shows, which must be those of the saved form, too."""
    form = {**FORM, "name": "report", **values}
    live = client.post(PREVIEW, form).json()["errors"]
    page = client.post(EDIT, form)
    assert page.status_code == 200
    own = page.context["form"].errors
    assert {name: texts for name, texts in own.items() if name not in ("name", "task", "reason")} == live
    assert stored("report") is None
    return dict(own)


def test_a_schedule_is_created_and_changed(operator: Client, wheel: VirtualWheel) -> None:
    assert save(operator, reason="asked by sales") == [("success", "1 schedule is created: report.")]
    assert document("report") == {
        "recurrence": {
            "kind": "recurrence",
            "spec": {"kind": "crontab", "hour": "9", "minute": "0"},
            "zone": "Europe/Paris",
        },
        "task": "site.nothing",
    }
    assert edit(operator, "report") == [("info", "1 schedule had that definition already: report.")]
    assert edit(operator, "report", hour="10", overlap="skip") == [("success", "1 schedule is changed: report.")]
    assert document("report")["recurrence"]["spec"]["hour"] == "10"
    page = unescape(one(operator, "report"))
    assert "asked by sales" in page
    assert '<del>"9"</del>' in page
    titles = LogEntry.objects.order_by("pk").values_list("object_repr", flat=True)
    assert list(titles) == ["Create: report", "Change: report", "Change: report"]


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        (
            {"kind": "interval", "every_0": "90", "every_1": "1000", "anchor": "2026-01-01 00:00"},
            {"kind": "interval", "every_ms": 90_000, "anchor_ms": 1_767_222_000_000},
        ),
        ({"kind": "crontab", "minute": "*/5", "hour": "", "second": ""}, {"kind": "crontab", "minute": "*/5"}),
        (
            {"kind": "rrule", "rrule": f"{DAILY}\r\nRRULE:FREQ=DAILY\r\n"},
            {"kind": "rrule", "text": f"{DAILY}\nRRULE:FREQ=DAILY"},
        ),
        ({**SUNSET, "longitude": "-2"}, {"kind": "solar", "event": "sunset", "latitude": 48.86, "longitude": -2.0}),
        (
            {"kind": "instants", "instants": "2040-10-28 02:30\r\n\r\n2040-10-28 02:30+01:00"},
            {"kind": "instants", "at_ms": [2_234_997_000_000, 2_235_000_600_000]},
        ),
    ],
)
def test_each_kind_is_saved_and_comes_back_into_the_form(
    operator: Client, wheel: VirtualWheel, values: dict[str, str], spec: dict[str, Any]
) -> None:
    assert save(operator, **values) == [("success", "1 schedule is created: report.")]
    assert document("report")["recurrence"]["spec"] == spec
    form = operator.get(f"{EDIT}?name=report").context["form"]
    sent = {f"{name}_{n}": part for name in ("every", "max_runtime", "jitter") for n, part in parts(form, name)}
    again = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    assert edit(operator, "report", **{**again, **sent}) == [
        ("info", "1 schedule had that definition already: report.")
    ]


def parts(form: Any, name: str) -> list[tuple[int, Any]]:
    return list(enumerate(form.fields[name].widget.decompress(form[name].value())))


def test_every_policy_limit_and_calendar_is_saved(operator: Client, wheel: VirtualWheel) -> None:
    save(
        operator,
        **{"gap": "skip", "fold": "both", "start": "2040-01-01 00:00", "until": "2041-01-01 00:00", "times": "7"},
        **{"weekdays": ["sat", "sun"], "holidays_country": "DE", "holidays_subdivision": "BY"},
        **{"dates": "2040-12-24\r\n2040-12-31", "calendar": '{"kind": "business_days", "country": "FR"}'},
        **{"catch_up": "all", "catch_up_within_0": "2", "catch_up_within_1": "3600000", "overlap": "queue_one"},
        **{"max_runtime_0": "30", "max_runtime_1": "60000", "jitter_0": "5", "jitter_by": "name"},
        **{"args": "[1]", "kwargs": '{"a": "ü"}', "options": '{"queue": "mail"}'},
    )
    found = document("report")
    without = found["recurrence"].pop("without")
    assert [part["kind"] for part in without["parts"]] == ["weekdays", "holidays", "dates", "business_days"]
    assert without["parts"][1] == {"kind": "holidays", "country": "DE", "subdivision": "BY"}
    limits = {name: found["recurrence"][name] for name in ("gap", "fold", "start_ms", "until_ms", "times")}
    assert limits == {
        **{"gap": "skip", "fold": "both", "times": 7},
        **{"start_ms": 2_208_985_200_000, "until_ms": 2_240_607_600_000},
    }
    assert {name: value for name, value in found.items() if name not in ("recurrence", "task")} == {
        **{"args": [1], "kwargs": {"a": "ü"}, "options": {"queue": "mail"}},
        **{"catch_up": "all", "catch_up_ms": 7_200_000, "overlap": "queue_one"},
        **{"max_runtime_ms": 1_800_000, "jitter_ms": 5_000, "jitter_by": "name"},
    }
    form = operator.get(f"{EDIT}?name=report").context["form"]
    assert form["weekdays"].value() == ["sat", "sun"]
    assert form["dates"].value() == "2040-12-24\n2040-12-31"
    assert json.loads(form["calendar"].value()) == {"kind": "business_days", "country": "FR"}


@pytest.mark.parametrize(
    "before",
    [
        definition(),
        definition(zone="UTC", overlap="allow", catch_up="latest", args=[]),
        definition(recurrence={"without": {"kind": "except", "calendar": {"kind": "weekdays", "days": ["mon"]}}}),
        definition(recurrence={"without": {"kind": "any_of", "parts": [{"kind": "dates", "dates": ["2026-12-24"]}]}}),
        definition(recurrence={"spec": {"kind": "interval", "every_ms": 1_234, "anchor_ms": 7}}),
    ],
)
def test_a_form_that_changes_nothing_leaves_the_definition_as_it_is(before: str) -> None:
    """Also where the definition names a default, or has its calendar in another order than the form."""
    found = json.loads(before)
    values = {**to_values(found), "args": found.get("args"), "kwargs": found.get("kwargs"), "options": None}
    recurrence = found["recurrence"]
    assert to_document(found, recurrence["spec"], recurrence.get("without"), values) == found


@pytest.mark.parametrize(
    ("values", "field", "text"),
    [
        ({"hour": "25"}, "hour", "hour must be a crontab field of 0 to 23, like '8-17', got '25'"),
        ({"day_of_month": "30", "month_of_year": "2"}, "day_of_month", "day_of_month must be a day that occurs in"),
        ({"zone": "Europe/Atlantis"}, "zone", "zone must be a time zone, like Europe/Paris or +02:00"),
        ({"kind": "interval"}, "every", "This field is required."),
        ({"kind": "interval", "every_0": "0"}, "every", "Every must be at least 1 ms, got 0 ms"),
        ({"kind": "rrule", "rrule": "RRULE:FREQ=DAILY"}, "rrule", "text must be a text with one DTSTART"),
        ({"kind": "rrule", "rrule": f"{DAILY}\nRRULE:FREQ=NEVER"}, "rrule", "FREQ must be one of YEARLY"),
        ({**SUNSET, "latitude": "x"}, "latitude", "Enter a number."),
        ({**SUNSET, "longitude": "999"}, "longitude", "longitude must be a number of degrees"),
        ({**SUNSET, "latitude": "nan"}, "latitude", "latitude must be a number of degrees"),
        ({"kind": "instants", "instants": "tomorrow"}, "instants", "Enter a date and time like 2026-11-21 08:30"),
        ({"start": "2027-03-28 02:30"}, "start", "This time does not exist: the clocks skip it."),
        ({"start": "2041-01-01 00:00", "until": "2040-01-01 00:00"}, "until", "at or after the start (2040-12-31T23:"),
        ({"times": "many"}, "times", "Enter a whole number."),
        ({"times": "0"}, "times", "times must be a whole number of at least 1"),
        ({"holidays_country": "XX"}, "holidays_country", "country must be a code that the package holidays knows"),
        ({"holidays_country": "DE", "holidays_subdivision": "X"}, "holidays_subdivision", "must be one of BB"),
        ({"dates": "24.12.2026"}, "dates", "dates[0] must be"),
        ({"calendar": "{"}, "calendar", "This is not JSON"),
        ({"calendar": "[NaN]"}, "calendar", "This is not JSON"),
        ({"calendar": NESTED}, "calendar", "This is nested too deeply."),
        ({"kwargs": '{"a": 1e999}'}, "kwargs", "This is not JSON"),
        ({"calendar": '{"kind": "crontab"}'}, "calendar", "This is not a calendar."),
        ({"calendar": "5"}, "calendar", "the document must be an object"),
        ({"weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}, "calendar", "without must be a calendar"),
        ({"args": "{}"}, "args", "args must be a JSON value like []"),
        ({"kwargs": "nothing"}, "kwargs", "This is not JSON"),
        ({"options": '{"queu": "a"}'}, "options", "did you mean queue?"),
        ({"catch_up": "all"}, "catch_up_within", 'Within must be given with the catch_up "all"'),
        ({"jitter_0": "8", "jitter_1": "604800000"}, "jitter", "Jitter must be at most 7 d, got 56 d"),
        ({"kind": "weather"}, "kind", "Select a valid choice."),
        ({"overlap": "maybe"}, "overlap", "Select a valid choice."),
    ],
)
def test_an_error_stands_beside_its_field_with_the_reason(
    operator: Client, wheel: VirtualWheel, values: dict[str, Any], field: str, text: str
) -> None:
    found = errors(operator, **values)
    assert list(found) == [field]
    assert text in found[field][0]


def test_a_form_does_not_undo_a_change_that_was_made_meanwhile(operator: Client, wheel: VirtualWheel) -> None:
    save(operator)
    assert 'name="revision" value="1"' in text_of(operator.get(f"{EDIT}?name=report"))
    edit(operator, "report", hour="10", revision="1")
    page = operator.post(f"{EDIT}?name=report", {**FORM, "name": "report", "hour": "11", "revision": "1"})
    assert "The schedule was changed meanwhile, to revision 2." in text_of(page)
    assert document("report")["recurrence"]["spec"]["hour"] == "10"


def test_a_schedule_runs_now_and_is_backfilled(operator: Client, wheel: VirtualWheel) -> None:
    save(operator)
    assert act(operator, "trigger", "report") == [("success", "1 schedule runs now: report.")]
    times = {"begin": "2020-06-01 00:00", "end": "2020-06-03 00:00"}
    assert act(operator, "backfill", "report", **times) == [("success", "1 schedule is backfilled: report.")]
    assert [one.task for one in wheel.run_due()] == ["site.nothing"] * 3
    assert one(operator, "report").count(", requested") == 3
    [done, left_out] = act(operator, "backfill", "report", **times, overlap="skip")
    assert (done[0], left_out[0]) == ("success", "warning")
    assert left_out[1].startswith("report: the overlap policy of the backfill leaves out 1 of 2 instants")
    instants = {"from_ms": 1_590_962_400_000, "upto_ms": 1_591_135_200_000}  # in Berlin
    asked = [one.details for one in project_wheel().audit(action="schedule_backfill").items]
    assert asked == [{**instants, "overlap": "skip"}, instants]
    for wrong in ({"begin": "soon"}, {"begin": "2020-06-04 00:00"}, {"overlap": "explode"}):
        values = {"verb": "backfill", "row": "report", "sure": "yes", **times, **wrong}
        assert operator.post(ACT, values).context["form"].errors
    assert len(project_wheel().audit(action="schedule_backfill").items) == 2


def test_every_wrong_field_has_its_error_at_once(operator: Client, wheel: VirtualWheel) -> None:
    found = errors(operator, hour="25", holidays_country="XX", dates="soon", args="{", jitter_1="7", reason="r" * 600)
    assert set(found) == {"hour", "holidays_country", "dates", "args", "jitter", "reason"}


@pytest.mark.parametrize(("name", "task"), [("", "site.nothing"), ("n" * 600, "site.nothing"), ("report", "")])
def test_a_schedule_needs_a_name_and_a_task(operator: Client, wheel: VirtualWheel, name: str, task: str) -> None:
    page = operator.post(EDIT, {**FORM, "name": name, "task": task})
    assert list(page.context["form"].errors) == ["task" if name == "report" else "name"]


@pytest.mark.usefixtures("silent")
def test_a_form_without_an_answer_keeps_what_was_typed(operator: Client, holder: Holder) -> None:
    create(holder, "stored", definition=definition("app.stored"))
    for name, address in (("report", EDIT), ("stored", f"{EDIT}?name=stored")):
        page = operator.post(address, {**FORM, "name": name, "args": '["typed by hand"]'})
        assert "was withdrawn" in text_of(page)
        assert page.context["form"]["args"].value() == '["typed by hand"]'
    assert not LogEntry.objects.exists()


def test_a_name_that_exists_is_refused(operator: Client, wheel: VirtualWheel) -> None:
    save(operator)
    page = operator.post(EDIT, {**FORM, "name": "report", "hour": "5"})
    assert page.context["form"].errors == {"name": ["A schedule of this name exists already."]}
    assert document("report")["recurrence"]["spec"]["hour"] == "9"


@freeze_time("2013-11-01T12:00:00Z")
def test_the_preview_has_twenty_instants_and_needs_no_task(operator: Client, wheel: VirtualWheel) -> None:
    form = {**FORM, "task": "", "zone": "America/New_York", "hour": "1", "minute": "30", "fold": "both"}
    found = operator.post(PREVIEW, form).json()
    assert found["errors"] == {}
    assert found["html"].count("<tr") == 1 + 20
    assert found["html"].count("clocks -1 h") == 2
    page = text_of(operator.post(EDIT, {**form, "preview": "yes"}))
    assert page.count("clocks -1 h") == 2, "also without a script"
    assert stored("report") is None


def test_the_form_of_a_new_schedule_shows_its_preview_at_once(operator: Client, wheel: VirtualWheel) -> None:
    page = text_of(operator.get(EDIT))
    assert "every day at 09:00" in page
    assert '<option value="site.nothing">' in page


def test_a_task_module_that_cannot_be_imported_costs_the_form_suggestions_alone(
    operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(celery_app.loader, "import_default_modules", fail)
    monkeypatch.setattr(schedule_edit, "import_task_modules", cache(schedule_edit.import_task_modules.__wrapped__))
    assert set(operator.get(EDIT).context["tasks"]) <= set(celery_app.tasks)
    assert save(operator) == [("success", "1 schedule is created: report.")]
    assert operator.get(f"{EDIT}?name=report").status_code == 200
    (line,) = [line for line in caplog.records if vars(line).get("action") == "tasks_not_imported"]
    assert "torch" in line.getMessage()


def test_selected_schedules_are_paused_resumed_and_deleted_if_confirmed(operator: Client, wheel: VirtualWheel) -> None:
    for name in ("a", "b", "c"):
        save(operator, name)
    page = text_of(operator.post(ACT, {"verb": "pause", "row": ["a", "b"]}))
    assert "<h1>Pause 2 schedules?</h1>" in page
    assert re.findall(r'name="row" value="(\w+)"', page) == ["a", "b"]
    assert not any(stored(name).paused for name in "ab")  # type: ignore[union-attr]
    assert act(operator, "pause", "a", "b", reason="outage") == [("success", "2 schedules are paused: a, b.")]
    paused = stored("a")
    assert paused is not None
    assert (paused.paused, paused.note) == (True, "outage")
    assert act(operator, "pause", "a", "c", "no-such") == [
        ("success", "1 schedule is paused: c."),
        ("info", "1 schedule was paused before: a."),
        ("warning", "1 schedule does not exist any more: no-such."),
    ]
    assert act(operator, "resume", "a", "b", "c") == [("success", "3 schedules are resumed: a, b, c.")]
    assert act(operator, "delete", "a", "b") == [("success", "2 schedules are deleted: a, b.")]
    assert stored("a") is None
    assert "This schedule is deleted." in one(operator, "a")
    entry = LogEntry.objects.order_by("pk").last()
    assert entry is not None
    assert (entry.object_repr, entry.change_message) == ("Delete: 2 schedules", "Delete: 2 done; schedules: a, b")


def test_a_schedule_is_rolled_back_to_a_revision(operator: Client, wheel: VirtualWheel) -> None:
    save(operator)
    edit(operator, "report", hour="10")
    page = text_of(operator.post(ACT, {"verb": "rollback", "row": "report", "revision": "1"}))
    assert 'name="revision" value="1"' in page
    assert act(operator, "rollback", "report", revision="1", reason="wrong hour") == [
        ("success", "1 schedule is rolled back: report.")
    ]
    assert document("report")["recurrence"]["spec"]["hour"] == "9"
    page = one(operator, "report")
    assert "rolled back" in page
    assert "wrong hour" in page
    wrong = operator.post(ACT, {"verb": "rollback", "row": "report", "sure": "yes", "revision": "x"})
    assert "Enter a whole number." in text_of(wrong), "the error of a hidden field is shown, too"
    (refused,) = act(operator, "rollback", "report", revision="99")
    assert refused[0] == "error"
    assert "the store has 1 to 3" in refused[1]


def test_each_name_has_its_result(operator: Client, wheel: VirtualWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"good": ScheduleAnswer("done"), "bad": ScheduleAnswer("refused", "it is <b>broken</b>")}

    def change(*_: Any, **__: Any) -> dict[str, ScheduleAnswer]:
        raise WheelUnavailable("no scheduler answered for shard 1", answers)

    monkeypatch.setattr(project_wheel().schedules, "change", change)
    assert act(operator, "trigger", "good", "bad", "silent") == [
        ("success", "1 schedule runs now: good."),
        ("error", "Schedule bad was not changed: it is <b>broken</b>."),
        ("error", "1 schedule had no answer: no scheduler answered for shard 1."),
    ]


def test_an_action_without_names_does_nothing(operator: Client, wheel: VirtualWheel) -> None:
    assert operator.post(ACT, {"verb": "explode", "row": "a"}).status_code == 400
    for row in ([], ["a\0"], [""]):
        ((level, text),) = said(operator.post(ACT, {"verb": "pause", "row": row, "sure": "yes"}, follow=True))
        assert (level, "no schedule was selected" in text) == ("warning", True)
    ((_, text),) = said(operator.post(ACT, {"verb": "pause", "row": range(600), "sure": "yes"}, follow=True))
    assert "at most 500 schedules" in text


def test_a_schedule_of_another_source_is_changed_there(operator: Client, holder: Holder) -> None:
    create(holder, "from-beat", definition=definition(), source="beat")
    page = one(operator, "from-beat")
    assert "The definition of this schedule follows beat; change it there." in page
    assert "edit/?name=" not in page
    assert "Pause…" in page
    assert "Delete…" not in page


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


def errors_of(client: Client, **values: Any) -> dict[str, list[str]]:
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
    found = errors_of(operator, **values)
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
