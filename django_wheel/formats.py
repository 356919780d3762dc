"""Values in the form in which pages show them: times in the current time zone, counts, and translated labels.

``celery_wheel.values.format`` formats durations and the texts of messages; this module passes those functions on.
"""

from __future__ import annotations

from typing import Any

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.values.format import (
    NAME_CUT,
    PART_CUT,
    format_duration,
    format_part,
    hex_dump,
    printable,
    to_datetime,
)

__all__ = [
    "NAME_CUT",
    "PART_CUT",
    "clock",
    "counted",
    "format_duration",
    "format_part",
    "gate_label",
    "hex_dump",
    "instant",
    "number",
    "printable",
    "result_label",
    "schedule_state",
    "second",
    "state_label",
    "to_datetime",
]

#: States of a message and kinds of its outcomes, as the store names them.
STATES = {
    "pending": gettext_lazy("pending"),
    "leaving": gettext_lazy("being dispatched"),
    "dispatched": gettext_lazy("dispatched"),
    "rejected": gettext_lazy("rejected"),
    "cancelled": gettext_lazy("cancelled"),
    "expired": gettext_lazy("expired"),
    "parked": gettext_lazy("parked"),
    "moved": gettext_lazy("moved"),
}
#: States of a schedule.
SCHEDULE_STATES = {
    "active": gettext_lazy("active"),
    "paused": gettext_lazy("paused"),
    "broken": gettext_lazy("broken"),
    "ended": gettext_lazy("ended"),
    "base": gettext_lazy("run by Beat"),
}
#: Results of a request, as ``celery_wheel.requests.results`` names them.
RESULTS = {
    "done": gettext_lazy("done"),
    "already": gettext_lazy("already"),
    "too_late": gettext_lazy("too late"),
    "unknown": gettext_lazy("unknown"),
    "refused": gettext_lazy("refused"),
}


def instant(at_ms: int | None) -> str:
    """Return a time in the current time zone, to the millisecond."""
    if not at_ms:
        return "-"
    moment = to_datetime(at_ms)
    if moment is None:
        return f"{at_ms} ms"
    try:
        local = localtime(moment)
    except OverflowError:  # the last hours of the calendar, in a zone that is ahead of UTC
        local = moment
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03}"


def second(at_ms: int | None) -> str:
    """Return a time without the milliseconds that instants of schedules rarely have."""
    return instant(at_ms).removesuffix(".000")


def clock(at_ms: int | None) -> str:
    """Return the time without its date, for times that are near."""
    return instant(at_ms).partition(" ")[2] or instant(at_ms)


def number(value: int | None) -> str:
    """Return a count with its thousands set apart, as the current language does."""
    return "-" if value is None else str(number_format(value, force_grouping=True))


def counted(text: Promise, count: int, **values: Any) -> str:
    """Return a text of ``ngettext_lazy`` with ``count`` as its number; the text has ``%(number)s`` in its place."""
    return str(text % {"count": count, "number": number(count), **values})


def state_label(state: str) -> str:
    return str(STATES.get(state, state))


def schedule_state(state: str) -> str:
    return str(SCHEDULE_STATES[state])


def result_label(result: str) -> str:
    return str(RESULTS.get(result, result))


def gate_label(scope: str, name: str) -> str:
    """Return the part of the tasks that a gate holds."""
    if scope == "queue":
        return _("queue %(name)s") % {"name": printable(name)}
    if scope == "task":
        return _("task %(name)s") % {"name": printable(name)}
    return _("everything")
