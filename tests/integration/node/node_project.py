"""The project whose scheduler and workers the tests command."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery.signals import task_revoked

from celery_wheel import Celery

app = Celery("node_project", broker=os.environ["NODE_BROKER"], backend=os.environ["NODE_BACKEND"])
app.conf.update(
    {
        "beat_scheduler": "wheel",
        "beat_schedule_filename": os.environ["NODE_FOLDER"] + "/celerybeat-schedule",
        **json.loads(os.environ.get("NODE_SETTINGS", "{}")),
    }
)


def note(where: str, what: str) -> None:
    """Where the tests look."""
    with redis.Redis.from_url(os.environ["NODE_BACKEND"]) as client:
        client.rpush(where, what)


@task_revoked.connect
def on_revoked(sender: Any = None, request: Any = None, **given: Any) -> None:
    note("signals", json.dumps([sender.name, request.id, given["terminated"], given["signum"], given["expired"]]))


@app.task(name="mark", bind=True, shared=False)
def mark(self: Any, *args: object) -> str:
    note("marks", self.request.id)
    return "ran"


@app.task(name="silent", ignore_result=True, shared=False)
def silent() -> None: ...


@app.task(name="finish", shared=False)
def finish(results: list[str]) -> list[str]:
    note("finished", json.dumps(results))
    return results
