"""Jobs that APScheduler itself has stored, in SQL and in Redis; its own triggers say when they run."""

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, _state

from celery_wheel.errors import SettingError
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions
from celery_wheel.recurring import from_json
from tests.kit.servers.redis import RedisServer

PARIS = ZoneInfo("Europe/Paris")
NOW = datetime(2027, 4, 5, 12, 0, tzinfo=PARIS)
START = datetime(2027, 4, 3, 7, 0, 30, tzinfo=PARIS)
#: Before the clocks go back: APScheduler 3 leaves out weekly instants of the days beside such a change.
UPTO = datetime(2027, 10, 30, tzinfo=UTC)

app = Celery("shop", set_as_current=False)


def report(*args: Any, **kwargs: Any) -> None:
    """A function that APScheduler runs, and a task of the same name."""


task = app.task(name=f"{__name__}.report", shared=False)(report)


def other() -> None: ...


CRONS = [
    {"hour": "2", "minute": "30"},
    {"day_of_week": "0"},
    {"day_of_week": "mon-fri", "hour": "8-18/3"},
    {"day_of_week": "sat,sun", "minute": "*/20", "second": "5"},
    {"day": "1,15", "month": "*/2"},
    {"day_of_week": "*/2", "hour": 4},
]


@pytest.fixture(params=["sql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sql":
        return f"sqlite:///{tmp_path}/jobs.sqlite3"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


@pytest.fixture
def jobs(url: str) -> Iterator[Any]:
    """A scheduler that stores jobs and runs none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from apscheduler.jobstores.redis import RedisJobStore
        from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
        from apscheduler.schedulers.background import BackgroundScheduler
    parts = urlsplit(url)
    if parts.scheme == "redis":
        store: Any = RedisJobStore(host=parts.hostname, port=parts.port)
    else:
        store = SQLAlchemyJobStore(url)
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=PARIS)
    scheduler.start(paused=True)
    yield scheduler
    scheduler.remove_all_jobs()  # its thread looks for due jobs once more as it ends
    scheduler.shutdown(wait=False)


def read(url: str, **options: Any) -> dict[str, ForeignSchedule]:
    options = {"trusted": True, **options}
    return {one.name: one for one in READERS["apscheduler"](ImportOptions(app, url=url, **options))}


def expected(trigger: Any, count: int) -> list[datetime]:
    found: list[datetime] = []
    previous, now = None, NOW.astimezone(UTC)
    while len(found) < count and (one := trigger.get_next_fire_time(previous, now)) is not None:
        found.append(one.astimezone(UTC))
        previous, now = one, one + timedelta(microseconds=1)
    return found


def preview(one: ForeignSchedule, count: int) -> list[datetime]:
    assert one.definition is not None, one.reason
    found = from_json(one.definition["recurrence"]).preview(int(NOW.timestamp() * 1_000), count)  # type: ignore[union-attr]
    return [datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in found]


def test_jobs_have_the_instants_of_their_triggers(jobs: Any, url: str) -> None:
    for number, fields in enumerate(CRONS):
        jobs.add_job(report, "cron", id=f"cron {number}", **fields)
    jobs.add_job(report, "interval", id="interval", minutes=7, start_date=START, end_date=NOW + timedelta(hours=1))
    jobs.add_job(report, "date", id="date", run_date=NOW + timedelta(days=2))
    triggers = {job.id: job.trigger for job in jobs.get_jobs()}
    found = read(url)
    assert found.keys() == triggers.keys()
    for name, trigger in triggers.items():
        computed, own = ([at for at in one if at < UPTO] for one in (preview(found[name], 40), expected(trigger, 40)))
        assert computed == own, name
        assert own
    assert len(preview(found["interval"], 40)) == 8


def test_jobs_have_their_arguments_and_policies(jobs: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state._tls, "current_app", app)  # the app of ``celery -A``, of which a pickle has tasks
    every = {"trigger": "interval", "minutes": 5}
    jobs.add_job(report, id="plain", args=[1], kwargs={"a": 2}, **every)
    jobs.add_job(task.delay, id="delay", args=[3], **every)
    jobs.add_job(task.apply_async, id="apply", args=[[4]], **every)
    jobs.add_job(report, id="all", misfire_grace_time=3_600, coalesce=False, max_instances=3, jitter=20, **every)
    jobs.add_job(report, id="latest", misfire_grace_time=None, coalesce=True, **every)
    jobs.add_job(report, id="paused", **every).pause()
    found = read(url)
    assert {name: one.reason for name, one in found.items()} == dict.fromkeys(found, "")
    definitions = {name: one.definition or {} for name, one in found.items()}
    assert {definition["task"] for definition in definitions.values()} == {task.name}
    args = {name: (one.get("args"), one.get("kwargs")) for name, one in definitions.items()}
    assert (args["plain"], args["delay"], args["apply"]) == (([1], {"a": 2}), ([3], None), ([4], None))
    policies = {
        name: {field: one.get(field) for field in ("catch_up", "catch_up_ms", "overlap", "jitter_ms")}
        for name, one in definitions.items()
    }
    assert policies["plain"] == {"catch_up": "none", "catch_up_ms": None, "overlap": "skip", "jitter_ms": None}
    assert policies["all"] == {"catch_up": "all", "catch_up_ms": 3_600_000, "overlap": None, "jitter_ms": 20_000}
    assert policies["latest"]["catch_up"] is None
    assert [name for name, one in found.items() if one.paused] == ["paused"]


def test_a_job_that_cannot_be_imported_has_the_reason(jobs: Any, url: str) -> None:
    from apscheduler.triggers.combining import OrTrigger
    from apscheduler.triggers.interval import IntervalTrigger

    jobs.add_job(report, OrTrigger([IntervalTrigger(minutes=1), IntervalTrigger(minutes=7)]), id="or")
    jobs.add_job(report, "cron", id="last", day="last")
    jobs.add_job(report, "cron", id="week", week="1-10")
    jobs.add_job(other, "interval", id="function", minutes=1)
    jobs.add_job(report, "interval", id="args", minutes=1, args=[START])
    reasons = {name: one.reason for name, one in read(url).items() if one.definition is None}
    assert "no counterpart: OrTrigger" in reasons["or"]
    assert "'last'" in reasons["last"]
    assert "an RRULE can say that" in reasons["week"]
    assert f"--map {__name__}:other=<task>" in reasons["function"]
    assert "must be values of JSON" in reasons["args"]
    named = read(url, tasks={f"{__name__}:other": "shop.other"})["function"].definition
    assert named["task"] == "shop.other"


def test_pickles_are_opened_only_when_the_user_trusts_them() -> None:
    with pytest.raises(SettingError, match="opening them runs code"):
        read("sqlite:///jobs.sqlite3", trusted=False)
    with pytest.raises(SettingError, match="must be named"):
        read("")
    with pytest.raises(SettingError, match="apscheduler_jobs at --url must be readable"):
        read("sqlite://")
