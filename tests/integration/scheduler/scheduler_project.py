"""The project whose schedulers the tests start, stop and kill."""

from __future__ import annotations

import json
import os
from typing import Any

import redis

from celery_wheel import Celery

app = Celery("scheduler_project", broker=os.environ["SCHEDULER_BROKER"])
app.conf.update(
    beat_scheduler="wheel",
    task_ignore_result=True,
    beat_schedule={"tick": {"task": "tick", "schedule": 0.5}},
    beat_schedule_filename=os.environ["SCHEDULER_FOLDER"] + "/celerybeat-schedule",
    **json.loads(os.environ.get("SCHEDULER_SETTINGS", "{}")),
)


@app.task(name="noop")
def noop(*args: object) -> None: ...


@app.task(name="mark", bind=True)
def mark(self: Any) -> None:
    """Note that it ran, where the tests look."""
    with app.pool.acquire(block=True) as connection:
        connection.default_channel.client.rpush("marks", self.request.id)


@app.task(name="tick")
def tick() -> None: ...


@app.task(name="note")
def note(number: int) -> None:
    redis.Redis.from_url(os.environ["SCHEDULER_BROKER"]).rpush("ran", number)
