"""django-celery-beat: its table of periodic tasks, through Django.

The import is for leaving django-celery-beat. A wheel that follows its tables needs no import: see docs/periodic.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from celery_wheel.errors import PackageMissing, RecurrenceError, SettingError
from celery_wheel.operations.schedule_import.foreign import (
    ForeignSchedule,
    NotImportable,
    foreign,
    instant_ms,
    refused,
)
from celery_wheel.operations.schedule_import.options import ImportOptions
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Solar

_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "microseconds": 0.001}
_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_KINDS = ("interval", "crontab", "solar", "clocked")


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    for row in _rows():
        try:
            yield _schedule(row)
        except (NotImportable, RecurrenceError) as error:
            yield refused(row.name, error)
        except ValueError as error:
            yield refused(row.name, f"args, kwargs and headers must be JSON ({error})")


def _rows() -> Iterator[Any]:
    try:
        from django.apps import apps
        from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
        from django.db import DatabaseError
    except ImportError as error:
        raise PackageMissing("reading django-celery-beat needs Django: pip install django-celery-beat") from error
    try:
        model = apps.get_model("django_celery_beat", "PeriodicTask")
        yield from model.objects.select_related(*_KINDS).order_by("name").iterator(1_000)
    except (AppRegistryNotReady, ImproperlyConfigured, LookupError) as error:
        raise SettingError(
            f"INSTALLED_APPS must have django_celery_beat, got {error}; run this in the project that has it, with "
            "DJANGO_SETTINGS_MODULE"
        ) from error
    except DatabaseError as error:
        raise SettingError(
            f"the tables of django-celery-beat must be readable, got {error}; run: manage.py migrate"
        ) from error


def _schedule(row: Any) -> ForeignSchedule:
    headers = json.loads(row.headers or "{}")
    return foreign(
        row.name,
        _recurrence(row),
        row.task,
        json.loads(row.args or "[]"),
        json.loads(row.kwargs or "{}"),
        {
            "queue": row.queue or None,
            "exchange": row.exchange or None,
            "routing_key": row.routing_key or None,
            "priority": row.priority,
            "expires": row.expire_seconds,
            "headers": headers or None,
        },
        paused=not row.enabled,
    )


def _recurrence(row: Any) -> Recurrence:
    limits: dict[str, Any] = {
        "start_ms": None if row.start_time is None else instant_ms(row.start_time),
        "until_ms": None if row.expires is None else instant_ms(row.expires),
        "times": 1 if row.one_off else None,
    }
    if row.interval is not None:
        anchor = row.last_run_at or row.start_time
        every_ms = round(row.interval.every * _UNITS_MS[row.interval.period])
        return Recurrence(Interval(every_ms, 0 if anchor is None else instant_ms(anchor)), **limits)
    if row.crontab is not None:
        return Recurrence(
            Crontab(*(_field(row.crontab, name) for name in _FIELDS)), str(row.crontab.timezone), **limits
        )
    if row.solar is not None:
        solar = row.solar
        return Recurrence(Solar(solar.event, float(solar.latitude), float(solar.longitude)), **limits)
    if row.clocked is not None:
        return Recurrence(Instants((instant_ms(row.clocked.clocked_time),)))
    raise NotImportable("it has none of interval, crontab, solar and clocked")


def _field(row: Any, name: str) -> str:
    return str(getattr(row, name)).replace(" ", "")
