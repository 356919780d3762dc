"""The next instants of a recurrence, in its zone and in the viewer's: for the page of a schedule and the preview."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from django.utils import dateformat
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone, get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.recurring import Recurrence
from celery_wheel.recurring.local import zone_of
from celery_wheel.recurring.words import UpcomingInstant, in_words, upcoming
from django_wheel.formats import format_duration, to_datetime

#: Occurrences of a preview.
SHOWN = 20

LEFT_OUT: dict[str, Promise] = {
    "excluded": _("excluded"),
    "gap": _("skipped by the clocks"),
}


@dataclass(frozen=True, slots=True)
class UpcomingLine:
    instant: UpcomingInstant
    in_zone: str
    for_viewer: str

    @property
    def left_out(self) -> str:
        return str(LEFT_OUT[self.instant.left_out]) if self.instant.left_out else ""

    @property
    def shift(self) -> str:
        """The change of the clocks on its day: "clocks +1 h"; empty without one."""
        if not self.instant.shift_ms:
            return ""
        sign = "+" if self.instant.shift_ms > 0 else "-"
        return gettext("clocks %(shift)s") % {"shift": f"{sign}{format_duration(abs(self.instant.shift_ms))}"}


def upcoming_values(recurrence: Recurrence, at_ms: int, made: int = 0) -> dict[str, Any]:
    """Return the values of ``schedule_upcoming.html``."""
    zone, own = zone_of(recurrence.zone) or UTC, get_current_timezone()
    lines = [
        UpcomingLine(one, zoned(one.at_ms, zone), zoned(one.at_ms, own))
        for one in upcoming(recurrence, at_ms, SHOWN, made)
    ]
    return {
        "words": in_words(recurrence, gettext),
        "upcoming": lines,
        "occurrences": sum(not line.instant.left_out for line in lines),
        "zone": recurrence.zone,
        "own_zone": get_current_timezone_name(),
        "is_own_zone": _are_same(lines),
        "shown": SHOWN,
    }


def _are_same(lines: Iterable[UpcomingLine]) -> bool:
    return all(line.in_zone == line.for_viewer for line in lines)


def zoned(at_ms: int, zone: tzinfo) -> str:
    """Return an instant with its weekday and the name of its offset: Mon 2026-11-23 09:00:00 CET."""
    moment = to_datetime(at_ms)
    if moment is None:
        return f"{at_ms} ms"
    try:
        local = moment.astimezone(zone)
    except OverflowError:  # the last hours of the calendar, in a zone that is ahead of UTC
        local = moment
    millis = f".{at_ms % 1_000:03}" if at_ms % 1_000 else ""
    return f"{dateformat.format(local, 'D')} {local:%Y-%m-%d %H:%M:%S}{millis} {local:%Z}"
