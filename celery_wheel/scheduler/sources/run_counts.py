"""The runs of rows of django-celery-beat, written back to ``last_run_at`` and ``total_run_count`` in batches.

::

    at the start     schedules whose last instant the row does not have: a former holder did not write it back
    every EVERY_S    the runs since the last batch, SETTLED_MS after their instants ──► UPDATE of NAMES rows at a time

``last_run_at`` is the instant, and its former value is a condition of the update: an instant counts once. A run that
was made ahead of its instant and withdrawn before it, by an edit, does not count. A batch of many runs is written in
parts of PART_S, so that an edit of a row does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.scheduler.sources.django_rows import at_ms
from celery_wheel.scheduler.sources.django_source import DjangoSource
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import DJANGO, Schedule, ScheduleCriteria
from celery_wheel.timing import SystemClock
from celery_wheel.values import pages_of, parts
from celery_wheel.values.instants import utc

#: Seconds from the end of one batch to the next.
EVERY_S = 5.0

#: Seconds after which the rest of a batch is left to the next look.
PART_S = 0.2

#: Names of one UPDATE, and runs or schedules that are read at a time.
NAMES, AT_ONCE = 500, 5_000

#: A run counts so long after its instant: an edit that withdraws it is committed by then.
SETTLED_MS = 5_000

#: The runs of a former holder that are looked for one by one are not older than this.
UNWRITTEN_MS = 600_000

#: The most instants of one schedule that are counted for a former holder.
MOST_MISSED = 1_000

#: The name of a row, an instant in milliseconds, the number of runs up to it, and the stored row of a single one.
RunCount = tuple[str, int, int, int | None]


def tables_and_counts(app: Any) -> tuple[DjangoSource, RunCounts]:
    clock = SystemClock()
    clocks = clock.now_ms, lambda: clock.monotonic_ms() / 1_000
    source = DjangoSource(app, *clocks)
    return source, RunCounts(source, *clocks)


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
        self._at_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget what was read: another process may have counted runs since."""
        self._last_run: list[int] | None = None  #: of each shard, the last run that was read
        #: The instants up to which runs of a former holder count, and rows that do, until the runs since are read.
        self._counted_to: dict[str, int] = {}
        self._counted: set[int] = set()
        self._waiting: list[RunCount] = []  #: until their instants have come
        self._due: dict[str, tuple[int, int]] = {}  #: name → last instant and count, until they are written
        self._batch: Iterator[None] | None = None  #: the steps of a batch that is under way

    @property
    def has_more(self) -> bool:
        """Whether a batch is under way."""
        return self._batch is not None

    def run(self, store: FullStore) -> None:
        """Go on with a batch, or begin one where it is time. Raises StoreError, or an error of the database."""
        began_s = self._monotonic_s()
        if self._batch is None:
            if not self._source.is_followed or began_s - self._at_s < EVERY_S:
                return
            self._batch = self._steps(store)
        batch, self._batch = self._batch, None  # after an error the next batch begins anew
        for _ in batch:
            if self._monotonic_s() - began_s >= PART_S:
                self._batch = batch
                return
        self._at_s = self._monotonic_s()

    def close(self) -> None:
        """Close the thread's connections; the next start finds the counts that are not written."""
        from django.db import connections

        connections.close_all()

    def _steps(self, store: FullStore) -> Iterator[None]:
        if self._last_run is None:
            # The numbers first: a run between the two reads is read twice, and counted once.
            numbers = [store.browse.last_run(shard) for shard in range(store.shards)]
            missed: list[RunCount] = []
            yield from self._read_missed(store, missed)
            self._waiting += missed
            self._counted_to = {name: last_ms for name, last_ms, _, timer_id in missed if timer_id is None}
            self._counted = {timer_id for *_, timer_id in missed if timer_id is not None}
            self._last_run = numbers
        yield from self._read_runs(store, self._last_run)
        self._counted_to, self._counted = {}, set()
        yield from self._write(store)

    def _read_runs(self, store: FullStore, last_run: list[int]) -> Iterator[None]:
        for shard in range(len(last_run)):
            while runs := store.browse.runs_after(shard, last_run[shard], AT_ONCE):
                self._waiting += [
                    (one.name, one.instant_ms, 1, one.timer_id)
                    for one in runs
                    if one.source == DJANGO
                    and one.name is not None
                    and not one.requested
                    and one.timer_id not in self._counted
                    and one.instant_ms > self._counted_to.get(one.name, 0)
                ]
                last_run[shard] = runs[-1].timer_id
                yield

    def _read_missed(self, store: FullStore, missed: list[RunCount]) -> Iterator[None]:
        browse, upto_ms = store.browse, self._now_ms() - SETTLED_MS
        for page in pages_of(lambda after: browse.schedules(ScheduleCriteria(source=DJANGO), after, NAMES), ""):
            made = {one.name: one for one in page.items if one.last_ms is not None and one.made}
            ahead: dict[int, tuple[str, int]] = {}  # their last runs may be withdrawn until their instants
            rows = self._tasks.filter(name__in=list(made), enabled=True).values_list("name", "last_run_at")
            for name, last_run_at in rows:
                schedule, last_run_ms = made[name], None if last_run_at is None else at_ms(last_run_at)
                if (schedule.last_ms or 0) > upto_ms:
                    ahead[schedule.id] = name, last_run_ms or 0
                else:
                    missed += _missed(schedule, last_run_ms)
            if ahead:
                since_ms = max(upto_ms - UNWRITTEN_MS, min(last_run_ms for _, last_run_ms in ahead.values()))
                for schedule_id, timer_id, instant_ms in browse.runs_since(list(ahead), since_ms):
                    name, last_run_ms = ahead[schedule_id]
                    if instant_ms > last_run_ms:
                        missed.append((name, instant_ms, 1, timer_id))
            yield

    def _write(self, store: FullStore) -> Iterator[None]:
        # The rest of a batch that failed comes by itself: its last update may have been carried out.
        yield from self._write_due()
        upto_ms = self._now_ms() - SETTLED_MS
        due = [one for one in self._waiting if one[1] <= upto_ms]
        withdrawn: set[int] = set()
        for part in parts([timer_id for *_, timer_id in due if timer_id is not None], NAMES):
            withdrawn |= store.browse.withdrawn_among(part)
            yield
        for name, instant_ms, count, timer_id in due:
            if timer_id not in withdrawn:
                last_ms, before = self._due.get(name, (0, 0))
                self._due[name] = max(last_ms, instant_ms), before + count
        self._waiting = [one for one in self._waiting if one[1] > upto_ms]
        yield from self._write_due()

    def _write_due(self) -> Iterator[None]:
        alike: dict[tuple[int, int], list[str]] = {}
        for name, last in self._due.items():
            alike.setdefault(last, []).append(name)
        for (last_ms, count), names in alike.items():
            for part in parts(names, NAMES):
                self._count(part, last_ms, count)
                for name in part:
                    del self._due[name]
                yield

    def _count(self, names: Sequence[str], last_ms: int, count: int) -> None:
        from django.db.models import F, Q

        at = utc(last_ms)
        at = at if self._is_aware else at.replace(tzinfo=None)
        tasks = self._tasks.filter(name__in=names, enabled=True)
        earlier = Q(last_run_at__isnull=True) | Q(last_run_at__lt=at)
        tasks.filter(earlier).update(last_run_at=at, total_run_count=F("total_run_count") + count)
        once = list(tasks.filter(one_off=True).values_list("pk", flat=True))
        self._source.finish(once)


def _missed(schedule: Schedule, last_run_ms: int | None) -> Iterable[RunCount]:
    """Yield the last instant of a schedule, with the number of instants since its last run that was written back."""
    last_ms, count = schedule.last_ms or 0, schedule.made
    if last_run_ms is not None:
        if last_run_ms >= last_ms:
            return
        try:
            recurrence = read_definition(schedule.definition).recurrence
            count = sum(1 for _ in islice(recurrence.between(last_run_ms, last_ms), MOST_MISSED))
        except RecurrenceError:
            return
    yield schedule.name, last_ms, max(1, min(count, MOST_MISSED)), None
