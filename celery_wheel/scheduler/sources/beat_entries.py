"""The entries of Beat and of tasks as definitions, and the entries that Beat's own scheduler keeps.

::

    @app.task(wheel_schedule=Crontab("0", "9"))                          a schedule with the name of the task
    @shared_task(wheel_schedule={"recurrence": crontab(hour=9), "zone": "Asia/Tokyo", "queue": "mail"})
    @app.task(wheel_schedule=[{"name": "hourly", "recurrence": 3600}, {"name": "nightly", …}])

1. An entry stays with the base scheduler, with the reason, if its class or its schedule has an ``is_due`` of its own,
   the wheel refuses its recurrence or an option, or JSON cannot express its arguments.
2. Celery counts an interval from the last run; the anchor is ``last_run_at``, for a new entry the time of its listing.
3. Declarations are read when a scheduler takes shard 0. An invalid one becomes a broken schedule, with the reason; of
   two with one name, the second is broken under a name of its own.
4. A base scheduler that changes its schedule at run time is followed. One with another ``tick``, like RedBeat's, keeps
   all its entries. Before the first difference is in the store, the heap has none. Then it is made again, with
   ``last_run_at`` of the entries that the wheel ran before, which is saved at once: a process killed before Celery
   saves it would repeat their runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import count
from threading import Lock
from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from celery.utils.time import maybe_make_aware

from celery_wheel import recurring
from celery_wheel.conf import Conf
from celery_wheel.errors import PackageMissing, RecurrenceError, WheelError
from celery_wheel.recurring.definition import check_call
from celery_wheel.requests.schedules.definitions import definition_of
from celery_wheel.scheduler.service import WheelService
from celery_wheel.scheduler.sources import (
    BEAT_HEADER,
    EntryChanges,
    EntrySource,
    SourceEntry,
    broken,
    digest,
    is_of_base,
    of_base,
)
from celery_wheel.scheduler.sources.django_source import FollowedTables
from celery_wheel.scheduler.sources.run_counts import RunCounts, tables_and_counts
from celery_wheel.scheduler.sources.sources import Sources
from celery_wheel.store.schedule_model import BEAT, CODE, DJANGO
from celery_wheel.values.instants import ms_of, utc
from celery_wheel.values.text import text_rule


class EntryListing:
    """A source whose entries another thread lists, all of them at a time; it yields those that differ from the last
    listing that was followed."""

    has_more = False

    def __init__(self, name: str = BEAT, entries: dict[str, SourceEntry] | None = None) -> None:
        self.name = name
        self._lock = Lock()
        self._entries = entries or {}
        self._put = 0 if entries is None else 1  #: listings so far
        self._read = self._followed = 0  #: the last listing that was read, and followed
        self._digests: dict[str, bytes] | None = None  #: of the last listing that was followed
        self._read_digests: dict[str, bytes] = {}

    def put(self, entries: dict[str, SourceEntry]) -> None:
        with self._lock:
            self._entries = entries
            self._put += 1

    def read(self) -> EntryChanges | None:
        with self._lock:
            if self._put == self._followed:
                return None
            self._read, entries, before = self._put, self._entries, self._digests
        self._read_digests = {name: digest(one.document) for name, one in entries.items()}
        if before is None:
            return EntryChanges(entries, all_names=entries.keys())
        changed = {name: entries[name] for name, one in self._read_digests.items() if before.get(name) != one}
        return EntryChanges(changed, gone=[name for name in before if name not in entries])

    def followed(self, missed: Collection[str] = ()) -> None:
        self._followed, self._digests = self._read, self._read_digests

    def reset(self) -> None:
        self._followed, self._digests = 0, None

    @property
    def is_followed(self) -> bool:
        return 0 < self._put == self._followed


def entry_of(entry: Any, app: Any) -> SourceEntry:
    task = entry.task if isinstance(entry.task, str) else ""
    try:
        return _converted(entry, task, app)
    except (RecurrenceError, PackageMissing) as error:
        return of_base(task, str(error))
    except Exception as error:  # raised by code of the application
        return of_base(task, f"it cannot be read: {error!r}")


def _converted(entry: Any, task: str, app: Any) -> SourceEntry:
    if type(entry).is_due is not ScheduleEntry.is_due:
        raise RecurrenceError(f"its class, {type(entry).__qualname__}, decides itself when it is due")
    last_ms = to_ms(entry.last_run_at, app)
    recurrence = recurring.from_celery(entry.schedule, last_ms)
    if recurrence is None:
        raise RecurrenceError(f"its schedule, {type(entry.schedule).__qualname__}, decides itself when it is due")
    options = dict(entry.options or {})
    serializer = options.get("serializer") or getattr(app.tasks.get(task), "serializer", app.conf.task_serializer)
    parts = {"args": list(entry.args or ()), "kwargs": dict(entry.kwargs or {}), "options": options}
    for name, value in parts.items():
        check_json(value, name, lists=serializer == "json" or name == "options")
    options["headers"] = {**(options.get("headers") or {}), BEAT_HEADER: True}
    document = {"task": task, **{name: value for name, value in parts.items() if value}}
    check_call(document)
    return SourceEntry({"recurrence": recurring.to_json(recurrence), **document}, last_ms)


def check_json(value: Any, path: str, lists: bool) -> None:
    """Raise RecurrenceError for a value that JSON would change; ``lists``: a tuple counts as a list."""
    if isinstance(value, Mapping) and type(value) is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise RecurrenceError(f"{path} has the key {key!r:.60}, which is not a text")
            check_json(one, f"{path}.{key}", lists)
    elif type(value) is list or (lists and type(value) is tuple):
        for number, one in enumerate(value):
            check_json(one, f"{path}[{number}]", lists)
    elif not (value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value))):
        raise RecurrenceError(f"{path} is not a value of JSON: {value!r:.60}")


def to_ms(value: datetime | None, app: Any) -> int:
    """Return an instant of Beat as Unix milliseconds; a naive one is in the app's zone; None, before a run, is now."""
    aware: datetime = maybe_make_aware(value or app.now(), app.timezone)
    return ms_of(aware)


#: The option of a task, which Celery keeps as an attribute.
OPTION = "wheel_schedule"


def declared_entries(app: Any) -> dict[str, SourceEntry]:
    found: dict[str, SourceEntry] = {}
    for task_name, task in sorted(app.tasks.items()):
        value = getattr(task, OPTION, None)
        if value is None:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            name, entry = _entry(app, task_name, one)
            if name in found:
                entry = broken(task_name, f"another task declares {name!r:.100}")
                name = next(free for number in count(2) if (free := f"{task_name} {number}") not in found)
            found[name] = entry
    return found


def _entry(app: Any, task_name: str, value: Any) -> tuple[str, SourceEntry]:
    declared = dict(value) if isinstance(value, Mapping) and "kind" not in value else {"recurrence": value}
    name = declared.pop("name", task_name)
    try:
        if rule := text_rule(name):
            raise RecurrenceError(f"name must be {rule}, got {name!r:.60}")
        return name, SourceEntry(definition_of(app, {**declared, "task": task_name}))
    except (WheelError, TypeError, ValueError) as error:
        return (task_name if text_rule(name) else name), broken(task_name, f"{OPTION} of {task_name}: {error}")


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
        tables: EntrySource = EntryListing(DJANGO, {})
        counts: RunCounts | None = None
        if isinstance(scheduler, FollowedTables):
            tables, counts = tables_and_counts(self._app)
        self._sources = Sources(
            Conf(self._app),
            [self._listing, tables, EntryListing(CODE, declared_entries(self._app))],
            lambda: service.holds(0),
            hands_back=(BEAT,) if self._wheel_runs else (BEAT, DJANGO),
            counts=counts,
            report=service.report_sources,
            log=service.retries,
        )

    def start(self) -> None:
        self._sources.start()

    def stop(self) -> None:
        self._sources.stop()
        self._sources.take_back(self._advance)  # Beat saves its schedule next

    def before_tick(self) -> None:
        """Let the base scheduler make its heap again, once its entries are its own."""
        if self._listed is None or self._is_open or not self._sources.settled:
            return
        if self._sources.take_back(self._advance):
            self._scheduler.sync()
        self._is_open = True
        self._scheduler._heap = None

    def _advance(self, name: str, last_ms: int) -> None:
        """Set an entry's last run to that of the wheel, where it is later."""
        entry = (self._listed or {}).get(name)
        if entry is None:
            return
        last = utc(last_ms)
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
