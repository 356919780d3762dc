"""Included by a project's worker: a note of each run of a task, whatever its kind.

A note is a line of JSON in the file that ``ADOPT_NOTES`` names.
"""

import json
import os
import time
from typing import Any

from celery import Task
from celery.signals import task_prerun


@task_prerun.connect
def note(task_id: str, task: Task, **_: Any) -> None:
    line = {"id": task_id, "task": task.name, "retries": task.request.retries, "at_ms": time.time_ns() // 1_000_000}
    with open(os.environ["ADOPT_NOTES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
