"""Reads periodic tasks of django-celery-beat with their schedules, for the source and for the import.

A row that raises while it is read is read alone, and is a broken entry with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_wheel.recurring.celery_schedules import zone_name
from celery_wheel.scheduler.sources.django_rows import TaskColumns, entry_of_row
from celery_wheel.scheduler.sources.entry import SourceEntry, broken

#: Rows of one query.
PAGE = 2_000

_OWN = [name for name in TaskColumns._fields if name != "zone"]


@dataclass(frozen=True, slots=True)
class TableTask:
    """A row of PeriodicTask, with the entry that it is."""

    pk: int
    name: str
    enabled: bool
    entry: SourceEntry
    columns: TaskColumns | None  #: None: they cannot be read


class TaskReader:
    """Reads rows, with each its interval, crontab, solar event or clocked time. Django must be set up."""

    def __init__(self, app: Any) -> None:
        from django.conf import settings
        from django_celery_beat.models import PeriodicTask

        self.tasks = PeriodicTask._default_manager
        is_aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
        self._zone = None if is_aware else zone_name(app.timezone) or "UTC"

    def pages(self, query: Any) -> Iterator[list[TableTask]]:
        """Yield the tasks of a query by their ids, PAGE at a time."""
        after = 0
        while page := self.page(query, after):
            yield page
            after = page[-1].pk

    def page(self, query: Any, after: int) -> list[TableTask]:
        return self.read(query.filter(pk__gt=after).order_by("pk")[:PAGE])

    def read(self, query: Any) -> list[TableTask]:
        from django.db import DataError

        unreadable = (ValueError, TypeError, ArithmeticError, DataError)
        try:
            return self._read(query)
        except unreadable:
            found: list[TableTask] = []
            for pk, name, task, enabled in query.values_list("pk", "name", "task", "enabled"):
                try:
                    found += self._read(self.tasks.filter(pk=pk))
                except unreadable as error:
                    entry = broken(task, f"the row cannot be read: {error}")
                    found.append(TableTask(pk, name, bool(enabled), entry, None))
            return found

    def _read(self, query: Any) -> list[TableTask]:
        from django.db.models import CharField
        from django.db.models.functions import Cast

        # As text: an invalid zone does not keep the other columns from being read.
        rows = query.annotate(zone=Cast("crontab__timezone", CharField())).values_list(*_OWN, "zone")
        return [self._task(TaskColumns(*row)) for row in rows]

    def _task(self, row: TaskColumns) -> TableTask:
        return TableTask(row.pk, row.name, row.enabled, entry_of_row(row, self._zone), row)
