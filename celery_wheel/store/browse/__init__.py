"""What people ask of a store: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

::

    pages     what is pending, what left, what was set aside, the settlements   keyset pages, each a range of an index
    detail    one message with its bytes, and what became of it
    sources   what a page is merged from
    overview  counts by hour, queue and task; who is at work; what is next      from the tally, never by counting rows

It reads, while schedulers write, and waits for nobody: a page and a message are of one moment, and a short one. No
question here reads more than about ``pages.SCAN`` messages, however many wait.
"""

from celery_wheel.store.browse.detail import Detail, detail, find
from celery_wheel.store.browse.overview import Due, Names, due_by_hour, names, next_due, schedulers, waiting
from celery_wheel.store.browse.pages import END, Criteria, batches, dispatched, outcomes, pending
from celery_wheel.store.browse.rows import Settled, Stopped, Task
from celery_wheel.store.browse.sources import Page

__all__ = [
    "END",
    "Criteria",
    "Detail",
    "Due",
    "Names",
    "Page",
    "Settled",
    "Stopped",
    "Task",
    "batches",
    "detail",
    "dispatched",
    "due_by_hour",
    "find",
    "names",
    "next_due",
    "outcomes",
    "pending",
    "schedulers",
    "waiting",
]
