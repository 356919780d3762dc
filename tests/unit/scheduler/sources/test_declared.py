"""Schedules that tasks declare by the option ``wheel_schedule``."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab

from celery_wheel import Celery
from celery_wheel.recurring import Crontab
from celery_wheel.scheduler.sources.beat_entries import declared_entries

NINE = {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0", "hour": "9"}}


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", set_as_current=False)


def declare(app: Any, name: str, value: Any) -> None:
    @app.task(name=name, shared=False, wheel_schedule=value)
    def task() -> None: ...


def documents(app: Any) -> dict[str, dict[str, Any]]:
    return {name: entry.document for name, entry in declared_entries(app).items()}


@pytest.mark.parametrize(
    "value", [Crontab("0", "9"), crontab("0", "9"), NINE["spec"], {"recurrence": Crontab("0", "9")}]
)
def test_a_schedule_has_the_name_of_its_task(app: Any, value: Any) -> None:
    declare(app, "app.report", value)
    assert documents(app) == {"app.report": {"recurrence": NINE, "task": "app.report"}}


def test_a_task_may_declare_several_schedules(app: Any) -> None:
    nightly = {"name": "nightly", "recurrence": Crontab("0", "9"), "zone": "Asia/Tokyo", "queue": "mail", "args": [1]}
    declare(app, "app.report", [nightly, 60])
    found = documents(app)
    assert found["nightly"] == {
        "recurrence": {**NINE, "zone": "Asia/Tokyo"},
        "task": "app.report",
        "args": [1],
        "options": {"queue": "mail"},
    }
    assert found["app.report"]["recurrence"]["spec"] == {"kind": "interval", "every_ms": 60_000}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"recurrence": Crontab("0", "9"), "zone": "Mars"}, "zone must be a time zone"),
        ({"zone": "Asia/Tokyo"}, "a schedule must have a recurrence, got None"),
        ("0 9 * * *", "recurrence must be a Recurrence, a spec like"),
        ({"name": "\0", "recurrence": 60}, "name must be without NUL characters"),
        ({"recurrence": 60, "quue": "mail"}, "quue must be an option of a schedule"),
    ],
)
def test_a_wrong_declaration_is_broken_and_no_other_suffers(app: Any, value: Any, reason: str) -> None:
    declare(app, "app.report", value)
    declare(app, "app.other", 60)
    found = documents(app)
    assert found["app.report"]["task"] == "app.report"
    assert found["app.report"]["broken"].startswith(f"wheel_schedule of app.report: {reason}")
    assert found["app.other"]["recurrence"]


def test_a_second_schedule_with_the_same_name_is_broken(app: Any) -> None:
    declare(app, "app.a", {"name": "nightly", "recurrence": 60})
    declare(app, "app.b", {"name": "nightly", "recurrence": 60})
    found = documents(app)
    assert found["nightly"]["task"] == "app.a"
    assert found["app.b 2"] == {"task": "app.b", "broken": "another task declares 'nightly'"}
