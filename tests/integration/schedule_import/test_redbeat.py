"""Entries that celery-redbeat itself has stored."""

import json
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from celery_wheel.errors import SettingError
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions
from celery_wheel.recurring import from_json
from tests.kit.servers.redis import RedisServer

NOW = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedules import rrule


@pytest.fixture
def app(redis_server: RedisServer) -> Iterator[Celery]:
    app = Celery("shop", broker=redis_server.url, set_as_current=False)
    app.conf.update(timezone="Europe/Paris", redbeat_redis_url=redis_server.url, redbeat_key_prefix="beat[1]:")
    yield app
    if (connection := getattr(app, "redbeat_redis", None)) is not None:
        connection.close()
    app.close()


def save(app: Celery, name: str, every: Any, **fields: Any) -> Any:
    return RedBeatSchedulerEntry(name, fields.pop("task", "app.report"), every, app=app, **fields).save()


def read(app: Celery, **options: Any) -> dict[str, ForeignSchedule]:
    return {one.name: one for one in READERS["redbeat"](ImportOptions(app, **options))}


def preview(one: ForeignSchedule, count: int) -> list[datetime]:
    assert one.definition is not None, one.reason
    found = from_json(one.definition["recurrence"]).preview(NOW_MS, count)  # type: ignore[union-attr]
    return [datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in found]


def test_entries_have_their_instants_arguments_and_options(app: Celery) -> None:
    last = NOW - timedelta(seconds=100)
    entry = save(app, "interval", schedule(90, app=app), args=[1], kwargs={"a": "b"}, options={"queue": "mail"})
    entry._next_instance(last_run_at=last)
    save(app, "cron", crontab(minute="30", hour="2", day_of_week="mon-fri", app=app), enabled=False)
    save(
        app,
        "weekly",
        rrule("WEEKLY", dtstart=NOW, byweekday=[0, 3], byhour=9, byminute=0, bysecond=0, count=3, app=app),
    )
    found = read(app)
    assert preview(found["interval"], 2) == [last + timedelta(seconds=180), last + timedelta(seconds=270)]
    assert found["interval"].definition is not None
    assert {name: found["interval"].definition[name] for name in ("task", "args", "kwargs", "options")} == {
        "task": "app.report",
        "args": [1],
        "kwargs": {"a": "b"},
        "options": {"queue": "mail"},
    }
    assert (found["interval"].paused, found["cron"].paused) == (False, True)
    assert preview(found["cron"], 1) == [datetime(2027, 3, 2, 1, 30, tzinfo=UTC)]
    expected = [datetime(2027, 3, day, 9, tzinfo=UTC) for day in (4, 8, 11)]
    assert preview(found["weekly"], 9) == expected
    oracle = rrule("WEEKLY", dtstart=NOW, byweekday=[0, 3], byhour=9, byminute=0, bysecond=0, count=3, app=app)
    assert [at.astimezone(UTC) for at in oracle.rrule] == expected


def test_an_entry_that_cannot_be_imported_has_the_reason(app: Celery, redis_server: RedisServer) -> None:
    from redbeat.schedulers import get_redis

    save(app, "good", schedule(60, app=app))
    client = get_redis(app)
    for name, definition in {
        "text": "no json",
        "list": "[]",
        "no task": json.dumps({"schedule": {"__type__": "interval", "every": 5, "relative": False}}),
        "own": json.dumps({"task": "t", "schedule": {"__type__": "moon"}}),
        "easter": json.dumps({"task": "t", "schedule": {"__type__": "rrule", "freq": 0, "byeaster": [1]}}),
        "zero": json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 0}}),
        "expires": json.dumps(
            {
                "task": "t",
                "schedule": {"__type__": "interval", "every": 5},
                "options": {"expires": {"__type__": "datetime"}},
            }
        ),
    }.items():
        client.hset(f"beat[1]:{name}", "definition", definition)
    found = read(app)
    reasons = {name: one.reason for name, one in found.items() if one.definition is None}
    assert set(found) - set(reasons) == {"good"}
    assert "cannot be read" in reasons["text"]
    assert "cannot be read" in reasons["no task"]
    assert "only its application knows: 'moon'" in reasons["own"]
    assert "byeaster" in reasons["easter"]
    assert "cannot be computed" in reasons["zero"]
    assert reasons["expires"].startswith("options.expires must be")


def test_a_redis_that_does_not_answer_is_named(app: Celery) -> None:
    with pytest.raises(SettingError, match=r"redis://127\.0\.0\.1:1/0 must answer"):
        read(app, url="redis://127.0.0.1:1/0")
    with pytest.raises(SettingError, match="must be the URL of a Redis"):
        read(app, url="mysql://x")


def test_a_kind_that_redbeat_itself_cannot_store_needs_no_import(app: Celery) -> None:
    with pytest.raises(TypeError):
        save(app, "sun", solar("sunset", 48.8, 2.3, app=app))
