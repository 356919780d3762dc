"""The columns of the lines of a page."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func

from celery_wheel.store.fields import columns_of
from celery_wheel.store.ports.pages import Settled, Stopped, Task
from celery_wheel.store.schema import batch, outcome, timer

#: Where a task goes, as ``Row.target`` and the tally have it.
TARGET: ColumnElement[str] = func.coalesce(func.nullif(timer.c.queue, ""), timer.c.routing_key)


TASK_COLUMNS = columns_of(Task, timer, without=["dispatched_ms"], target=TARGET.label("target"))


STOPPED_COLUMNS = columns_of(Stopped, outcome, timer, target=TARGET.label("target"))


SETTLED_COLUMNS = columns_of(Settled, batch)
