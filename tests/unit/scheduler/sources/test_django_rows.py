"""Rows of django-celery-beat as definitions; the rows are tuples, and no database is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.sources.django_rows import TaskColumns, at_ms, entry_of_row, is_over

NOON = datetime(2030, 11, 20, 12, tzinfo=UTC)
NOON_MS = at_ms(NOON)
HOUR = timedelta(hours=1)

INTERVAL = {"interval_id": 1, "interval__every": 10, "interval__period": "minutes"}
CRONTAB = {
    "crontab_id": 1,
    "crontab__minute": "30",
    "crontab__hour": "9",
    "crontab__day_of_week": "*",
    "crontab__day_of_month": "*",
    "crontab__month_of_year": "*",
    "zone": "America/New_York",
}
SOLAR = {"solar_id": 1, "solar__event": "sunrise", "solar__latitude": 48.85, "solar__longitude": 2.35}
CLOCKED = {"clocked_id": 1, "clocked__clocked_time": NOON + HOUR, "one_off": True}


def row(**values: Any) -> TaskColumns:
    plain: dict[str, Any] = {
        **dict.fromkeys(TaskColumns._fields),
        "pk": 1,
        "name": "report",
        "task": "app.report",
        "enabled": True,
        "args": "[]",
        "kwargs": "{}",
        "headers": "{}",
        "one_off": False,
        "total_run_count": 0,
        "date_changed": NOON,
    }
    return TaskColumns(**{**plain, **values})


def instants(found: Any, n: int = 3) -> list[str]:
    recurrence = read_definition(to_text(found.document)).recurrence
    times = (datetime.fromtimestamp(at / 1_000, UTC) for at in recurrence.preview(found.after_ms, n))
    return [f"{at:%d %H:%M}" for at in times]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (INTERVAL, ["20 12:10", "20 12:20", "20 12:30"]),
        ({**INTERVAL, "last_run_at": NOON - timedelta(minutes=3)}, ["20 12:07", "20 12:17", "20 12:27"]),
        ({**INTERVAL, "start_time": NOON + HOUR}, ["20 13:00", "20 13:10", "20 13:20"]),
        ({**INTERVAL, "expires": NOON + timedelta(minutes=20)}, ["20 12:10"]),
        ({**INTERVAL, "one_off": True}, ["20 12:10"]),
        (CRONTAB, ["20 14:30", "21 14:30", "22 14:30"]),
        ({**CRONTAB, "crontab__minute": "0, 30"}, ["20 14:00", "20 14:30", "21 14:00"]),
        ({**CRONTAB, "start_time": NOON - 72 * HOUR}, ["17 14:30", "18 14:30", "19 14:30"]),
        ({**CRONTAB, "start_time": NOON - 72 * HOUR, "last_run_at": NOON - HOUR}, ["20 14:30", "21 14:30", "22 14:30"]),
        (SOLAR, ["21 07:08", "22 07:10", "23 07:11"]),
        (CLOCKED, ["20 13:00"]),
        ({**CLOCKED, "clocked__clocked_time": NOON - HOUR}, ["20 11:00"]),
    ],
)
def test_each_kind_of_schedule_runs_at_its_instants(values: dict[str, Any], expected: list[str]) -> None:
    assert instants(entry_of_row(row(**values), None)) == expected


def test_the_zone_of_the_app_counts_where_the_project_says_so() -> None:
    assert instants(entry_of_row(row(**CRONTAB), "Asia/Tokyo"), 1) == ["21 00:30"]


def test_all_options_of_a_row_are_in_its_definition() -> None:
    values = {
        "queue": "mail",
        "exchange": "mails",
        "routing_key": "mail.out",
        "priority": 0,
        "expire_seconds": 90,
        "headers": '{"tenant": "acme"}',
        "args": '[1, {"__type__": "uuid", "__value__": {"hex": "0"}}]',
        "kwargs": '{"x": null}',
    }
    found = read_definition(to_text(entry_of_row(row(**INTERVAL, **values), None).document)).call
    assert found.args == [1, {"__type__": "uuid", "__value__": {"hex": "0"}}], "kombu's own JSON stays as it is"
    assert found.kwargs == {"x": None}
    assert found.options == {
        "queue": "mail",
        "exchange": "mails",
        "routing_key": "mail.out",
        "priority": 0,
        "expires": 90,
        "headers": {"tenant": "acme", "periodic_task_name": "report", "celery_beat_task": True},
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "the row must be one with exactly one of interval, crontab, solar, clocked"),
        ({**INTERVAL, **CRONTAB}, "the row must be one with exactly one of"),
        ({**INTERVAL, "args": "[1,"}, "args must be JSON like"),
        ({**INTERVAL, "args": "{}"}, "args must be JSON like"),
        ({**INTERVAL, "kwargs": "[" * 100_000}, "kwargs must be JSON like"),
        ({**INTERVAL, "headers": "[]"}, "headers must be JSON like"),
        ({**INTERVAL, "headers": '{"wheel": 1}'}, "options.headers.wheel must be a header other than"),
        ({**INTERVAL, "interval__every": 0}, "interval must be a millisecond or longer"),
        ({**INTERVAL, "interval__period": "fortnights"}, "interval must be a millisecond or longer"),
        ({**INTERVAL, "priority": 256}, "options.priority must be"),
        ({**INTERVAL, "task": ""}, "task must be"),
        ({**INTERVAL, "date_changed": None}, "the row cannot be read"),
        ({**CRONTAB, "crontab__hour": "25"}, "hour must be a crontab field of 0 to 23"),
        ({**CRONTAB, "crontab__month_of_year": "2", "crontab__day_of_month": "30"}, "day_of_month must be"),
        ({**CRONTAB, "zone": "Atlantis/Capital"}, "zone must be a time zone"),
        ({**SOLAR, "solar__event": "moonrise"}, "event must be one of"),
        ({**SOLAR, "solar__latitude": None}, "the row cannot be read"),
    ],
)
def test_a_row_that_cannot_be_read_is_broken_with_the_reason(values: dict[str, Any], reason: str) -> None:
    found = entry_of_row(row(**values), None)
    assert found.document["broken"].startswith(reason)
    to_text(found.document)


def test_a_row_has_ended_where_django_celery_beat_would_disable_it() -> None:
    assert is_over(row(**INTERVAL, one_off=True, total_run_count=1), NOON_MS)
    assert not is_over(row(**INTERVAL, total_run_count=1), NOON_MS)
    assert is_over(row(**INTERVAL, expires=NOON), NOON_MS)
    assert not is_over(row(**INTERVAL, expires=NOON + HOUR), NOON_MS)


def test_null_is_no_arguments_as_celery_reads_it() -> None:
    found = entry_of_row(row(**INTERVAL, args="null", kwargs="null"), None).document
    assert found.keys() == {"recurrence", "task", "options"}


def test_a_naive_time_is_read_as_utc() -> None:
    assert at_ms(NOON.replace(tzinfo=None)) == NOON_MS
