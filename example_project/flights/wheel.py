"""What the example asks of the wheel itself: what waits in it, what has left, and how late that was.

It reads the store's own records, which outlive the scheduler; the figures in ``celery wheel status`` count from the
start of the present holder.
"""

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.ports.pages import Task
from django_wheel.project import project_wheel

REMIND = "flights.tasks.remind"


def dispatched_since(since_ms: int) -> int | None:
    """Tasks that left the wheel since that instant; None while there is no store."""
    try:
        return project_wheel().store.browse.dispatched_since(since_ms)
    except StoreUnusable:
        return None


def waiting(limit: int) -> list[Task]:
    """The reminders that leave next."""
    try:
        return project_wheel().pending(limit=limit, task=REMIND).items
    except StoreUnusable:
        return []


def left(limit: int) -> list[Task]:
    """The reminders that left last."""
    try:
        return project_wheel().history(limit=limit, task=REMIND).items
    except StoreUnusable:
        return []
