"""The tasks: a reminder and a departure, which record their execution, and the cancelling of an unpaid order."""

import time

from celery import Task, shared_task

from flights.models import Execution, Order


@shared_task(bind=True)
def remind(self: Task, flight: str) -> None:
    """Remind the passenger that ``flight`` leaves soon."""
    _record(self)


@shared_task(bind=True)
def depart(self: Task, flight: str) -> None:
    """Close the gate of ``flight``."""
    _record(self)


@shared_task
def cancel_unless_paid(order: int) -> None:
    """Cancel an order whose time is over. A payment in time completes this task, so that it never runs."""
    Order.objects.filter(pk=order, state=Order.State.OPEN).update(state=Order.State.CANCELLED)


def _record(task: Task) -> None:
    Execution.objects.create(task_id=task.request.id, executed_at_ms=time.time_ns() // 1_000_000)
