"""Celery's own schedules as recurrences.

::

    schedule(every)                  Interval, counted from the anchor
    schedule(every, relative=True)   Celery rounds each run down to the start of a day, hour or minute of the zone:
                                     an RRule of whole days, or an Interval of whole hours or minutes
    crontab(...)                     Crontab in the zone in which Celery reads the fields
    solar(...)                       Solar
    any other class                  None: only its own ``is_due`` decides when it runs

Celery counts an interval from the last run, so each late run moves all later ones; an Interval keeps its grid.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery.schedules import crontab, schedule, solar

from celery_wheel.recurring.crontab import Crontab
from celery_wheel.recurring.local import zone_name, zone_of
from celery_wheel.recurring.recurrence import Recurrence
from celery_wheel.recurring.rrule import RRule
from celery_wheel.recurring.solar import Solar
from celery_wheel.recurring.specs import Interval
from celery_wheel.values.instants import utc

_HOUR_MS, _MINUTE_MS, _DAY_MS = 3_600_000, 60_000, 86_400_000


def from_celery(celery_schedule: Any, anchor_ms: int) -> Recurrence | None:
    """Return the recurrence of a schedule of Celery; None where no spec has its meaning.

    Intervals count from ``anchor_ms``: the last run, or the first sight of the schedule. A crontab with its own
    ``nowfun`` is read in the zone that the installed Celery takes: in 5.7 the app's, in older versions that of
    ``nowfun``.
    """
    if _is_own(celery_schedule, crontab):
        last_run_at, _, _ = celery_schedule.remaining_delta(celery_schedule.now())
        zone = zone_name(last_run_at.tzinfo)
        return None if zone is None else Recurrence(_to_crontab(celery_schedule), zone)
    if _is_own(celery_schedule, solar):
        return Recurrence(Solar(celery_schedule.event, celery_schedule.lat, celery_schedule.lon))
    if _is_own(celery_schedule, schedule):
        every_ms = round(celery_schedule.run_every / timedelta(milliseconds=1))
        if every_ms <= 0:
            return None  # due at every tick
        if celery_schedule.relative:
            return _relative(celery_schedule, every_ms, anchor_ms)
        return Recurrence(Interval(every_ms, anchor_ms))
    return None


def _is_own(value: Any, of: type) -> bool:
    """Whether the schedule is due when Celery's class would be: a subclass may override the methods that decide."""
    methods = ("is_due", "remaining_estimate", "remaining_delta", "now")
    own = type(value)
    return isinstance(value, of) and all(getattr(own, name, None) is getattr(of, name, None) for name in methods)


def _to_crontab(value: crontab) -> Crontab:
    fields = []
    for name in ("minute", "hour", "day_of_week", "day_of_month", "month_of_year"):
        given = getattr(value, f"_orig_{name}")
        fields.append(given if isinstance(given, str) else ",".join(map(str, sorted(getattr(value, name)))))
    return Crontab(*fields)


def _relative(value: schedule, every_ms: int, anchor_ms: int) -> Recurrence | None:
    zone = zone_name(value.tz)
    tz = None if zone is None else zone_of(zone)
    if zone is None or tz is None:
        return None
    last = utc(anchor_ms).astimezone(tz)
    if every_ms >= _DAY_MS:
        first = last + timedelta(milliseconds=every_ms)  # of one zone: a sum on the wall clock
        rule = f"DTSTART:{first:%Y%m%d}T000000\nRRULE:FREQ=DAILY;INTERVAL={every_ms // _DAY_MS}"
        return Recurrence(RRule(rule), zone)
    unit_ms = _HOUR_MS if every_ms >= _HOUR_MS else _MINUTE_MS if every_ms >= _MINUTE_MS else 1
    first_ms = anchor_ms + every_ms
    first_ms -= (first_ms + (last.utcoffset() or timedelta()) // timedelta(milliseconds=1)) % unit_ms
    return Recurrence(Interval(every_ms // unit_ms * unit_ms, first_ms), zone)
