"""``Scheduler.apply_entry`` for the wheel's occurrences, where Sentry's Crons, tracing, … patch or override it.

The method is called on an instance of the base scheduler's class that is never set up and holds no entries. Where
Celery's own functions are unchanged, occurrences are rendered by templates, which are a hundred times as fast.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from types import FunctionType
from typing import Any

from celery import beat
from celery.schedules import crontab, schedule, solar

from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, RRule, Solar
from celery_wheel.recurring.definition import Definition
from celery_wheel.recurring.local import zone_of
from celery_wheel.store.schedule_model import BEAT, DJANGO, Schedule
from celery_wheel.values.instants import utc, utc_of_us

#: Schedules of Celery in the cache; a crontab takes 50 µs to make.
CACHED = 10_000


class BeatApplyEntry:
    """Publishes occurrences by the base scheduler's class ``base``, instead of the templates."""

    def __init__(self, base: type, app: Any) -> None:
        self._base = base
        self._app = app
        self._schedules = lru_cache(CACHED)(lambda recurrence: to_celery(recurrence, app))

    def watches(self, stored: Schedule) -> bool:
        return stored.source in (BEAT, DJANGO) and is_patched(self._base)

    def __call__(self, stored: Schedule, definition: Definition, producer: Any) -> None:
        """Publish an occurrence by a ``CapturingProducer``, whose ``task_id`` the task may take as its id."""
        due = utc_of_us(producer.due_us)
        entry = _entry(stored, definition, self._schedules(definition.recurrence), self._app, due)
        self._scheduler.apply_entry(entry, producer=producer)

    @cached_property
    def _scheduler(self) -> Any:
        """A scheduler that never writes."""
        scheduler: Any = self._base(self._app, lazy=True)
        scheduler.should_sync = lambda: False
        return scheduler


def is_patched(base: type) -> bool:
    """Whether a class sends entries by other functions than Celery's own."""
    for name in ("apply_entry", "apply_async", "send_task"):
        function = getattr(base, name, None)
        # A wrapper may have taken over the name and the module of the function, but not its code.
        if type(function) is not FunctionType or function.__code__.co_filename != beat.__file__:
            return True
    return False


def _entry(stored: Schedule, definition: Definition, celery_schedule: Any, app: Any, due: datetime) -> Any:
    call = definition.call
    options = call.options_at(due, app.tasks.get(call.task))
    if call.wheel:
        options["wheel"] = dict(call.wheel)
    return beat.ScheduleEntry(
        name=stored.name,
        task=call.task,
        last_run_at=utc(stored.last_ms or 0),
        total_run_count=stored.made,
        schedule=celery_schedule,
        args=list(call.args),
        kwargs=dict(call.kwargs),
        options=options,
        app=app,
    )


def to_celery(recurrence: Recurrence, app: Any) -> Any:
    """Return Celery's own schedule object of a recurrence that was made of one."""
    spec = recurrence.spec
    if isinstance(spec, Crontab):
        found = crontab(spec.minute, spec.hour, spec.day_of_week, spec.day_of_month, spec.month_of_year, app=app)
        found.tz = zone_of(recurrence.zone)  # the schedules of django-celery-beat have one of their own
        return found
    if isinstance(spec, Solar):
        return solar(spec.event, spec.latitude, spec.longitude, app=app)
    if isinstance(spec, Instants):
        from django_celery_beat.clockedschedule import clocked  # the only package with a schedule of one instant

        return clocked(utc(spec.at_ms[0]), app=app)
    if isinstance(spec, RRule):  # of so many days, see ``recurring.celery_schedules``
        days = re.search(r"INTERVAL=(\d+)", spec.text)
        return schedule(timedelta(days=int(days[1]) if days else 1), relative=True, app=app)
    every_ms = spec.every_ms if isinstance(spec, Interval) else 0
    return schedule(timedelta(milliseconds=every_ms), app=app)
