"""Queries of the example to the wheel: pending and dispatched reminders, with their lateness.

They read the store, which outlives the scheduler; the figures of ``celery wheel status`` count from the start of the
present holder.
"""

from celery_wheel.errors import StoreUnusable
from celery_wheel.store.ports.pages import Task
from django_wheel.project import project_wheel

REMIND = "flights.tasks.remind"


def dispatched_since(since_ms: int) -> int | None:
    """Return the number of tasks dispatched since an instant; None while there is no store."""
    try:
        return project_wheel().store.browse.dispatched_since(since_ms)
    except StoreUnusable:
        return None


def next_reminders(limit: int) -> list[Task]:
    """Return the pending reminders that are due next."""
    try:
        return project_wheel().pending(limit=limit, task=REMIND).items
    except StoreUnusable:
        return []


def last_reminders(limit: int) -> list[Task]:
    """Return the reminders that were dispatched last."""
    try:
        return project_wheel().history(limit=limit, task=REMIND).items
    except StoreUnusable:
        return []
