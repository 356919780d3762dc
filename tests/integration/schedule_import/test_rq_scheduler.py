"""Jobs that rq-scheduler has stored. ``rq_scheduler.json`` has them as its release 0.14 wrote them into a Redis.

rq-scheduler cannot be installed beside django-celery-beat: both need a package whose module is called ``crontab``.
"""

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions
from celery_wheel.recurring import from_json
from tests.kit.servers.redis import RedisServer

RECORDED = json.loads(Path(__file__).with_name("rq_scheduler.json").read_text(encoding="utf-8"))
SOON_MS = int(datetime(2027, 3, 1, 12, tzinfo=UTC).timestamp() * 1_000)


def report(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        for key, fields in RECORDED["jobs"].items():
            client.hset(key, mapping={name: b64decode(value) for name, value in fields.items()})
        client.zadd("rq:scheduler:scheduled_jobs", RECORDED["scheduled"])
        yield client


def read(server: RedisServer, **options: Any) -> dict[str, ForeignSchedule]:
    app = Celery("shop", broker=server.url, set_as_current=False)
    app.task(name="jobs.report", shared=False)(report)
    options = {"zone": RECORDED["zone"], **options}
    return {one.name: one for one in READERS["rq-scheduler"](ImportOptions(app, url=server.url, **options))}


def preview(one: ForeignSchedule, after_ms: int = 0, count: int = 9) -> list[int]:
    assert one.definition is not None, one.reason
    return from_json(one.definition["recurrence"]).preview(after_ms, count)  # type: ignore[union-attr]


def test_jobs_have_their_instants_and_arguments(redis_server: RedisServer, client: Any) -> None:
    found = read(redis_server)
    assert preview(found["interval"]) == [SOON_MS, SOON_MS + 90_000, SOON_MS + 180_000]
    assert preview(found["once"]) == [SOON_MS + 86_400_000]
    for name in ("cron", "both-days"):  # the next time that rq-scheduler itself has computed
        assert preview(found[name], RECORDED["now_ms"], 1) == [RECORDED["scheduled"][name] * 1_000]
    definition = found["interval"].definition or {}
    assert (definition["task"], definition["args"], definition["kwargs"]) == ("jobs.report", [1], {"a": [2]})
    assert "its queue of rq, low" in found["cron"].reason
    assert (found["json"].definition or {})["args"] == [5]


def test_a_pickle_that_would_run_code_is_not_opened(
    redis_server: RedisServer, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client.zadd("rq:scheduler:scheduled_jobs", {"bytes": 1, "list": 1, "meta": 1})
    client.hset("rq:job:bytes", "data", b"\x80garbage")
    client.hset("rq:job:list", "data", b"[1, 2, 3, 4]")
    client.hset("rq:job:meta", mapping={"data": b'["jobs.report", null, [], {}]', "meta": b"7"})
    found = read(redis_server)
    reasons = {name: one.reason for name, one in found.items() if one.definition is None}
    assert os.listdir(tmp_path) == []
    assert "posix.mkdir" in reasons["code"]
    assert "datetime.datetime" in reasons["object"]
    assert "--map jobs.other=<task>" in reasons["function"]
    assert "gone from Redis" in reasons["gone"]
    assert "must be a pickle" in reasons["bytes"]
    assert "a function with its arguments" in reasons["list"]
    assert "cannot be read" in reasons["meta"]
    assert set(found) - set(reasons) == {"interval", "cron", "both-days", "once", "json"}
    assert read(redis_server, tasks={"jobs.other": "jobs.report"})["function"].definition is not None
