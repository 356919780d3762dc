"""Definitions as JSON documents, and back.

::

    {"kind": "recurrence", "zone": "Europe/Paris",
     "spec": {"kind": "crontab", "minute": "0", "hour": "9"},
     "without": {"kind": "any_of", "parts": [{"kind": "weekdays", "days": ["sat", "sun"]},
                                             {"kind": "holidays", "country": "FR"}]}}

A key is a field of the class, and a field with its default is left out. Dates are ISO 8601 texts; instants and
durations are whole milliseconds. ``from_json`` refuses all that the class refuses, unknown kinds and unknown keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import date
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import calendars
from celery_wheel.recurring.checks import check_list, check_names, join, refuse
from celery_wheel.recurring.crontab import Crontab
from celery_wheel.recurring.recurrence import Recurrence
from celery_wheel.recurring.rrule import RRule
from celery_wheel.recurring.solar import Solar
from celery_wheel.recurring.specs import Instants, Interval, Spec

KINDS: dict[str, type[Recurrence] | type[Spec] | type[calendars.Calendar]] = {
    "recurrence": Recurrence,
    "interval": Interval,
    "crontab": Crontab,
    "solar": Solar,
    "rrule": RRule,
    "instants": Instants,
    "dates": calendars.Dates,
    "weekdays": calendars.Weekdays,
    "holidays": calendars.Holidays,
    "business_days": calendars.BusinessDays,
    "of_spec": calendars.OfSpec,
    "any_of": calendars.AnyOf,
    "all_of": calendars.AllOf,
    "except": calendars.Except,
}
_KIND_OF = {of: kind for kind, of in KINDS.items()}


def to_json(definition: Recurrence | Spec | calendars.Calendar) -> dict[str, Any]:
    """Return the document of a definition, of values that ``json.dumps`` writes."""
    found: dict[str, Any] = {"kind": _KIND_OF[type(definition)]}
    for field in fields(definition):  # type: ignore[arg-type]  # every kind is a dataclass
        if field.init and (value := getattr(definition, field.name)) != field.default:
            found[field.name] = _to_value(value)
    return found


def from_json(document: object) -> Recurrence | Spec | calendars.Calendar:
    """Return the definition of a document. Raises RecurrenceError, which names the field by its path."""
    return _read(document, "")


def _to_value(value: Any) -> Any:
    if isinstance(value, Recurrence | Spec | calendars.Calendar):
        return to_json(value)
    if isinstance(value, tuple):
        return [_to_value(one) for one in value]
    return value.isoformat() if isinstance(value, date) else value


def _read(document: object, path: str) -> Recurrence | Spec | calendars.Calendar:
    if not isinstance(document, Mapping):
        refuse(path or "the document", 'an object like {"kind": "crontab", "hour": "9"}', document)
    values = dict(document)
    kind = values.pop("kind", None)
    of = KINDS.get(kind) if isinstance(kind, str) else None
    if of is None:
        refuse(join(path, "kind"), f"one of {', '.join(KINDS)}", kind)
    known = {field.name: field.default is MISSING for field in fields(of) if field.init}  # type: ignore[arg-type]
    check_names(path, values, known, f"a field of {kind}")
    for name, is_required in known.items():
        if is_required and name not in values:
            raise RecurrenceError(f"{join(path, name)} must be given: {kind} has no default for it")
    arguments = {name: _to_argument(name, value, join(path, name)) for name, value in values.items()}
    try:
        return of(**arguments)
    except RecurrenceError as error:
        raise RecurrenceError(f"{path}.{error}" if path else str(error)) from None


def _to_argument(name: str, value: Any, path: str) -> Any:
    if name in ("spec", "without", "calendar"):  # whose value is a document
        return None if value is None else _read(value, path)
    if name == "parts":
        return tuple(_read(one, f"{path}[{number}]") for number, one in enumerate(check_list(path, value, "calendars")))
    return tuple(value) if isinstance(value, list) else value
