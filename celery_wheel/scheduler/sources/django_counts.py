"""``last_run_at`` and ``total_run_count`` of django-celery-beat, written back for the runs that the wheel has made.

::

    every EVERY_S    runs of the store after the last one ─► those whose instant has come, by instant and count
                     ─► an UPDATE for up to NAMES tasks; one-off tasks are disabled
    at the start     schedules whose last instant is after ``last_run_at``: a former holder did not write it back

``last_run_at`` is the instant, not the moment of the dispatch. The updates are made by queryset: neither the change
marker nor ``date_changed`` moves, so no scheduler reads the tasks anew. An update has the former ``last_run_at`` as its
condition, so an instant counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.scheduler.sources.django_rows import at_ms
from celery_wheel.scheduler.sources.django_source import DjangoSource
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import DJANGO, Schedule, ScheduleCriteria

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
            for start in range(0, len(names), NAMES):
                self._count(names[start : start + NAMES], last_ms, count)

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
