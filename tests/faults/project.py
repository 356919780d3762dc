"""The project that the fault tests run: a task that notes that it ran, in a file that no fault touches."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery_wheel import Celery

app = Celery("faults", broker=os.environ["FAULTS_BROKER"])
app.conf.update(
    beat_scheduler="wheel",
    beat_schedule_filename=os.environ["FAULTS_FOLDER"] + f"/celerybeat-{os.getpid()}",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    **json.loads(os.environ["FAULTS_SETTINGS"]),
)


@app.task(name="note", bind=True)
def note(self: Any, eta_ms: int) -> None:
    """One line: id, delivery, mark, when it was due and when it ran; appended in one write."""
    request = self.request
    properties = request.get("properties") or {}
    line = {
        "id": request.id,
        "delivery": str(properties.get("delivery_tag") or request.delivery_info.get("delivery_tag")),
        "again": bool((request.headers or {}).get("wheel_redelivered") or request.get("wheel_redelivered")),
        "redelivered": bool(request.delivery_info.get("redelivered")),
        "eta_ms": eta_ms,
        "ran_ms": time.time_ns() // 1_000_000,
    }
    file = os.open(os.environ["FAULTS_FOLDER"] + "/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)
