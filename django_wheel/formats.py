"""Values in the form in which pages show them: times in the current time zone, counts, and translated labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from django.utils import translation
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.control import now_ms
from celery_wheel.store.model import DAY_MS, HOUR_MS
from celery_wheel.values.format import format_duration, format_part, printable, to_datetime

#: Values of an indented JSON object that are null, each a line; and the comma that is left before its end.
_NULL_LINES = re.compile(r'^  "(?:[^"\\]|\\.)*": null,?\n', re.MULTILINE)
_TRAILING = re.compile(r",?\n}$")

#: States of a message and kinds of its outcomes, as the store names them.
STATES = {
    "pending": gettext_lazy("pending"),
    "in doubt": gettext_lazy("being dispatched"),
    "dispatched": gettext_lazy("dispatched"),
    "rejected": gettext_lazy("rejected"),
    "cancelled": gettext_lazy("cancelled"),
    "expired": gettext_lazy("expired"),
    "moved": gettext_lazy("moved"),
}
#: States of a schedule.
SCHEDULE_STATES = {
    "active": gettext_lazy("active"),
    "paused": gettext_lazy("paused"),
    "broken": gettext_lazy("broken"),
    "failing": gettext_lazy("failing"),
    "ended": gettext_lazy("ended"),
    "run by Beat": gettext_lazy("run by Beat"),
}
#: Results of a request, as ``celery_wheel.requests.results`` names them.
RESULTS = {
    "done": gettext_lazy("done"),
    "already": gettext_lazy("already"),
    "too_late": gettext_lazy("too late"),
    "unknown": gettext_lazy("unknown"),
    "refused": gettext_lazy("refused"),
}


def in_zone(at_ms: int, zone: tzinfo | None = None) -> datetime | None:
    """Return an instant in a time zone, by default the current one; None where no calendar has it."""
    moment = to_datetime(at_ms)
    with suppress(OverflowError):  # the last hours of the calendar, in a zone that is ahead of UTC
        return moment and localtime(moment, zone)
    return moment


def instant(at_ms: int | None) -> str:
    """Return a time in the current time zone, to the millisecond."""
    if not at_ms:
        return "-"
    local = in_zone(at_ms)
    if local is None:
        return f"{at_ms} ms"
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03}"


def second(at_ms: int | None) -> str:
    """Return a time without the milliseconds that instants of schedules rarely have."""
    return instant(at_ms).removesuffix(".000")


def clock(at_ms: int | None, whole: str = "", present_ms: int | None = None) -> str:
    """Return the time, with its date unless that is today.

    Args:
        whole: the text of ``instant(at_ms)``, where the caller has it.
    """
    return (whole or instant(at_ms)).removeprefix(f"{instant(present_ms or now_ms()).partition(' ')[0]} ")


def relative(at_ms: int | None, present_ms: int) -> str:
    """Return the distance from the present in its largest unit: in 3 min, 2 h ago."""
    if not at_ms:
        return ""
    distance = abs(at_ms - present_ms)
    unit = next((unit for unit in (DAY_MS, HOUR_MS, 60_000, 1_000) if distance >= unit), None)
    if unit is None:
        return _("now")
    duration = format_duration(distance - distance % unit)
    return (_("in %(duration)s") if at_ms > present_ms else _("%(duration)s ago")) % {"duration": duration}


def format_headers(raw: bytes) -> str:
    """Return headers or properties as text, without those that are null: most of Celery's are."""
    return _TRAILING.sub("\n}", _NULL_LINES.sub("", format_part(raw))).replace("{\n}", "{}")


def number(value: int | None) -> str:
    """Return a count with its thousands set apart, as the current language does."""
    if value is None:
        return "-"
    # Below a thousand there is nothing to set apart, at a fiftieth of the cost.
    return str(value) if 0 <= value < 1_000 else str(number_format(value, force_grouping=True))


def ngettext_lazy(one: str, many: str) -> Any:
    """Return a text for ``counted``, by the number of things."""
    return translation.ngettext_lazy(one, many, "count")


def counted(text: Promise, count: int, **values: Any) -> str:
    """Return a text of ``ngettext_lazy`` with ``count`` as its number; the text has ``%(number)s`` in its place."""
    return str(text % {"count": count, "number": number(count), **values})


def state_label(state: str) -> str:
    return str(STATES.get(state, state))


def schedule_state(state: str) -> str:
    return str(SCHEDULE_STATES[state])


def result_label(result: str) -> str:
    return str(RESULTS.get(result, result))


def results_text(counts: Mapping[str, int]) -> str:
    """Return the counts of results: 3 done, 1 too late."""
    return ", ".join(f"{number(count)} {result_label(result)}" for result, count in counts.items())


def gate_label(scope: str, name: str) -> str:
    texts = {"queue": _("queue %(name)s"), "task": _("task %(name)s"), "group": _("group %(name)s")}
    return texts[scope] % {"name": printable(name)} if scope in texts else _("everything")


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
        """Return 16:58 - 16:59, with the day where that is not today; whole days are their dates."""
        date, last = self.date(from_ms), self.date(to_ms - 1)
        if self.clock(from_ms) == self.clock(to_ms) == "00:00":
            return date if date == last else f"{date} - {last}"
        if to_ms - from_ms >= DAY_MS - HOUR_MS:  # from the midnight of a zone that is half an hour off
            return f"{date} {self.clock(from_ms)} - {self.date(to_ms)} {self.clock(to_ms)}"
        text = self.clock(from_ms) if to_ms - from_ms <= 1_000 else f"{self.clock(from_ms)} - {self.clock(to_ms)}"
        return self._days.get(date, f"{date} %(time)s") % {"time": text}

    def distance(self, at_ms: int | None) -> str:
        return relative(at_ms, self.now_ms)


@lru_cache(4_096)
def _local(at_s: int, zone: tzinfo) -> tuple[str, str]:
    """Return date and time of day; pages ask for the same seconds again and again."""
    moment = in_zone(at_s * 1_000, zone)
    if moment is None:
        return f"{at_s} s", ""
    return f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}"
