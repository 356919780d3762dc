"""The task: one reminder. It writes down that it ran, and when."""

import time

from celery import Task, shared_task

from flights.models import Execution


@shared_task(bind=True)
def remind(self: Task, flight: str) -> None:
    """Tell the passenger that ``flight`` leaves soon."""
    Execution.objects.create(task_id=self.request.id, executed_at_ms=time.time_ns() // 1_000_000)
