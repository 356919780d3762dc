"""What people ask of a store: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

::

    pages     what is pending, what left, what was set aside, the settlements   keyset pages, each a range of an index
    detail    one message with its bytes, and what became of it
    overview  counts by hour, queue and task; who is at work; what is next      from the tally, never by counting rows

It reads, while schedulers write: each statement sees what was committed before it, and waits for nobody. No question
here reads more than ``pages.SCAN`` rows of a shard's lane, however many wait.
"""

from celery_wheel.store.browse.detail import Detail, detail, find
from celery_wheel.store.browse.overview import (
    Due,
    DueBy,
    Names,
    Next,
    due_by_hour,
    due_by_name,
    names,
    next_due,
    schedulers,
)
from celery_wheel.store.browse.pages import END, Criteria, Page, Placed, batches, dispatched, outcomes, pending
from celery_wheel.store.browse.rows import Settled, Stopped, Task

__all__ = [
    "END",
    "Criteria",
    "Detail",
    "Due",
    "DueBy",
    "Names",
    "Next",
    "Page",
    "Placed",
    "Settled",
    "Stopped",
    "Task",
    "batches",
    "detail",
    "dispatched",
    "due_by_hour",
    "due_by_name",
    "find",
    "names",
    "next_due",
    "outcomes",
    "pending",
    "schedulers",
]
