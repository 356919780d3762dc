"""The tasks: reminders and departures, which record their execution; the cancelling of unpaid orders; and reports."""

import time

from celery import Task, shared_task
from celery.utils.log import get_task_logger

from flights.models import Execution, Notice, Order

logger = get_task_logger(__name__)

POSITIONS_TAKE_S = 3
NOTICE_TAKES_S = 0.02


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


@shared_task
def notify(notice: int) -> None:
    """Send a notice to a passenger, which takes a while."""
    time.sleep(NOTICE_TAKES_S)
    Notice.objects.filter(pk=notice).update(ran_at_ms=time.time_ns() // 1_000_000)


@shared_task(bind=True)
def send_report(self: Task, office: str) -> None:
    """Send the report of an office; the schedule says for which instant."""
    logger.info("report of %s for %s", office, self.request.wheel.scheduled_for if self.request.wheel else "now")


@shared_task
def note_positions() -> None:
    """Note where the fleet is, which takes longer than until the next time."""
    time.sleep(POSITIONS_TAKE_S)


def _record(task: Task) -> None:
    Execution.objects.create(task_id=task.request.id, executed_at_ms=time.time_ns() // 1_000_000)
