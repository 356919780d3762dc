"""The project of the tests of rescue and of leaving: its task notes in a file that it ran."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from kombu import Exchange, Queue

from celery_wheel import Celery

NEWS = Exchange("news", "topic")
SHOP = Exchange("shop", "direct")
QUEUES = [
    Queue("celery", Exchange("celery"), "celery"),
    Queue("sport", NEWS, "news.sport"),
    Queue("golf", NEWS, "news.golf"),
    Queue("every", NEWS, "*.golf"),
    Queue("orders", SHOP, "order"),
]


def note(name: str, request: Any, eta_ms: int) -> None:
    headers = request.headers or {}
    line = {
        "tag": name,
        "id": request.id,
        "ran_ms": time.time_ns() // 1_000_000,
        "eta_ms": eta_ms,
        "eta": request.eta,
        "again": bool(headers.get("wheel_redelivered")),
        "greeting": headers.get("greeting"),
        "queue": request.delivery_info.get("routing_key"),
        "priority": request.delivery_info.get("priority"),
        "retries": request.retries,
    }
    file = os.open(os.environ["LEAVING_FOLDER"] + "/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


if "LEAVING_BROKER" in os.environ:  # in the processes of the stack
    app = Celery("leaving", broker=os.environ["LEAVING_BROKER"])
    app.conf.update(
        beat_scheduler="wheel",
        beat_schedule_filename=os.environ["LEAVING_FOLDER"] + f"/celerybeat-{os.getpid()}",
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_queues=QUEUES,
        accept_content=["json", "pickle"],
        **json.loads(os.environ["LEAVING_SETTINGS"]),
    )

    @app.task(name="note", bind=True, max_retries=2)
    def run(self: Any, tag: str, eta_ms: int, retries: int = 0) -> None:
        note(tag, self.request, eta_ms)
        if self.request.retries < retries:
            raise self.retry(countdown=0.3)
