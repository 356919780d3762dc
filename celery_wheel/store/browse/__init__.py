"""What people ask of a store: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

::

    pages     what is pending, what left, what was set aside, the settlements   keyset pages, each a range of an index
    detail    one message with its bytes, and what became of it
    heads     of many tasks at once: rows by their ids, which tasks wait, and their headers without bodies
    sources   what a page is merged from
    overview  counts by hour, queue and task; who is at work; what is next      from the tally, never by counting rows

It reads, while schedulers write, and waits for nobody: a page and a message are of one moment, and a short one. No
question here reads more than about ``pages.SCAN`` messages, however many wait.
"""

from celery_wheel.store.browse.detail import Detail, detail, find
from celery_wheel.store.browse.heads import Head, heads, tasks, waiting_of
from celery_wheel.store.browse.overview import (
    Due,
    DueBy,
    Names,
    due_by_hour,
    due_by_name,
    names,
    next_due,
    schedulers,
    waiting,
)
from celery_wheel.store.browse.pages import END, Criteria, batches, dispatched, outcomes, pending
from celery_wheel.store.browse.rows import Settled, Stopped, Task
from celery_wheel.store.browse.sources import Page, Placed

__all__ = [
    "END",
    "Criteria",
    "Detail",
    "Due",
    "DueBy",
    "Head",
    "Names",
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
    "heads",
    "names",
    "next_due",
    "outcomes",
    "pending",
    "schedulers",
    "tasks",
    "waiting",
    "waiting_of",
]
