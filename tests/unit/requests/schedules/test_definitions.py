"""Arguments of users become the JSON of a definition, and users read schedules, also where SQL has written nonsense."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from celery_wheel.errors import ArgumentError, RecurrenceError
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Weekdays
from celery_wheel.recurring.definition import patched
from celery_wheel.requests.schedules.definitions import definition_of, history_view, patch_of, schedule_view
from celery_wheel.store.schedule_model import Revision, Schedule, ScheduleDetail

NINE_DAILY = Crontab("0", "9")
NINE = {"kind": "crontab", "minute": "0", "hour": "9"}
PARIS = {"kind": "recurrence", "spec": NINE, "zone": "Europe/Paris"}
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
AFTER_MONDAY = Instants([round(MONDAY.timestamp() + 86_400) * 1_000])


def of(app: Any, recurrence: Any, **values: Any) -> dict[str, Any]:
    return definition_of(app, {"task": "app.report", **values, "recurrence": recurrence})


class Market(schedule):  # type: ignore[misc]
    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


@pytest.mark.parametrize("recurrence", [NINE_DAILY, Recurrence(NINE_DAILY, "Europe/Paris"), crontab("0", "9"), PARIS])
def test_each_form_of_a_recurrence_has_one_definition(app: Any, recurrence: Any) -> None:
    assert of(app, recurrence) == {"recurrence": PARIS, "task": "app.report"}


@pytest.mark.parametrize("every", [300, 300.0, timedelta(minutes=5), schedule(300), Interval(300_000)])
def test_an_interval_counts_from_1970_wherever_it_is_created(app: Any, every: Any) -> None:
    interval = {"kind": "recurrence", "spec": {"kind": "interval", "every_ms": 300_000}}
    assert of(app, every, zone="UTC")["recurrence"] == interval


def test_an_interval_counts_from_its_start(app: Any) -> None:
    spec = of(app, 300, start=MONDAY + timedelta(seconds=7))["recurrence"]["spec"]
    assert spec["anchor_ms"] % 300_000 == 7_000


def test_a_definition_has_all_values_in_milliseconds_and_no_defaults(app: Any) -> None:
    found = of(
        app,
        Crontab("0", "9"),
        args=(1,),
        kwargs={"a": [2]},
        zone="UTC",
        gap="shift",
        start=MONDAY,
        times=3,
        without=Weekdays(("sun",)),
        catch_up="all",
        catch_up_window=timedelta(hours=1),
        overlap="allow",
        max_runtime=1.5,
        jitter=60,
        jitter_by="name",
        queue="mail",
        expires=timedelta(minutes=1),
    )
    assert found == {
        "recurrence": {
            "kind": "recurrence",
            "spec": NINE,
            "start_ms": int(MONDAY.timestamp()) * 1_000,
            "times": 3,
            "without": {"kind": "weekdays", "days": ["sun"]},
        },
        "task": "app.report",
        "args": [1],
        "kwargs": {"a": [2]},
        "catch_up": "all",
        "catch_up_ms": 3_600_000,
        "max_runtime_ms": 1_500,
        "jitter_ms": 60_000,
        "jitter_by": "name",
        "options": {"queue": "mail", "expires": 60.0},
    }


def test_a_patch_has_the_given_values_and_none_removes_a_value(app: Any) -> None:
    text = (
        '{"recurrence":{"kind":"recurrence","spec":{"kind":"solar"},"zone":"Asia/Tokyo","times":3},"task":"a",'
        '"args":[1],"options":{"queue":"mail","priority":3},"overlap":"skip"}'
    )
    patch = patch_of(app, {"recurrence": Crontab("0", "9"), "times": None, "queue": None, "overlap": None, "args": ()})
    assert patched(text, patch) == {
        "recurrence": {"kind": "recurrence", "spec": NINE, "zone": "Asia/Tokyo"},
        "task": "a",
        "options": {"priority": 3},
    }
    whole = patched(text, patch_of(app, {"recurrence": Recurrence(Crontab("0", "9"))}))
    assert whole["recurrence"] == {"kind": "recurrence", "spec": NINE}


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"recurrence": None}, TypeError, "a schedule must have a recurrence, got None"),
        ({"recurrence": "0 9 * * *"}, TypeError, "recurrence must be a Recurrence, a spec like"),
        ({"recurrence": True}, TypeError, "recurrence must be a Recurrence"),
        ({"recurrence": 0}, RecurrenceError, "^recurrence must be at least 1 ms, got 0 ms$"),
        ({"recurrence": -1}, ArgumentError, "recurrence must be 0 s or more"),
        ({"recurrence": math.nan}, ArgumentError, "recurrence must be 0 s or more"),
        ({"recurrence": Market(300)}, ArgumentError, "which decides by itself when it is due"),
        ({"recurrence": {"kind": "crontab", "hour": "25"}}, RecurrenceError, "hour must be a crontab field"),
        ({"zone": "Mars/Olympus"}, RecurrenceError, "zone must be a time zone"),
        ({"start": datetime(2026, 1, 1)}, ArgumentError, "start must be a datetime with a time zone"),  # noqa: DTZ001
        ({"start": "2026-01-01"}, TypeError, "start must be a datetime, got '2026-01-01'"),
        ({"until": datetime(1960, 1, 1, tzinfo=UTC)}, ArgumentError, "until must be from 1970"),
        ({"start": MONDAY, "until": MONDAY - timedelta(1)}, RecurrenceError, "^until must be at or after the start"),
        ({"task": ""}, RecurrenceError, "task must be a text like 'app.report', got ''"),
        ({"args": [b"x"]}, RecurrenceError, "args must be values of JSON"),
        ({"kwargs": {"at": MONDAY}}, RecurrenceError, "kwargs must be values of JSON"),
        ({"kwargs": {"n": math.inf}}, RecurrenceError, "kwargs must be values of JSON"),
        ({"args": 7}, ArgumentError, r"args must be a list like \[1\], got 7"),
        ({"args": "text"}, ArgumentError, r"args must be a list like \[1\], got 'text'"),
        ({"kwargs": [1]}, ArgumentError, "kwargs must be an object like"),
        ({"catch_up": "all"}, RecurrenceError, '^catch_up_window must be given with the catch_up "all"'),
        ({"catch_up_window": 90}, RecurrenceError, "^catch_up_window must be given with .*, got '1 min 30 s'$"),
        ({"catch_up": "all", "catch_up_window": 0}, RecurrenceError, "^catch_up_window must be at least 1 ms, got 0"),
        ({"max_runtime": 0}, RecurrenceError, "^max_runtime must be at least 1 ms, got 0 ms$"),
        ({"jitter": timedelta(days=8)}, RecurrenceError, "^jitter must be at most 7 d, got 8 d$"),
        ({"priority": 300}, RecurrenceError, "^priority must be a whole number of at least 0"),
        ({"until": MONDAY, "recurrence": AFTER_MONDAY}, RecurrenceError, "^recurrence must be a rule"),
        ({"max_runtime": "1h"}, TypeError, "max_runtime must be a number of seconds"),
        ({"overlap": "wait"}, RecurrenceError, "overlap must be one of allow, skip, queue_one, cancel_running"),
        ({"quue": "mail"}, RecurrenceError, "^quue must be an option of a schedule"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(app: Any, values: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        definition_of(app, {"recurrence": Crontab("0", "9"), "task": "app.report", **values})


BROKEN = '{"task": "report", "overlap": "skip", "max_runtime_ms": 4611686018427387904, "jitter_ms": -1}'


@pytest.mark.parametrize("far_ms", [-(2**62), 2**63 - 1])
def test_a_value_outside_of_time_keeps_no_schedule_from_being_shown(far_ms: int) -> None:
    found = schedule_view(Schedule(1, "report", BROKEN, "api", 1, far_ms, 0, far_ms, since_ms=far_ms))
    at = datetime(1970 if far_ms < 0 else 9999, 1, 1, tzinfo=UTC)
    assert (found.next_at, found.last_at, found.since) == (at, at, at)
    assert (found.recurrence, found.policies) == (None, {"overlap": "skip"})


@pytest.mark.parametrize("before", ["no json", "{}", "[]", '{"name": "report", "next_ms": "soon"}'])
def test_a_revision_that_cannot_be_read_keeps_no_history_from_being_shown(before: str) -> None:
    change = Revision(1, 2, "report", "paused", "ann", "", 1_000, before)
    [found] = history_view(ScheduleDetail(None, [change], [], [])).revisions
    assert (found.number, found.actor) == (2, "ann")
    assert found.before is not None
    assert found.before.broken
    assert found.before.note.startswith("the revision has no schedule that can be read: ")
