"""A project as a user would write it, loaded by a real worker, a real beat and the tests.

Every task leaves a note of how it was run in the Redis list ``notes``: what arrived, and when.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Task
from kombu import Exchange, Queue

from celery_wheel import Celery

NOTES = "notes"
NEWS = Exchange("news", "topic")
TOPIC_QUEUES = [Queue("world", NEWS, "news.world.#"), Queue("anything", NEWS, "news.#")]


def settings(broker: str, store: str) -> dict[str, Any]:
    return {
        "broker_url": broker,
        "result_backend": broker,
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "task_queues": [
            Queue("celery", Exchange("celery"), "celery"),
            Queue("emails", Exchange("emails"), "emails"),
            *TOPIC_QUEUES,
        ],
        "wheel_store": f"sqlite:///{store}",
        "beat_schedule_filename": f"{store}.beat",
        "beat_schedule": {
            "often": {"task": "proj.note", "schedule": 1.0, "args": ["from beat"], "options": {"countdown": 0.3}},
        },
    }


def leave_note(task: Task, tag: str, **more: Any) -> None:
    request = task.request
    note = {
        "tag": tag,
        "at_ms": int(time.time() * 1000),
        "id": request.id,
        "eta": request.eta,
        "retries": request.retries,
        "headers": request.headers,
        "delivery_info": request.delivery_info,
        "timelimit": request.timelimit,
        "expires": request.expires,
        "ignore_result": request.ignore_result,
        "shadow": request.shadow,
        "stamped_headers": request.stamped_headers,
        "stamps": request.stamps,
        "group": request.group is not None,
        "is_root": request.root_id == request.id,
        "reply_to": bool(request.reply_to),
        **more,
    }
    with redis.Redis.from_url(task.app.conf.broker_url) as client:
        client.rpush(NOTES, json.dumps(note))


def add_tasks(app: Any) -> Any:
    """The project's tasks on an app; a real project has one app, the tests have one a configuration."""

    @app.task(name="proj.note", bind=True, shared=False)
    def note(self: Task, tag: str, *args: Any, **kwargs: Any) -> Any:
        leave_note(self, tag, args=args, kwargs=kwargs)
        return len(args)

    @app.task(name="proj.add", bind=True, shared=False)
    def add(self: Task, x: int, y: int, tag: str) -> int:
        leave_note(self, tag, args=[x, y])
        return x + y

    @app.task(name="proj.total", bind=True, shared=False)
    def total(self: Task, numbers: list[int], tag: str) -> int:
        leave_note(self, tag, args=numbers)
        return sum(numbers)

    @app.task(name="proj.retried", bind=True, shared=False, max_retries=5)
    def retried(self: Task, tag: str, times: int) -> str:
        leave_note(self, tag)
        if self.request.retries < times:
            raise self.retry(countdown=0.4)
        return "done"

    @app.task(
        name="proj.backing_off",
        bind=True,
        shared=False,
        autoretry_for=(KeyError,),
        retry_backoff=1,
        retry_jitter=False,
    )
    def backing_off(self: Task, tag: str) -> None:
        leave_note(self, tag)
        if self.request.retries < 1:
            raise KeyError(tag)

    @app.task(name="proj.failing", shared=False)
    def failing(tag: str) -> None:
        raise ValueError(tag)

    @app.task(name="proj.failed", bind=True, shared=False)
    def failed(self: Task, failed_id: str) -> None:
        leave_note(self, "link_error", args=[failed_id])

    return app


def make_app(broker: str, store: str = "unused", kind: Any = Celery, **others: Any) -> Any:
    app = kind("proj", set_as_current=False)
    app.conf.update({**settings(broker, store), **others})
    return add_tasks(app)


if "WHEEL_PROJECT_BROKER" in os.environ:  # in the processes of the stack
    app = make_app(os.environ["WHEEL_PROJECT_BROKER"], os.environ["WHEEL_PROJECT_STORE"])
