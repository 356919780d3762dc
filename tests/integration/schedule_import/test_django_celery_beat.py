"""Rows of django-celery-beat's tables, which a Django project of their own has: it imports them in its own process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_wheel.errors import SettingError
from celery_wheel.operations.schedule_import import READERS, ImportOptions

SCRIPT = """
import json, sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, TIME_ZONE="UTC",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
)
import django
django.setup()
from celery import Celery
from celery_wheel.errors import SettingError
from celery_wheel.operations.schedule_import import READERS, ImportOptions
app = Celery("shop", set_as_current=False)
def read():
    return {one.name: one for one in READERS["django-celery-beat"](ImportOptions(app))}
try:
    read()
except SettingError as error:
    no_tables = str(error)
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import *
from celery_wheel.recurring import from_json
noon = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
paris = CrontabSchedule.objects.create(minute="30", hour="2", day_of_week="1-5", timezone=ZoneInfo("Europe/Paris"))
every = IntervalSchedule.objects.create(every=90, period="seconds")
def add(name, **fields):
    return PeriodicTask.objects.create(name=name, task="app.report", **fields)
row = add("interval", interval=every, args="[1]", kwargs='{"a": 2}', queue="mail", priority=3, expire_seconds=60,
          headers='{"tenant": "acme"}', last_run_at=noon - timedelta(seconds=30))
add("crontab", crontab=paris, enabled=False)
add("clocked", clocked=ClockedSchedule.objects.create(clocked_time=noon + timedelta(days=1)), one_off=True)
add("solar", solar=SolarSchedule.objects.create(event="sunset", latitude=48.85, longitude=2.35))
add("limited", interval=every, start_time=noon, expires=noon + timedelta(minutes=4))
add("one-off", interval=every, start_time=noon, one_off=True)
bad = add("bad json", interval=every)
PeriodicTask.objects.filter(pk=bad.pk).update(args="[")
empty = add("no schedule", interval=every)
PeriodicTask.objects.filter(pk=empty.pk).update(interval=None)
noon_ms = int(noon.timestamp() * 1000)
found = read()
print(json.dumps({
    "no_tables": no_tables,
    "definitions": {name: one.definition for name, one in found.items()},
    "reasons": {name: one.reason for name, one in found.items() if one.definition is None},
    "paused": [name for name, one in found.items() if one.paused],
    "instants": {name: [at - noon_ms for at in from_json(one.definition["recurrence"]).preview(noon_ms - 1, 3)]
                 for name, one in found.items() if one.definition is not None},
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("project") / "db.sqlite3"
    said = subprocess.run([sys.executable, "-c", SCRIPT, str(file)], capture_output=True, text=True, cwd=Path.cwd())
    assert said.returncode == 0, said.stderr
    result: dict[str, Any] = json.loads(said.stdout)
    return result


def test_rows_have_their_instants(found: dict[str, Any]) -> None:
    hour = 3_600_000
    instants = found["instants"]
    assert instants["interval"] == [60_000, 150_000, 240_000]
    assert instants["crontab"][0] == 13 * hour + hour // 2  # 02:30 in Paris, the next day
    assert instants["clocked"] == [24 * hour]
    assert instants["limited"] == [0, 90_000, 180_000]
    assert instants["one-off"] == [0]
    assert 5 * hour < instants["solar"][0] < 6 * hour


def test_rows_have_their_arguments_and_options(found: dict[str, Any]) -> None:
    definition = found["definitions"]["interval"]
    assert {name: definition[name] for name in ("task", "args", "kwargs", "options")} == {
        "task": "app.report",
        "args": [1],
        "kwargs": {"a": 2},
        "options": {
            "queue": "mail",
            "priority": 3,
            "expires": 60,
            "headers": {"tenant": "acme", "periodic_task_name": "interval", "celery_beat_task": True},
        },
    }
    assert found["paused"] == ["crontab"]


def test_a_row_that_cannot_be_imported_has_the_reason(found: dict[str, Any]) -> None:
    assert found["reasons"].keys() == {"bad json", "no schedule"}
    assert "must be JSON" in found["reasons"]["bad json"]
    assert "exactly one of interval, crontab" in found["reasons"]["no schedule"]
    assert "manage.py migrate" in found["no_tables"]


def test_a_project_without_its_app_is_told_so() -> None:
    with pytest.raises(SettingError, match="INSTALLED_APPS must have django_celery_beat"):
        list(READERS["django-celery-beat"](ImportOptions(Celery("shop", set_as_current=False))))
