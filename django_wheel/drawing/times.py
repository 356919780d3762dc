"""Instants near the present, as people say them: a day that is not today has its name or its date."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta, tzinfo
from functools import lru_cache

from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from celery_wheel.store.model import DAY_MS
from django_wheel.formats import relative, to_datetime


class Moments:
    """Texts of instants, for one page at one present; in the current time zone and language."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._zone = get_current_timezone()
        today = to_datetime(now_ms)
        assert today is not None  # noqa: S101 - for the type checker
        day = today.astimezone(self._zone).date()
        self._days = {
            f"{day - timedelta(1)}": _("yesterday %(time)s"),
            f"{day}": "%(time)s",
            f"{day + timedelta(1)}": _("tomorrow %(time)s"),
        }

    def date(self, at_ms: int) -> str:
        return _local(at_ms // 1_000, self._zone)[0]

    def clock(self, at_ms: int) -> str:
        """Return the time of day, without its seconds where they are 0."""
        return _local(at_ms // 1_000, self._zone)[1].removesuffix(":00")

    def moment(self, at_ms: int | None) -> str:
        """Return 16:58:11, tomorrow 16:58:11, or 2027-01-15 16:58:11."""
        if at_ms is None:
            return "-"
        date, clock = _local(at_ms // 1_000, self._zone)
        return self._days.get(date, f"{date} %(time)s") % {"time": clock.removesuffix(":00")}

    def span(self, from_ms: int, to_ms: int) -> str:
        """Return 16:58 - 16:59, with the day where that is not today; a whole day is its date."""
        date = self.date(from_ms)
        if to_ms - from_ms == DAY_MS:
            return date
        text = self.clock(from_ms) if to_ms - from_ms <= 1_000 else f"{self.clock(from_ms)} - {self.clock(to_ms)}"
        return self._days.get(date, f"{date} %(time)s") % {"time": text}

    def distance(self, at_ms: int | None) -> str:
        return relative(at_ms, self.now_ms)


@lru_cache(4_096)
def _local(at_s: int, zone: tzinfo) -> tuple[str, str]:
    """Return date and time of day; pages ask for the same seconds again and again."""
    moment = to_datetime(at_s * 1_000)
    if moment is None:
        return f"{at_s} s", ""
    with suppress(OverflowError):  # the last hours of the calendar, in a zone that is ahead of UTC
        moment = moment.astimezone(zone)
    return f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}"
