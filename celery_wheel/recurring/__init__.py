"""Recurrences, and definitions of schedules, as values. Pure: no clock, no store, no I/O.

1. The occurrences of a recurrence increase strictly, in every zone and with every rule for gap and fold.
2. ``next_after`` depends on its arguments alone: not on the clock, nor on earlier calls.
3. A definition that is invalid, or never fires, is refused when it is made, with the reason.
4. A call steps by fields, never through the minutes between two occurrences.

Instants follow the installed zone data, holidays and ephemerides: a newer release may move future instants. Occurrences
are from 1970 to the end of 9998. The first use of a name imports its module, so the data pipeline reads wall-clock
times without Celery.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.recurring.calendars import AllOf as AllOf
    from celery_wheel.recurring.calendars import AnyOf as AnyOf
    from celery_wheel.recurring.calendars import BusinessDays as BusinessDays
    from celery_wheel.recurring.calendars import Calendar as Calendar
    from celery_wheel.recurring.calendars import Dates as Dates
    from celery_wheel.recurring.calendars import Except as Except
    from celery_wheel.recurring.calendars import Holidays as Holidays
    from celery_wheel.recurring.calendars import OfSpec as OfSpec
    from celery_wheel.recurring.calendars import Weekdays as Weekdays
    from celery_wheel.recurring.celery_schedules import from_celery as from_celery
    from celery_wheel.recurring.crontab import Crontab as Crontab
    from celery_wheel.recurring.document import from_json as from_json
    from celery_wheel.recurring.document import to_json as to_json
    from celery_wheel.recurring.recurrence import Recurrence as Recurrence
    from celery_wheel.recurring.rrule import RRule as RRule
    from celery_wheel.recurring.solar import Solar as Solar
    from celery_wheel.recurring.specs import Instants as Instants
    from celery_wheel.recurring.specs import Interval as Interval
    from celery_wheel.recurring.specs import Spec as Spec

_CALENDARS = "AllOf AnyOf BusinessDays Calendar Dates Except Holidays OfSpec Weekdays"
_MODULES = {
    **dict.fromkeys(_CALENDARS.split(), "celery_wheel.recurring.calendars"),
    **dict.fromkeys(("Instants", "Interval", "Spec"), "celery_wheel.recurring.specs"),
    **{name: f"celery_wheel.recurring.{name.lower()}" for name in ("Crontab", "RRule", "Solar")},
    "Recurrence": "celery_wheel.recurring.recurrence",
    "from_celery": "celery_wheel.recurring.celery_schedules",
    "from_json": "celery_wheel.recurring.document",
    "to_json": "celery_wheel.recurring.document",
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
