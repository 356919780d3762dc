"""Included by a project's worker: a note of each run of a task, whatever its kind, and a task that is tried again.

A note is a line of JSON in the file that ``ADOPT_NOTES`` names.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Task, shared_task
from celery.signals import task_prerun

#: Seconds between the two tries.
RETRY_S = 3


@task_prerun.connect
def note(task_id: str, task: Task, **_: Any) -> None:
    line = {"id": task_id, "task": task.name, "retries": task.request.retries, "at_ms": time.time_ns() // 1_000_000}
    with open(os.environ["ADOPT_NOTES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@shared_task(bind=True, name="adopt.try_twice", max_retries=1)
def try_twice(self: Task) -> None:
    if not self.request.retries:
        raise self.retry(countdown=RETRY_S)
