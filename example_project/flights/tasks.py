"""The tasks: a reminder, which writes down that it ran, and when; and the end of an order that nobody pays."""

import time

from celery import Task, shared_task

from flights.models import Execution, Order


@shared_task(bind=True)
def remind(self: Task, flight: str) -> None:
    """Tell the passenger that ``flight`` leaves soon."""
    Execution.objects.create(task_id=self.request.id, executed_at_ms=time.time_ns() // 1_000_000)


@shared_task
def cancel_unless_paid(order: int) -> None:
    """Its time is over. Who pays first keeps this from running at all."""
    Order.objects.filter(pk=order, state=Order.State.OPEN).update(state=Order.State.CANCELLED)
