"""``Browse`` of a SQL store.

::

    pages     what is pending, what left, what was set aside, the settlements   keyset pages, each a range of an index
    detail    one message with its bytes, and what became of it
    heads     of many tasks at once: rows by their ids, which tasks wait, and their headers without bodies
    sources   what a page is merged from
    overview  counts by hour, queue and task; who is at work; what is next      from the tally, never by counting rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_wheel.store.browse.detail import Details
from celery_wheel.store.browse.heads import Heads
from celery_wheel.store.browse.overview import Overview
from celery_wheel.store.browse.pages import Pages

if TYPE_CHECKING:
    from celery_wheel.store.sql import SqlStore


class SqlBrowse(Pages, Details, Heads, Overview):
    """Implements ``celery_wheel.store.ports.Browse``."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._database = store.database
