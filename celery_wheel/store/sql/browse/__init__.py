"""``Browse`` of a SQL store.

::

    pages           pending and dispatched tasks, outcomes, settlements     each page a range of an index
    detail          one message with its bytes and its outcomes
    heads           many tasks by their ids, and their headers without bodies
    overview        the whole store at one moment; counts by hour, queue and task; next due times
    schedules       recurring schedules with their changes, runs and skips
    audit           the requests of people
    states          pending, in doubt, dispatched, or an outcome
    sources         the sorted sources that a page is merged from
    dispatch_times  the time of a task's dispatch, from its settlement

Their SQL is in ``celery_wheel.store.sql.queries.browse`` and ``queries.schedules``.
"""

from __future__ import annotations

from celery_wheel.store.sql.browse.audit import AuditLog
from celery_wheel.store.sql.browse.detail import Details
from celery_wheel.store.sql.browse.heads import Heads
from celery_wheel.store.sql.browse.overview import StoreCounts
from celery_wheel.store.sql.browse.pages import Pages
from celery_wheel.store.sql.browse.schedules import ScheduleViews
from celery_wheel.store.sql.catalogue import Catalogue
from celery_wheel.store.sql.database import Database


class SqlBrowse(Pages, Details, Heads, StoreCounts, ScheduleViews, AuditLog):
    """Implements ``celery_wheel.store.ports.Browse``."""

    def __init__(self, database: Database, catalogue: Catalogue, shards: int) -> None:
        self._database = database
        self._catalogue = catalogue
        self._shards = shards
