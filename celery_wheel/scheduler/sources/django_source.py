"""The tables of django-celery-beat as a source: only rows that have changed are read, and the runs are written back.

::

    every look    PeriodicTasks.last_change(): one row. Unchanged: nothing else is read
    changed       1  tasks whose date_changed is of the last minute, or later     saved tasks
                  2  count and sum of the ids of the enabled tasks                deleted, enabled or disabled ones:
                     differ from what is known: all ids                             then the new ones are read
                  3  intervals, crontabs, solars, clocked rows, where they are    edited schedules: then the tasks
                     few, or where 1 and 2 have found nothing                       that refer to them are read
                  4  none of it at two looks: all tasks                           an update that changes the marker only
    as it was     the next PAGE tasks in the order of their ids, so that          an update that changes no marker
                  all are read once in FULL_READ_S

The marker and date_changed are django-celery-beat's own, and an update by queryset changes neither. ``last_run_at`` is
the instant; its former value is a condition of the update, so an instant counts once; at the start, instants that a
former holder did not write back are counted. A subclass of ``DatabaseScheduler`` that reads other rows, or decides
otherwise when they are due, keeps its entries.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.scheduler.sources import EntryChanges
from celery_wheel.scheduler.sources.django_rows import PAGE, TableTask, TaskColumns, TaskReader, at_ms, is_over
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import DJANGO, Schedule, ScheduleCriteria
from celery_wheel.timing import SystemClock
from celery_wheel.values import parts
from celery_wheel.values.log import get_logger

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


def tables_and_counts(app: Any) -> tuple[DjangoSource, RunCounts]:
    clock = SystemClock()
    clocks = clock.now_ms, lambda: clock.monotonic_ms() / 1_000
    source = DjangoSource(app, *clocks)
    return source, RunCounts(source, *clocks)


logger = get_logger(__name__)

#: Ids of one condition; SQLite takes no more than 999 in old versions.
IDS = 500

#: Rows of schedules that are read at each change.
FEW = 2_000

#: A transaction that took longer than this between saving a task and its commit is found by the reading of all.
OVERLAP = timedelta(seconds=60)

#: Seconds in which all tasks are read once more, a page at a time; django-celery-beat does so every five minutes.
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
        self._names: dict[int, str] = {}  #: of the enabled tasks
        self._schedules: dict[str, dict[int, int]] = {}  #: kind → id → hash of the row
        self._expires: dict[int, int] = {}  #: id → expires
        self._expiring: list[tuple[int, int]] = []  #: (expires, id), the first first
        self._finished: list[int] = []  #: ids of one-off tasks that have run, until the next look
        self._marker: Any = None
        self._is_read = self.is_followed = False
        self._after = 0  #: id after which the next page is read
        self._page_at_s = 0.0
        self._is_unexplained = False  #: the marker has changed, and nothing else that was looked at

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
            self._read_changed(changes, before)
            self._is_unexplained = not (changes.entries or changes.gone)
        elif self._is_unexplained:
            return self._read_all(marker)
        elif self._monotonic_s() >= self._page_at_s:
            self._read_page(changes)
        changes.gone = [name for name in changes.gone if name not in changes.entries]
        return changes if changes.entries or changes.gone else None

    def followed(self) -> None:
        self.is_followed = True

    def reset(self) -> None:
        self._is_read = False

    def finish(self, ids: list[int]) -> None:
        """Disable one-off tasks that have run."""
        self._disable(ids, total_run_count=0)
        self._finished += ids

    # -- reading ---------------------------------------------------------------------------------------

    def _read_all(self, marker: Any) -> EntryChanges:
        self._names, self._expires, self._expiring, self._finished = {}, {}, [], []
        changes = EntryChanges(is_whole=True)
        for page in self._reader.pages(self._enabled()):
            self._add(changes, page)
        self._schedules = {kind: dict(self._hashes(kind)) for kind in self._tables}
        self._marker, self._is_read, self._is_unexplained = marker, True, False
        self._turn_page([])
        return changes

    def _read_page(self, changes: EntryChanges) -> None:
        page = self._reader.page(self._enabled(), self._after)
        self._add(changes, page)
        self._read_if_counts_differ(changes)
        self._turn_page(page)

    def _turn_page(self, page: list[TableTask]) -> None:
        self._after = page[-1].pk if len(page) == PAGE else 0
        self._page_at_s = self._monotonic_s() + FULL_READ_S / (len(self._names) // PAGE + 1)

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
            for part in parts(changed, IDS):
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
        for part in parts(list(ids), IDS):
            self._add(changes, self._reader.read(self._enabled().filter(pk__in=part)))

    def _enabled(self) -> Any:
        return self._tasks.filter(enabled=True)

    # -- what is known ---------------------------------------------------------------------------------

    def _add(self, changes: EntryChanges, tasks: Iterable[TableTask]) -> None:
        over: list[TaskColumns] = []
        for task in tasks:
            pk, row = task.pk, task.columns
            if row is not None and is_over(row, self._now_ms()):
                over.append(row)
                continue
            before, self._names[pk] = self._names.get(pk), task.name
            if before not in (None, task.name):
                changes.gone.append(str(before))
            changes.entries[task.name] = task.entry
            if row is not None and row.expires is not None and self._expires.get(pk) != at_ms(row.expires):
                self._expires[pk] = at_ms(row.expires)
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
        for part in parts(ids, IDS):
            self._enabled().filter(pk__in=part).update(enabled=False, last_run_at=None, **values)


#: Seconds from one batch to the next.
EVERY_S = 5.0

#: Names of one UPDATE, and runs or schedules that are read at a time.
NAMES, AT_ONCE = 500, 5_000

#: The most instants of one schedule that are counted for a former holder.
MOST_MISSED = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunCounts:
    """Works in the thread of the sources."""

    def __init__(self, source: DjangoSource, now_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        from django.conf import settings
        from django_celery_beat.models import PeriodicTask

        self._source = source
        self._tasks = PeriodicTask._default_manager
        self._is_aware = bool(settings.USE_TZ)
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._last_run: list[int] | None = None  #: of each shard, the last run that was read
        self._at_s = 0.0
        self._waiting: list[tuple[str, int, int]] = []  #: (name, instant, count), until the instant has come
        self._store: FullStore | None = None

    def run(self, store: FullStore) -> None:
        """Write a batch, where it is time for one. Raises StoreError, or an error of the database."""
        self._store = store
        if not self._source.is_followed or self._monotonic_s() - self._at_s < EVERY_S:
            return
        if self._last_run is None:
            # The numbers first: a run between the two reads is read twice, and counted once.
            numbers = [store.browse.last_run(shard) for shard in range(store.shards)]
            self._read_missed(store)
            self._last_run = numbers
        self._read_runs(store, self._last_run)
        self._write()
        self._at_s = self._monotonic_s()

    def close(self) -> None:
        """Close the thread's connections; the next start finds the counts that are not written."""
        from django.db import connections

        connections.close_all()

    def _read_runs(self, store: FullStore, last_run: list[int]) -> None:
        for shard, number in enumerate(last_run):
            while True:
                runs = store.browse.runs_after(shard, number, AT_ONCE)
                for run in runs:
                    number = run.timer_id
                    if run.source == DJANGO and run.name is not None and not run.requested:
                        self._waiting.append((run.name, run.instant_ms, 1))
                last_run[shard] = number
                if len(runs) < AT_ONCE:
                    break

    def _read_missed(self, store: FullStore) -> None:
        after: str | None = ""
        while after is not None:
            page = store.browse.schedules(ScheduleCriteria(source=DJANGO), after, NAMES)
            made = {one.name: one for one in page.items if one.last_ms is not None and one.made}
            rows = self._tasks.filter(name__in=list(made), enabled=True).values_list("name", "last_run_at")
            for name, last_run_at in rows:
                self._waiting += _missed(made[name], None if last_run_at is None else at_ms(last_run_at))
            after = page.next

    def _write(self) -> None:
        now_ms = self._now_ms()
        due = [one for one in self._waiting if one[1] <= now_ms]
        self._waiting = [one for one in self._waiting if one[1] > now_ms]
        found: dict[str, tuple[int, int]] = {}
        for name, instant_ms, count in due:
            last_ms, before = found.get(name, (0, 0))
            found[name] = max(last_ms, instant_ms), before + count
        alike: dict[tuple[int, int], list[str]] = {}
        for name, last in found.items():
            alike.setdefault(last, []).append(name)
        for (last_ms, count), names in alike.items():
            for part in parts(names, NAMES):
                self._count(part, last_ms, count)

    def _count(self, names: Sequence[str], last_ms: int, count: int) -> None:
        from django.db.models import F, Q

        at = _EPOCH + timedelta(milliseconds=last_ms)
        at = at if self._is_aware else at.replace(tzinfo=None)
        tasks = self._tasks.filter(name__in=names, enabled=True)
        earlier = Q(last_run_at__isnull=True) | Q(last_run_at__lt=at)
        tasks.filter(earlier).update(last_run_at=at, total_run_count=F("total_run_count") + count)
        once = list(tasks.filter(one_off=True).values_list("pk", flat=True))
        self._source.finish(once)


def _missed(schedule: Schedule, last_run_ms: int | None) -> Iterable[tuple[str, int, int]]:
    """Yield the last instant of a schedule, with the number of instants since its last run that was written back."""
    last_ms = schedule.last_ms or 0
    if last_run_ms is not None and last_run_ms >= last_ms:
        return
    count: Any = schedule.made
    if last_run_ms is not None:
        try:
            recurrence = read_definition(schedule.definition).recurrence
        except RecurrenceError:
            return
        count = sum(1 for _ in islice(recurrence.between(last_run_ms, last_ms), MOST_MISSED))
    yield schedule.name, last_ms, max(1, min(count, MOST_MISSED))
