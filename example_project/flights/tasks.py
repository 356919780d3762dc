"""The tasks: a reminder and a departure, which write down that they ran, and when; the end of an order nobody pays."""

import time

from celery import Task, shared_task

from flights.models import Execution, Order


@shared_task(bind=True)
def remind(self: Task, flight: str) -> None:
    """Tell the passenger that ``flight`` leaves soon."""
    _note(self)


@shared_task(bind=True)
def depart(self: Task, flight: str) -> None:
    """Close the gate: ``flight`` leaves."""
    _note(self)


@shared_task
def cancel_unless_paid(order: int) -> None:
    """Its time is over. Who pays first keeps this from running at all."""
    Order.objects.filter(pk=order, state=Order.State.OPEN).update(state=Order.State.CANCELLED)


def _note(task: Task) -> None:
    Execution.objects.create(task_id=task.request.id, executed_at_ms=time.time_ns() // 1_000_000)
