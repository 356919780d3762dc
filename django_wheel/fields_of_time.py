"""Times and durations in forms: a date and time of a zone, and a duration as a number with its unit."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.recurring.local import resolve
from celery_wheel.values.text import END_OF_TIME_MS
from django_wheel.formats import to_datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Milliseconds of each unit; the largest first.
UNITS = (
    (604_800_000, gettext_lazy("weeks")),
    (86_400_000, gettext_lazy("days")),
    (3_600_000, gettext_lazy("hours")),
    (60_000, gettext_lazy("minutes")),
    (1_000, gettext_lazy("seconds")),
    (1, gettext_lazy("milliseconds")),
)


def moment_ms(text: str, zone: tzinfo) -> int:
    """Return a date and time as Unix milliseconds. Raises ValidationError, with the rule.

    Without an offset it is in ``zone``; a time that exists twice is the first of the two.
    """
    try:
        moment = parse_datetime(text.strip())
    except ValueError:
        moment = None
    if moment is None:
        text = _("Enter a date and time like 2026-11-21 08:30, or with an offset: 2026-11-21 08:30+01:00.")
        raise ValidationError(text)
    if moment.tzinfo is None:
        found = resolve(moment, zone)
        if found.kind == "gap":
            raise ValidationError(_("This time does not exist: the clocks skip it."))
        moment = found.first
    at_ms = round((moment - _EPOCH).total_seconds() * 1_000)
    if not 0 <= at_ms < END_OF_TIME_MS:
        raise ValidationError(_("The time must be from 1970 to the end of 9998."))
    return at_ms


def moment_text(at_ms: int, zone: tzinfo) -> str:
    """Return the text of an instant that ``moment_ms`` reads; it has an offset where the time exists twice."""
    moment = to_datetime(at_ms)
    if moment is None:
        return str(at_ms)
    local = moment.astimezone(zone)
    is_twice = resolve(local.replace(tzinfo=None, fold=0), zone).kind == "fold"
    timespec = "milliseconds" if at_ms % 1_000 else "seconds"
    return (local if is_twice else local.replace(tzinfo=None)).isoformat(" ", timespec)


class DurationWidget(forms.MultiWidget):
    """A number and its unit."""

    def __init__(self, attrs: Any = None) -> None:
        number = forms.TextInput(attrs={"inputmode": "numeric", "size": 8})
        choices = [(str(ms), label) for ms, label in UNITS]
        unit = forms.Select(attrs={"aria-label": gettext_lazy("Unit")}, choices=choices)
        super().__init__([number, unit], attrs)

    def id_for_label(self, id_: str) -> str:
        return f"{id_}_0"

    def decompress(self, value: Any) -> list[Any]:
        if not isinstance(value, int):
            return ["", "60000"]
        ms = next((ms for ms, _label in UNITS if value and value % ms == 0), 60_000)
        return [value // ms, str(ms)]


class DurationMsField(forms.MultiValueField):
    """A duration in milliseconds; None where the number is empty."""

    widget = DurationWidget

    def __init__(self, **options: Any) -> None:
        fields = (
            forms.IntegerField(required=False, min_value=0, max_value=END_OF_TIME_MS),
            forms.TypedChoiceField(coerce=int, choices=[(str(ms), label) for ms, label in UNITS], required=False),
        )
        super().__init__(fields=fields, require_all_fields=False, required=False, **options)

    def compress(self, data_list: Any) -> int | None:
        if not data_list or data_list[0] is None:
            return None
        return int(data_list[0]) * int(data_list[1] or 1)
