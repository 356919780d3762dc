"""The tables of django-celery-beat as a source: only rows that have changed are read.

::

    every look    PeriodicTasks.last_change(): one row. Unchanged: nothing else is read
    changed       1  tasks whose date_changed is of the last minute, or later     saved tasks
                  2  count and sum of the ids of the enabled tasks                deleted, enabled or disabled ones:
                     differ from what is known: all ids                             then the new ones are read
                  3  intervals, crontabs, solars, clocked rows, where they are    edited schedules: then the tasks
                     few, or where 1 and 2 have found nothing                       that refer to them are read
                  4  nothing at two looks: all tasks                              an update that only the marker shows
    at the first look, after a failure, and five minutes after a change: all tasks, PAGE at a time

The marker and date_changed are django-celery-beat's own: Django's signals set them, and code that updates rows by
queryset calls ``PeriodicTasks.update_changed()``.

Memory has a name for each enabled task. A row that raises while it is read is read alone, and shown as broken.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from celery_wheel.recurring.celery_schedules import zone_name
from celery_wheel.scheduler.sources.django_rows import TaskColumns, at_ms, entry_of_row, is_over
from celery_wheel.scheduler.sources.entry import DJANGO, EntryChanges, SourceEntry, broken

logger = logging.getLogger(__name__)

#: Rows of one query.
PAGE = 2_000

#: Ids of one condition; SQLite takes no more than 999 in old versions.
IDS = 500

#: Rows of schedules that are read at each change.
FEW = 2_000

#: A transaction that took longer than this between saving a task and its commit is found by the full read.
OVERLAP = timedelta(seconds=60)

#: Seconds from one full read to the next, if anything has changed since.
FULL_READ_S = 300.0

_OWN = [name for name in TaskColumns._fields if name != "zone"]


class DjangoSource:
    name = DJANGO

    def __init__(self, app: Any, now_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        from django.conf import settings
        from django_celery_beat import models

        self._models = models
        self._tasks = models.PeriodicTask._default_manager
        self._tables = {
            "interval": models.IntervalSchedule,
            "crontab": models.CrontabSchedule,
            "solar": models.SolarSchedule,
            "clocked": models.ClockedSchedule,
        }
        is_aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
        self._zone = None if is_aware else zone_name(app.timezone) or "UTC"
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._names: dict[int, str] = {}  #: of the enabled tasks
        self._schedules: dict[str, dict[int, int]] = {}  #: kind → id → hash of the row
        self._expiring: list[tuple[int, int]] = []  #: (expires, id), the first first
        self._finished: list[int] = []  #: ids of one-off tasks that have run, until the next look
        self._marker: Any = None
        self._is_read = self._is_followed = False
        self._full_at_s = 0.0  #: of the last full read
        self._is_changed = False  #: since the last full read
        self._is_unexplained = False  #: the marker has changed, and no row that was read

    # -- the source ------------------------------------------------------------------------------------

    def read(self) -> EntryChanges | None:
        from django.db import close_old_connections

        close_old_connections()
        marker = self._models.PeriodicTasks.last_change()
        if not self._is_read:
            return self._read_all(marker)
        before, self._marker = self._marker, marker
        changes = EntryChanges()
        self._remove(changes, self._finished)
        self._finished = []
        self._expire(changes)
        if marker != before:
            self._is_changed = True
            self._read_changed(changes, before)
            self._is_unexplained = not (changes.entries or changes.gone)
        elif self._is_unexplained or self._is_full_read_due():
            return self._read_all(marker)
        changes.gone = [name for name in changes.gone if name not in changes.entries]
        return changes if changes.entries or changes.gone else None

    def followed(self) -> None:
        self._is_followed = True

    def reset(self) -> None:
        self._is_read = False

    @property
    def is_followed(self) -> bool:
        return self._is_followed

    def finish(self, ids: list[int]) -> None:
        """Disable one-off tasks that have run."""
        self._disable(ids, total_run_count=0)
        self._finished += ids

    # -- reading ---------------------------------------------------------------------------------------

    def _is_full_read_due(self) -> bool:
        return self._is_changed and self._monotonic_s() - self._full_at_s > FULL_READ_S

    def _read_all(self, marker: Any) -> EntryChanges:
        self._names, self._expiring, self._finished = {}, [], []
        changes = EntryChanges(is_whole=True)
        last = 0
        while page := self._rows(self._enabled().filter(pk__gt=last).order_by("pk")[:PAGE]):
            self._add(changes, page)
            last = max(pk for pk, _ in page)
        self._schedules = {kind: dict(self._hashes(kind)) for kind in self._tables}
        self._marker, self._full_at_s = marker, self._monotonic_s()
        self._is_read, self._is_changed, self._is_unexplained = True, False, False
        return changes

    def _read_changed(self, changes: EntryChanges, before: Any) -> None:
        saved = self._tasks.all() if before is None else self._tasks.filter(date_changed__gte=before - OVERLAP)
        ids = list(saved.values_list("pk", "enabled"))
        self._remove(changes, [pk for pk, enabled in ids if not enabled])
        self._read_ids(changes, [pk for pk, enabled in ids if enabled])
        self._read_if_counts_differ(changes)
        known = sum(map(len, self._schedules.values()))
        if known <= FEW or not (changes.entries or changes.gone):
            self._read_of_changed_schedules(changes)

    def _read_if_counts_differ(self, changes: EntryChanges) -> None:
        from django.db.models import Count, Sum

        found = self._enabled().aggregate(count=Count("pk"), sum=Sum("pk"))
        if (found["count"], found["sum"] or 0) == (len(self._names), sum(self._names)):
            return
        ids = set(self._enabled().values_list("pk", flat=True))
        self._remove(changes, self._names.keys() - ids)
        self._read_ids(changes, ids - self._names.keys())

    def _read_of_changed_schedules(self, changes: EntryChanges) -> None:
        for kind, before in self._schedules.items():
            now = dict(self._hashes(kind))
            changed = [pk for pk, one in before.items() if now.get(pk, one) != one]
            self._schedules[kind] = now
            for part in _parts(changed):
                self._read_ids(changes, self._enabled().filter(**{f"{kind}_id__in": part}).values_list("pk", flat=True))

    def _hashes(self, kind: str) -> Iterator[tuple[int, int]]:
        from django.db.models import CharField
        from django.db.models.functions import Cast

        table = self._tables[kind]
        # As text: one value that cannot be read must not keep the others from being compared.
        columns = {f"as_{one.name}": Cast(one.name, CharField()) for one in table._meta.fields if one.name != "id"}
        rows = table._default_manager.order_by().annotate(**columns).values_list("pk", *columns)
        return ((row[0], hash(row[1:])) for row in rows.iterator(PAGE))

    def _read_ids(self, changes: EntryChanges, ids: Iterable[int]) -> None:
        for part in _parts(list(ids)):
            self._add(changes, self._rows(self._enabled().filter(pk__in=part)))

    def _enabled(self) -> Any:
        return self._tasks.filter(enabled=True)

    def _rows(self, found: Any) -> list[tuple[int, TaskColumns | SourceEntry]]:
        """Return the rows of a query by their ids; a row that raises is a broken entry."""
        from django.db import DataError
        from django.db.models import CharField
        from django.db.models.functions import Cast

        unreadable = (ValueError, TypeError, ArithmeticError, DataError)

        def values(query: Any) -> list[tuple[int, TaskColumns | SourceEntry]]:
            columns = query.annotate(zone=Cast("crontab__timezone", CharField())).values_list(*_OWN, "zone")
            return [(row[0], TaskColumns(*row)) for row in columns]

        try:
            return values(found)
        except unreadable:
            rows: list[tuple[int, TaskColumns | SourceEntry]] = []
            for pk, name, task in found.values_list("pk", "name", "task"):
                try:
                    rows += values(self._enabled().filter(pk=pk))
                except unreadable as error:
                    self._names[pk] = name
                    rows.append((pk, broken(task, f"the row cannot be read: {error}")))
            return rows

    # -- known tasks -----------------------------------------------------------------------------------

    def _add(self, changes: EntryChanges, rows: Iterable[tuple[int, TaskColumns | SourceEntry]]) -> None:
        over: list[TaskColumns] = []
        for pk, row in rows:
            if isinstance(row, SourceEntry):
                changes.entries[self._names[pk]] = row
                continue
            if is_over(row, self._now_ms()):
                over.append(row)
                continue
            before, self._names[pk] = self._names.get(pk), row.name
            if before not in (None, row.name):
                changes.gone.append(str(before))
            changes.entries[row.name] = entry_of_row(row, self._zone)
            if row.expires is not None:
                heapq.heappush(self._expiring, (at_ms(row.expires), pk))
        self._disable([row.pk for row in over if row.one_off and row.total_run_count], total_run_count=0)
        self._disable([row.pk for row in over if not (row.one_off and row.total_run_count)])
        self._remove(changes, [row.pk for row in over])

    def _remove(self, changes: EntryChanges, ids: Iterable[int]) -> None:
        for pk in list(ids):
            if (name := self._names.pop(pk, None)) is not None:
                changes.gone.append(name)
                changes.entries.pop(name, None)

    def _expire(self, changes: EntryChanges) -> None:
        """Disable the tasks that have expired since the last look."""
        due = []
        while self._expiring and self._expiring[0][0] <= self._now_ms():
            due.append(heapq.heappop(self._expiring)[1])
        self._read_ids(changes, due)  # a row whose ``expires`` was edited is read as such

    def _disable(self, ids: list[int], **values: Any) -> None:
        """Disable tasks as django-celery-beat does, which also empties their ``last_run_at``."""
        for part in _parts(ids):
            self._enabled().filter(pk__in=part).update(enabled=False, last_run_at=None, **values)


def _parts(ids: list[int]) -> Iterator[list[int]]:
    return (ids[start : start + IDS] for start in range(0, len(ids), IDS))
