"""Rows of django-celery-beat, read with their schedules, as definitions; for the source and for the import.

An interval counts from ``start_time``, or else from ``last_run_at``, or else from the row's last change; a crontab has
its own zone. The first instant is after ``last_run_at``; of a row that has not run, after its last change, or from
``start_time`` on. A one-off row that has run, and one past its ``expires``, is disabled, as by django-celery-beat.

Naive times, of a project without USE_TZ, are read as UTC, as django-celery-beat's own scheduler reads them. A row that
cannot be read is a broken entry with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import Any, NamedTuple

from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Solar, Spec, to_json
from celery_wheel.recurring.checks import refuse
from celery_wheel.recurring.definition import check_call
from celery_wheel.recurring.local import zone_name
from celery_wheel.scheduler.sources import BEAT_HEADER, Document, SourceEntry, broken, is_broken
from celery_wheel.values.instants import ms_of

_MS = {"days": 86_400_000.0, "hours": 3_600_000.0, "minutes": 60_000.0, "seconds": 1_000.0, "microseconds": 0.001}


class TaskColumns(NamedTuple):
    """The columns of a PeriodicTask and of its schedule; ``zone`` as text. From ``one_off`` on, they make a recurrence;
    that of an interval has its anchor from the others."""

    pk: int
    name: str
    task: str
    enabled: bool
    args: str
    kwargs: str
    headers: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    priority: int | None
    expire_seconds: int | None
    last_run_at: datetime | None
    total_run_count: int
    date_changed: datetime
    one_off: bool
    start_time: datetime | None
    expires: datetime | None
    interval_id: int | None
    crontab_id: int | None
    solar_id: int | None
    clocked_id: int | None
    interval__every: int | None
    interval__period: str | None
    crontab__minute: str | None
    crontab__hour: str | None
    crontab__day_of_week: str | None
    crontab__day_of_month: str | None
    crontab__month_of_year: str | None
    solar__event: str | None
    solar__latitude: Any
    solar__longitude: Any
    clocked__clocked_time: datetime | None
    zone: str | None


#: Nothing, in the place of the columns that make no recurrence.
_OF_TASK: tuple[Any, ...] = (None,) * TaskColumns._fields.index("one_off")

#: Recurrences that stay read.
RECURRENCES = 1_000


def is_over(row: TaskColumns, now_ms: int) -> bool:
    """Whether django-celery-beat would disable the row instead of running it again."""
    has_run = row.one_off and row.total_run_count > 0
    return has_run or (isinstance(row.expires, datetime) and at_ms(row.expires) <= now_ms)


def entry_of_row(row: TaskColumns, zone: str | None, *, is_whole: bool = True) -> SourceEntry:
    """Return the entry of a row, or its recurrence alone; ``zone`` is the one of all crontabs, or None: each has its
    own."""
    try:
        document: Document = {"recurrence": _recurrence_document(row, zone)}
        if is_whole:
            document |= _call(row)
            check_call(document)
        return SourceEntry(document, _after_ms(row))
    except (RecurrenceError, PackageMissing) as error:
        return broken(row.task, str(error))
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        return broken(row.task, f"the row cannot be read: {error!r}")


def at_ms(value: datetime) -> int:
    return ms_of(value if value.tzinfo is not None else value.replace(tzinfo=UTC))


def _after_ms(row: TaskColumns) -> int:
    """Return the instant after which the first one lies; at the latest, the row itself is due at once."""
    if row.last_run_at is not None:
        return at_ms(row.last_run_at)
    if row.clocked__clocked_time is not None:
        return at_ms(row.clocked__clocked_time) - 1
    return at_ms(row.date_changed) if row.start_time is None else at_ms(row.start_time) - 1


def _recurrence_document(row: TaskColumns, zone: str | None) -> Document:
    if row.interval_id is not None:
        return to_json(_recurrence(row, zone))
    return _shared_recurrence(row[len(_OF_TASK) :], zone)


@lru_cache(RECURRENCES)
def _shared_recurrence(columns: tuple[Any, ...], zone: str | None) -> Document:
    """Return the recurrence of columns that many rows have in common; do not change it."""
    return to_json(_recurrence(TaskColumns(*_OF_TASK, *columns), zone))


def _recurrence(row: TaskColumns, zone: str | None) -> Recurrence:
    limits: dict[str, Any] = {}
    if row.start_time is not None:
        limits["start_ms"] = at_ms(row.start_time)
    if row.expires is not None:
        limits["until_ms"] = at_ms(row.expires) - 1
    if row.one_off:
        limits["times"] = 1
    if row.crontab_id is not None:
        limits["zone"] = zone or row.zone or "UTC"
    return Recurrence(_spec(row), **limits)


def _spec(row: TaskColumns) -> Spec:
    kinds = ("interval", "crontab", "solar", "clocked")
    found = [kind for kind in kinds if getattr(row, f"{kind}_id") is not None]
    if len(found) != 1:
        refuse("the row", f"one with exactly one of {', '.join(kinds)}", found)
    if found == ["interval"]:
        every_ms = round((row.interval__every or 0) * _MS.get(row.interval__period or "", 0.0))
        if every_ms < 1:
            refuse("interval", "a millisecond or longer", f"{row.interval__every} {row.interval__period}")
        return Interval(every_ms, at_ms(row.start_time or row.last_run_at or row.date_changed))
    if found == ["crontab"]:
        names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        return Crontab(*(str(getattr(row, f"crontab__{name}")).replace(" ", "") for name in names))
    if found == ["solar"]:
        return Solar(row.solar__event or "", float(row.solar__latitude), float(row.solar__longitude))
    if row.clocked__clocked_time is None:
        refuse("clocked", "a time", None)
    return Instants((at_ms(row.clocked__clocked_time),))


def _call(row: TaskColumns) -> Document:
    options: Document = {
        name: value
        for name in ("queue", "exchange", "routing_key", "priority")
        if (value := getattr(row, name)) not in (None, "")
    }
    if row.expire_seconds:
        options["expires"] = row.expire_seconds
    headers = _json("headers", row.headers or "{}", dict)
    options["headers"] = {**headers, "periodic_task_name": row.name, BEAT_HEADER: True}
    args, kwargs = _json("args", row.args or "[]", list), _json("kwargs", row.kwargs or "{}", dict)
    parts = {"args": args, "kwargs": kwargs, "options": options}
    return {"task": row.task, **{name: value for name, value in parts.items() if value}}


def _json(name: str, text: str, kind: type) -> Any:
    example = '["a", 1]' if kind is list else '{"a": 1}'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        refuse(name, f"JSON like {example}", text)
    if value is None:  # Celery sends no arguments then
        return kind()
    if not isinstance(value, kind):
        refuse(name, f"JSON like {example}", text)
    return value


#: Rows of one query.
PAGE = 1_000

_OWN = [name for name in TaskColumns._fields if name != "zone"]
#: Columns that are compared as texts: times, and numbers of which -1 and -2 have one hash.
_TEXTS = ("expires", "start_time", "clocked__clocked_time", "solar__latitude", "solar__longitude")
_MARKED = [name for name in _OWN if name not in (*_TEXTS, "last_run_at", "total_run_count", "date_changed")]

#: Bits of a mark that are of the schedule; the bits above them are of the task.
_SCHEDULE_BITS = 64


def is_same_task(mark: int, other: int) -> bool:
    """Whether two marks are of one task, whose schedule may have been edited in between."""
    return mark >> _SCHEDULE_BITS == other >> _SCHEDULE_BITS


@dataclass(frozen=True, slots=True)
class TableTask:
    """A row of PeriodicTask."""

    pk: int
    name: str
    task: str
    enabled: bool
    columns: TaskColumns | None  #: None: they cannot be read
    zone: str | None = None  #: of all crontabs
    reason: str = ""  #: why the columns cannot be read

    @property
    def entry(self) -> SourceEntry:
        return broken(self.task, self.reason) if self.columns is None else entry_of_row(self.columns, self.zone)

    @property
    def retimed(self) -> SourceEntry | None:
        """The entry with its recurrence alone; None of an interval, whose anchor is of the row, and of what cannot be
        read."""
        if self.columns is None or self.columns.interval_id is not None:
            return None
        found = entry_of_row(self.columns, self.zone, is_whole=False)
        return None if is_broken(found) else found


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

    def marks(self, query: Any) -> dict[int, int]:
        """Return id → a hash of what the entry is made of, of values as the database has them: a tenth of the work of
        an entry. A run does not change it, but that of a one-off task. An edit of the schedule changes the low bits."""
        from django.db import connections
        from django.db.models import BooleanField, ExpressionWrapper, Q

        more: dict[str, Any] = {f"as_{name}": _as_text(name) for name in (*_TEXTS, "crontab__timezone")}
        more["has_run"] = ExpressionWrapper(Q(one_off=True, total_run_count__gt=0), BooleanField())
        marked = query.annotate(**more).values_list(*_MARKED, *more)
        of_schedule = ["__" in name for name in (*_MARKED, *more)]
        own, shared = (itemgetter(*[n for n, one in enumerate(of_schedule) if one == kind]) for kind in (False, True))
        with connections[query.db].cursor() as cursor:
            cursor.execute(*marked.query.get_compiler(query.db).as_sql())
            return {row[0]: _mark(hash(own(row)), hash(shared(row))) for row in cursor.fetchall()}

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
                    reason = f"the row cannot be read: {error}"
                    found.append(TableTask(pk, name, task, bool(enabled), None, reason=reason))
            return found

    def _read(self, query: Any) -> list[TableTask]:
        rows = starmap(TaskColumns, query.annotate(zone=_as_text("crontab__timezone")).values_list(*_OWN, "zone"))
        return [TableTask(one.pk, one.name, one.task, one.enabled, one, self._zone) for one in rows]


def _mark(of_task: int, of_schedule: int) -> int:
    return (of_task << _SCHEDULE_BITS) + of_schedule % (1 << _SCHEDULE_BITS)


def _as_text(column: str) -> Any:
    """An invalid value of a column, such as of a zone, does not keep the other columns from being read."""
    from django.db.models import CharField
    from django.db.models.functions import Cast

    return Cast(column, CharField())
