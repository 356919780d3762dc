"""Values as people read them on a page: instants in the current time zone, and what ``celery_wheel.present`` shows."""

from __future__ import annotations

from django.utils.timezone import localtime

from celery_wheel.present import NAME_CUT, PART_CUT, dump, duration, part, seen, when

__all__ = ["NAME_CUT", "PART_CUT", "clock", "dump", "duration", "instant", "part", "seen", "when"]


def instant(at_ms: int | None) -> str:
    """In the current time zone, to the millisecond."""
    if not at_ms:
        return "-"
    moment = when(at_ms)
    if moment is None:
        return f"{at_ms} ms"
    try:
        local = localtime(moment)
    except OverflowError:  # the last hours of the calendar, in a zone that is ahead
        local = moment
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03}"


def clock(at_ms: int | None) -> str:
    """As ``instant``, without the date: for what is near."""
    return instant(at_ms).partition(" ")[2] or instant(at_ms)
