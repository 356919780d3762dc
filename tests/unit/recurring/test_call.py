"""``check_call``: a valid call is kept, an invalid value is refused by its path."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import ScheduledCall, check_call
from celery_wheel.values.text import END_OF_TIME_MS

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
    with pytest.raises(RecurrenceError) as caught:
        check_call({"task": "app.report", **document})
    assert str(caught.value).startswith(path)


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
