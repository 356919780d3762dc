"""Beat's side of the sources, in Beat's own thread: the entries that its own scheduler keeps.

::

    takeover ─► setup_schedule ─► Sources starts
    tick ─► Celery's tick ─► populate_heap ─► sift     every entry is listed; the heap keeps those of the base scheduler
                                                       before the first difference is in the store: none
         └─ settled: the heap is made again, with last_run_at of the entries that the wheel ran before, which is saved
            at once: Celery would save it within three minutes, and a process killed before would repeat their runs

Celery's ``tick`` calls ``populate_heap`` whenever the schedule has changed, so a base scheduler that changes its
schedule at run time is followed as well. A base scheduler with another ``tick``, like RedBeat's, keeps all its entries.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import Scheduler

from celery_wheel.conf import Conf
from celery_wheel.scheduler.service import WheelService
from celery_wheel.scheduler.sources.beat_entries import EntryListing, entry_of
from celery_wheel.scheduler.sources.declared import declared_entries
from celery_wheel.scheduler.sources.django_tables import FollowedTables, tables_and_counts
from celery_wheel.scheduler.sources.entry import EntrySource, SourceEntry, is_of_base, of_base
from celery_wheel.scheduler.sources.sources import Periodic, Sources
from celery_wheel.store.schedule_model import BEAT, CODE, DJANGO
from celery_wheel.values.text import text_rule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PeriodicEntries:
    """The periodic entries of one scheduler of Beat while it holds shard 0."""

    def __init__(self, scheduler: Any, service: WheelService) -> None:
        self._scheduler = scheduler
        self._app = scheduler.app
        self._wheel_runs = Conf(self._app).periodic == "wheel"
        self._listing = EntryListing(BEAT)
        self._listed: dict[str, Any] | None = None  #: the schedule of the last listing
        self._kept: set[str] = set()  #: names of the entries that the base scheduler runs
        self._is_open = False  #: it may send them: the listing is in the store
        tables, beside = self._tables()
        self._sources = Sources(
            Conf(self._app),
            [self._listing, tables, EntryListing(CODE, declared_entries(self._app))],
            lambda: service.holds(0),
            hands_back=(BEAT,) if self._wheel_runs else (BEAT, DJANGO),
            beside=beside,
            report=service.report_sources,
        )

    def _tables(self) -> tuple[EntrySource, list[Periodic]]:
        if isinstance(self._scheduler, FollowedTables):
            source, counts = tables_and_counts(self._app)
            return source, [counts]
        return EntryListing(DJANGO, {}), []

    def start(self) -> None:
        self._sources.start()

    def stop(self) -> None:
        self._sources.stop()
        self._take_back()  # Beat saves its schedule next

    def before_tick(self) -> None:
        """Let the base scheduler make its heap again, once its entries are its own."""
        if self._listed is None or self._is_open or not self._sources.settled:
            return
        if self._take_back():
            self._scheduler.sync()
        self._is_open = True
        self._scheduler._heap = None

    def _take_back(self) -> bool:
        """Set last_run_at of the entries that the wheel ran before; returns whether there were any."""
        return self._sources.take_back(self._advance)

    def _advance(self, name: str, last_ms: int) -> None:
        """Set an entry's last run to that of the wheel, where it is later."""
        entry = (self._listed or {}).get(name)
        if entry is None:
            return
        last = _EPOCH + timedelta(milliseconds=last_ms)
        before = entry.last_run_at
        if before is not None and before.tzinfo is None:
            last = last.replace(tzinfo=None)  # Celery's naive times are in UTC
        if before is None or before < last:
            entry.last_run_at = last

    def after_tick(self) -> None:
        """Leave the entries with a base scheduler that has a tick of its own."""
        if self._listed is None:
            self._list({})
            self._is_open = True

    def sift(self) -> None:
        """List the entries of the schedule, and leave the base scheduler's own ones on its heap."""
        scheduler = self._scheduler
        events = scheduler._heap  # django-celery-beat empties it whenever it reads its schedule anew
        schedule = dict(scheduler.schedule)
        if schedule != self._listed:
            self._list(schedule)
        heap = [event for event in events if self._is_open and event[2].name in self._kept]
        heapq.heapify(heap)
        scheduler._heap = heap

    def _list(self, schedule: dict[str, Any]) -> None:
        entries: dict[str, SourceEntry] = {}
        if self._wheel_runs:  # a name that no store holds stays with the base scheduler, and cannot be shown
            entries = {name: self._entry(one) for name, one in schedule.items() if text_rule(name) is None}
        self._listed, self._is_open = schedule, False
        self._kept = {name for name in schedule if name not in entries or is_of_base(entries[name])}
        self._listing.put(entries)
        self._sources.wake()

    def _entry(self, entry: Any) -> SourceEntry:
        if type(self._scheduler).is_due is not Scheduler.is_due:
            return of_base(entry.task, f"{type(self._scheduler).is_due.__qualname__} decides what is due")
        return entry_of(entry, self._app)
