"""Entries of Beat as definitions, and the source of their listings.

::

    ScheduleEntry(schedule, task, args, kwargs, options) ──► {"recurrence", "task", "args", "kwargs", "options"}

    stays with the base scheduler, with the reason:
      a class of entry or schedule with an is_due of its own, or a recurrence that the wheel refuses
      arguments or options that JSON cannot express
      options that a schedule does not have

Celery counts an interval from the last run; the anchor is ``last_run_at``, for a new entry the time of its listing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any

from celery.beat import ScheduleEntry
from celery.utils.time import maybe_make_aware

from celery_wheel import recurring
from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring.definition import check_call
from celery_wheel.scheduler.sources.entry import EntryChanges, SourceEntry, of_base
from celery_wheel.store.schedule_model import BEAT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The header by which Celery marks tasks that Beat has sent.
BEAT_HEADER = "celery_beat_task"


class EntryListing:
    """A source whose entries another thread lists, all of them at a time."""

    def __init__(self, name: str = BEAT, entries: dict[str, SourceEntry] | None = None) -> None:
        self.name = name
        self._lock = Lock()
        self._entries = entries or {}
        self._put = 0 if entries is None else 1  #: listings so far
        self._read = self._followed = 0  #: the last listing that was read, and followed

    def put(self, entries: dict[str, SourceEntry]) -> None:
        with self._lock:
            self._entries = entries
            self._put += 1

    def read(self) -> EntryChanges | None:
        with self._lock:
            if self._read == self._put:
                return None
            self._read = self._put
            return EntryChanges(self._entries, is_whole=True)

    def followed(self) -> None:
        self._followed = self._read

    def reset(self) -> None:
        self._read = 0

    @property
    def is_followed(self) -> bool:
        return 0 < self._put == self._followed


def entry_of(entry: Any, app: Any) -> SourceEntry:
    """Return an entry of Beat as an entry of the source."""
    task = entry.task if isinstance(entry.task, str) else ""
    try:
        return _converted(entry, task, app)
    except _Stays as why:
        return of_base(task, str(why))
    except (RecurrenceError, PackageMissing) as error:
        return of_base(task, str(error))
    except Exception as error:  # raised by code of the application
        return of_base(task, f"it cannot be read: {error!r}")


class _Stays(Exception):
    """The entry stays with the base scheduler, for the reason of the message."""


def _converted(entry: Any, task: str, app: Any) -> SourceEntry:
    if type(entry).is_due is not ScheduleEntry.is_due:
        raise _Stays(f"its class, {type(entry).__qualname__}, decides itself when it is due")
    last_ms = to_ms(entry.last_run_at, app)
    recurrence = recurring.from_celery(entry.schedule, last_ms)
    if recurrence is None:
        raise _Stays(f"its schedule, {type(entry.schedule).__qualname__}, decides itself when it is due")
    options = dict(entry.options or {})
    serializer = options.get("serializer") or getattr(app.tasks.get(task), "serializer", app.conf.task_serializer)
    parts = {"args": list(entry.args or ()), "kwargs": dict(entry.kwargs or {}), "options": options}
    for name, value in parts.items():
        check_json(value, name, lists=serializer == "json" or name == "options")
    options["headers"] = {**(options.get("headers") or {}), BEAT_HEADER: True}
    document = {"task": task, **{name: value for name, value in parts.items() if value}}
    try:
        check_call(document)
    except RecurrenceError as error:
        raise _Stays(str(error)) from None
    return SourceEntry({"recurrence": recurring.to_json(recurrence), **document}, last_ms)


def check_json(value: Any, path: str, lists: bool) -> None:
    """Raise _Stays for a value that JSON would change; ``lists``: a tuple counts as a list."""
    if isinstance(value, Mapping) and type(value) is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise _Stays(f"{path} has the key {key!r:.60}, which is not a text")
            check_json(one, f"{path}.{key}", lists)
    elif type(value) is list or (lists and type(value) is tuple):
        for number, one in enumerate(value):
            check_json(one, f"{path}[{number}]", lists)
    elif not (value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value))):
        raise _Stays(f"{path} is not a value of JSON: {value!r:.60}")


def to_ms(value: datetime | None, app: Any) -> int:
    """Return an instant of Beat as Unix milliseconds; a naive one is in the app's zone; None, before a run, is now."""
    aware: datetime = maybe_make_aware(value or app.now(), app.timezone)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
