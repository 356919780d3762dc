"""The tables of django-celery-beat as a source: only rows that have changed are read, PAGE at a look.

::

    first look    ids and names of the enabled tasks: names that are gone are deleted before anything is created
    every look    PeriodicTasks.last_change(): one row. Changed: what has changed goes to the front of a line of ids
                  1  tasks whose date_changed is of the last minute, or later     saved tasks, the latest first
                  2  count and sum of the ids of the enabled tasks                deleted, enabled or disabled ones:
                     differ from what is known: all ids                             then the new ones
                  3  intervals, crontabs, solars, clocked rows, where they are    edited schedules: then the tasks
                     few, or where 1 and 2 have found nothing                       that refer to them
                  4  none of it at two looks, or more than MANY: a lap at once    an update that changes the marker only
                  then a page of the line; where that is empty, a page of the lap
    a lap         all tasks in the order of their ids: page after page at the     an update that changes no marker
                  start, so that edits are live meanwhile; else in FULL_READ_S

A row is read as an entry only where it differs from what was followed, by a hash of its columns: a lap over a million
rows that are as they were costs seconds. Where nothing but a schedule has changed that ALIKE tasks share, their new
recurrence is one change, which costs a third. The marker and date_changed are django-celery-beat's own, and an update
by queryset changes neither. A subclass of ``DatabaseScheduler`` that reads other rows, or decides otherwise when they
are due, keeps its entries.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any

from celery_wheel.recurring.definition import dumped
from celery_wheel.scheduler.sources import EntryChanges, Retimed, SourceEntry
from celery_wheel.scheduler.sources.django_rows import (
    PAGE,
    TableTask,
    TaskColumns,
    TaskReader,
    at_ms,
    is_over,
    is_same_task,
)
from celery_wheel.store.schedule_model import DJANGO
from celery_wheel.values import parts

#: The parts of a DatabaseScheduler that read the rows and decide when they are due.
_OWN = ("Entry", "Model", "Changes", "tick", "is_due", "all_as_schedule", "enabled_models", "enabled_models_qs")


class FollowedTables:
    """Mixed into a DatabaseScheduler: it writes ``beat_schedule`` into its tables as before, and reads no row."""

    @property
    def schedule(self) -> dict[str, Any]:
        return {}


def follows_tables(base: type) -> bool:
    """Whether a class of scheduler runs the rows of django-celery-beat as that package does."""
    module = sys.modules.get("django_celery_beat.schedulers")
    if module is None or not issubclass(base, module.DatabaseScheduler):
        return False
    return all(getattr(base, name, None) is getattr(module.DatabaseScheduler, name, None) for name in _OWN)


#: Ids of one condition; SQLite takes no more than 999 in old versions.
IDS = 500

#: Rows of schedules that are read at each change.
FEW = 2_000

#: Tasks from which on an edit of the schedule that they share is one change; each of fewer is read as an entry.
ALIKE = 100

#: Ids in the line at one change; above it, a lap finds the changes.
MANY = 100_000

#: A transaction that took longer than this between saving a task and its commit is found by the next lap.
OVERLAP = timedelta(seconds=60)

#: Seconds of a lap at leisure, as django-celery-beat reads all rows every five minutes; longer from 2,000,000 rows on.
FULL_READ_S = 300.0


class DjangoSource:
    name = DJANGO

    def __init__(self, app: Any, now_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        from django_celery_beat import models

        self._models = models
        self._reader = TaskReader(app)
        self._tasks = self._reader.tasks
        self._tables = {
            "interval": models.IntervalSchedule,
            "crontab": models.CrontabSchedule,
            "solar": models.SolarSchedule,
            "clocked": models.ClockedSchedule,
        }
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._finished: list[int] = []  #: ids of one-off tasks that have run, until the next look
        self.reset()

    # -- the source ------------------------------------------------------------------------------------

    def reset(self) -> None:
        self._names: dict[int, str] = {}  #: of the enabled tasks
        self._marks: dict[int, int] = {}  #: id → hash of the row that was followed
        self._schedules: dict[str, dict[int, int]] = {}  #: kind → id → hash of the row
        self._expires: dict[int, int] = {}  #: of the enabled tasks: id → expires
        self._expiring: list[tuple[int, int]] = []  #: heap of (expires, id), also former ones until the end of a lap
        self._line: dict[int, int | None] = {}  #: ids that are read next, in this order → when an edit was seen
        self._unfollowed: dict[int, int | None] = {}  #: those of the last look, and names that are gone, until then
        self._gone: list[str] = []
        #: Tasks of this look of which only the schedule has changed, with their entries, by the text of these.
        self._alike: dict[str, list[tuple[TableTask, SourceEntry]]] = {}
        self._marker: Any = None
        self._is_open = self.is_followed = False
        self._after = 0  #: id after which the lap goes on
        self._laps_at_once = 1
        self._hurried_ms: int | None = None  #: when an edit was seen for which laps are made at once
        self._page_at_s = 0.0
        self._is_unexplained = False  #: the marker has changed, and nothing else that was looked at

    @property
    def has_more(self) -> bool:
        return bool(self._line) or self._laps_at_once > 0

    def read(self) -> EntryChanges | None:
        from django.db import close_old_connections

        close_old_connections()
        marker = self._models.PeriodicTasks.last_change()
        if not self._is_open:
            return self._open(marker)
        for pk in self._unfollowed:  # a look that was not followed, or has failed
            self._marks.pop(pk, None)
        self._put_first(self._unfollowed)
        self._unfollowed = {}
        self._remove(self._finished)
        self._finished = []
        self._put_first({pk: self._line.get(pk) for pk in self._expired()})
        if marker != self._marker:
            self._find_changes(self._marker)
            self._marker = marker
        elif self._is_unexplained:
            self._is_unexplained = False
            self._hurry()
        found, self._alike = EntryChanges(), {}
        self._read_line(found)
        if not self._line and (self._laps_at_once or self._monotonic_s() >= self._page_at_s):
            self._read_page(found)
        self._add_alike(found)
        if self._gone:
            names = set(self._names.values())
            found.gone = self._gone = [name for name in self._gone if name not in names]
            gone = set(self._gone)
            found.entries = {name: one for name, one in found.entries.items() if name not in gone}
        if found.entries or found.retimed or found.gone:
            return found
        self.is_followed = self.is_followed or not self.has_more
        return None

    def followed(self, missed: Collection[str] = ()) -> None:
        names = set(missed)
        again = {pk: seen_ms for pk, seen_ms in self._unfollowed.items() if self._names.get(pk) in names}
        for pk in again:
            self._marks.pop(pk, None)
        self._put_first(again)
        self._is_open, self._unfollowed, self._gone = True, {}, []
        self.is_followed = self.is_followed or not self.has_more

    def finish(self, ids: list[int]) -> None:
        """Disable one-off tasks that have run."""
        self._disable(ids, total_run_count=0)
        self._finished += ids

    # -- reading ---------------------------------------------------------------------------------------

    def _open(self, marker: Any) -> EntryChanges:
        self._names = dict(self._enabled().order_by().values_list("pk", "name").iterator(PAGE))
        self._schedules = {kind: dict(self._hashes(kind)) for kind in self._tables}
        self._marker, self._hurried_ms = marker, self._now_ms()
        return EntryChanges(all_names=set(self._names.values()))

    def _hurry(self) -> None:
        """Read each task once from now on: the rest of this lap, and the next one, or it alone."""
        self._laps_at_once = 2 if self._after else 1
        self._hurried_ms = self._hurried_ms or self._now_ms()

    def _put_first(self, first: Mapping[int, int | None]) -> None:
        if first:
            self._line = {**first, **{pk: seen_ms for pk, seen_ms in self._line.items() if pk not in first}}

    def _find_changes(self, before: Any) -> None:
        found = self._saved(before)
        found += self._uncounted(found)
        if sum(map(len, self._schedules.values())) <= FEW or not (found or self._gone):
            found += self._of_changed_schedules()
        now_ms = self._now_ms()
        self._put_first({pk: self._line.get(pk) or now_ms for pk in found[:MANY]})
        self._is_unexplained = not (found or self._gone)
        if len(found) > MANY:
            self._hurry()

    def _read_line(self, changes: EntryChanges) -> None:
        ids = list(islice(self._line, PAGE))
        for part in parts(ids, IDS):
            self._add(changes, self._reader.marks(self._enabled().filter(pk__in=part)), self._line.get)
        for pk in ids:
            del self._line[pk]

    def _read_page(self, changes: EntryChanges) -> None:
        size = PAGE if self._laps_at_once else 2 * PAGE  # at leisure, since most of it has not changed
        marks = self._reader.marks(self._enabled().filter(pk__gt=self._after).order_by("pk")[:size])
        self._add(changes, marks, lambda _: self._hurried_ms)
        self._page_at_s = self._monotonic_s() + FULL_READ_S / (len(self._names) // (2 * PAGE) + 1)
        if len(marks) == size:
            self._after = max(marks)
            return
        self._put_first(dict.fromkeys(self._uncounted()))
        self._expiring = sorted((expires_ms, pk) for pk, expires_ms in self._expires.items())
        self._after, self._laps_at_once = 0, max(0, self._laps_at_once - 1)
        if not self._laps_at_once:
            self._hurried_ms = None

    def _saved(self, before: Any) -> list[int]:
        saved = self._tasks.all() if before is None else self._tasks.filter(date_changed__gte=before - OVERLAP)
        ids = list(saved.order_by("-date_changed", "-pk").values_list("pk", "enabled")[: MANY + 1])
        self._remove([pk for pk, enabled in ids if not enabled])
        return [pk for pk, enabled in ids if enabled]

    def _uncounted(self, saved: Iterable[int] = ()) -> set[int]:
        """Where the counts differ, remove tasks that are gone, and return the ids of those that are not known.

        New tasks that are about to be read, like those that were ``saved``, count as known.
        """
        from django.db.models import Count, Sum

        new = {pk for pk in (*saved, *self._line) if pk not in self._names}
        found = self._enabled().aggregate(count=Count("pk"), sum=Sum("pk"))
        if (found["count"], found["sum"] or 0) == (len(self._names) + len(new), sum(self._names) + sum(new)):
            return set()
        ids = set(self._enabled().values_list("pk", flat=True))
        self._remove(self._names.keys() - ids)
        return ids - self._names.keys()

    def _of_changed_schedules(self) -> list[int]:
        """Return the ids of the tasks of schedules that were edited since the last call."""
        found: list[int] = []
        now = {kind: dict(self._hashes(kind)) for kind in self._tables}
        for kind, before in self._schedules.items():
            changed = [pk for pk, one in before.items() if now[kind].get(pk, one) != one]
            for part in parts(changed, IDS):
                found += self._enabled().filter(**{f"{kind}_id__in": part}).values_list("pk", flat=True)[: MANY + 1]
        self._schedules = now
        return found

    def _hashes(self, kind: str) -> Iterator[tuple[int, int]]:
        from django.db.models import CharField
        from django.db.models.functions import Cast

        table = self._tables[kind]
        # As text: one value that cannot be read must not keep the others from being compared.
        columns = {f"as_{one.name}": Cast(one.name, CharField()) for one in table._meta.fields if one.name != "id"}
        rows = table._default_manager.order_by().annotate(**columns).values_list("pk", *columns)
        return ((row[0], hash(row[1:])) for row in rows.iterator(PAGE))

    def _enabled(self) -> Any:
        return self._tasks.filter(enabled=True)

    # -- what is known ---------------------------------------------------------------------------------

    def _add(self, changes: EntryChanges, marks: Mapping[int, int], seen_ms: Callable[[int], int | None]) -> None:
        over: list[TaskColumns] = []
        # One that is in this look already, and has changed again, comes with the next one.
        changed = [pk for pk, mark in marks.items() if self._marks.get(pk) != mark and pk not in self._unfollowed]
        for part in parts(changed, IDS):
            for task in self._reader.read(self._enabled().filter(pk__in=part)):
                if task.columns is not None and is_over(task.columns, self._now_ms()):
                    over.append(task.columns)
                    continue
                known = self._marks.get(task.pk)
                is_same = known is not None and is_same_task(known, marks[task.pk])
                self._know(task, marks[task.pk])
                self._unfollowed[task.pk] = edited_ms = seen_ms(task.pk)
                if is_same and (retimed := task.retimed) is not None:
                    alike = self._alike.setdefault(dumped(retimed.document), [])
                    alike.append((task, replace(retimed, edited_ms=edited_ms)))
                else:
                    changes.entries[task.name] = replace(task.entry, edited_ms=edited_ms)
        self._disable([row.pk for row in over if row.one_off and row.total_run_count], total_run_count=0)
        self._disable([row.pk for row in over if not (row.one_off and row.total_run_count)])
        self._remove([row.pk for row in over])

    def _add_alike(self, changes: EntryChanges) -> None:
        for group in self._alike.values():
            # Another task may have taken a name since; it comes later in the look, and its entry counts.
            alike = {task.name: (task, one) for task, one in group if task.name not in changes.entries}
            if len(alike) >= ALIKE:
                recurrence = group[0][1].document["recurrence"]
                changes.retimed.append(Retimed(recurrence, {name: one for name, (_, one) in alike.items()}))
            else:
                changes.entries |= {
                    name: replace(task.entry, edited_ms=one.edited_ms) for name, (task, one) in alike.items()
                }
        self._alike = {}

    def _know(self, task: TableTask, mark: int) -> None:
        pk, row = task.pk, task.columns
        before, self._names[pk] = self._names.get(pk), task.name
        if before not in (None, task.name):
            self._gone.append(str(before))
        self._marks[pk] = mark
        if row is None or row.expires is None:
            self._expires.pop(pk, None)
        elif self._expires.get(pk) != (expires_ms := at_ms(row.expires)):
            self._expires[pk] = expires_ms
            heapq.heappush(self._expiring, (expires_ms, pk))

    def _remove(self, ids: Iterable[int]) -> None:
        for pk in list(ids):
            self._marks.pop(pk, None)
            self._expires.pop(pk, None)
            if (name := self._names.pop(pk, None)) is not None:
                self._gone.append(name)

    def _expired(self) -> list[int]:
        """Return the tasks that have expired since the last look; one whose ``expires`` was edited is read as such."""
        due = []
        while self._expiring and self._expiring[0][0] <= self._now_ms():
            due.append(pk := heapq.heappop(self._expiring)[1])
            self._marks.pop(pk, None)
        return due

    def _disable(self, ids: list[int], **values: Any) -> None:
        """Disable tasks as django-celery-beat does, which also empties their ``last_run_at``."""
        for part in parts(ids, IDS):
            self._enabled().filter(pk__in=part).update(enabled=False, last_run_at=None, **values)
