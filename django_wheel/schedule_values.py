"""The definition of a schedule as the values of its form, and back.

::

    {"recurrence": {"spec": {"kind": "crontab", …}, "zone": …, "without": …}, "task": …}
        │ to_values   ▲ to_document
        ▼             │
    {"kind": "crontab", "minute": "0", …, "zone": …, "weekdays": ["sat"], "calendar": "", "task": …}

A form has fields for days of the week, one calendar of holidays, and dates; any other part of ``without`` is JSON in
the field ``calendar``. A definition that the form does not change stays as it is, also where it names a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from celery_wheel.recurring.definition import MAX_RUNTIME_MS
from celery_wheel.recurring.local import zone_of
from django_wheel.forms import moment_text

Document = dict[str, Any]

CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year", "second")
#: Kind of a spec → its fields in the form: the name in the definition → the name in the form.
SPECS: dict[str, dict[str, str]] = {
    "crontab": {name: name for name in CRONTAB},
    "interval": {"every_ms": "every", "anchor_ms": "anchor"},
    "rrule": {"text": "rrule"},
    "solar": {"event": "event", "latitude": "latitude", "longitude": "longitude"},
    "instants": {"at_ms": "instants"},
}
#: Values of the recurrence, and of the whole definition: name in the definition → (name in the form, default).
OF_RECURRENCE: dict[str, tuple[str, Any]] = {
    "zone": ("zone", "UTC"),
    "gap": ("gap", "shift"),
    "fold": ("fold", "first"),
    "start_ms": ("start", None),
    "until_ms": ("until", None),
    "times": ("times", None),
}
OF_DEFINITION: dict[str, tuple[str, Any]] = {
    "task": ("task", None),
    "args": ("args", []),
    "kwargs": ("kwargs", {}),
    "options": ("options", {}),
    "catch_up": ("catch_up", "latest"),
    "catch_up_ms": ("catch_up_within", None),
    "overlap": ("overlap", "allow"),
    "max_runtime_ms": ("max_runtime", MAX_RUNTIME_MS),
    "jitter_ms": ("jitter", 0),
    "jitter_by": ("jitter_by", "run"),
}
CALENDAR = ("weekdays", "holidays_country", "holidays_subdivision", "dates", "calendar")
_MOMENTS, _JSON = ("start", "until"), ("args", "kwargs", "options")


def to_values(document: Mapping[str, Any]) -> Document:
    """Return the initial values of the form for a definition that can be read."""
    recurrence = document["recurrence"]
    spec, zone = recurrence["spec"], zone_of(recurrence.get("zone", "UTC")) or UTC
    values: Document = {"kind": spec["kind"]}
    if spec["kind"] == "crontab":
        values |= {**dict.fromkeys(CRONTAB, "*"), "second": "0"}
    for name, field in SPECS[spec["kind"]].items():
        if name in spec:
            values[field] = spec[name]
    if "anchor" in values:
        values["anchor"] = moment_text(values["anchor"], zone)
    if "instants" in values:
        values["instants"] = "\n".join(moment_text(at_ms, zone) for at_ms in values["instants"])
    for part, names in ((recurrence, OF_RECURRENCE), (document, OF_DEFINITION)):
        values |= {field: part.get(name, default) for name, (field, default) in names.items()}
    values |= {field: moment_text(values[field], zone) for field in _MOMENTS if values[field] is not None}
    values |= {field: json.dumps(values[field], indent=2, ensure_ascii=False) for field in _JSON}
    return values | _calendar_values(recurrence.get("without"))


def _calendar_values(without: Document | None) -> Document:
    """Return a calendar as values of the form; parts for which it has no field are JSON."""
    values: Document = {"weekdays": [], "holidays_country": "", "holidays_subdivision": "", "dates": ""}
    rest = []
    for part in _parts(without):
        if part["kind"] == "weekdays" and not values["weekdays"]:
            values["weekdays"] = part["days"]
        elif part["kind"] == "holidays" and not values["holidays_country"]:
            values["holidays_country"] = part["country"]
            values["holidays_subdivision"] = part.get("subdivision", "")
        elif part["kind"] == "dates" and not values["dates"]:
            values["dates"] = "\n".join(part["dates"])
        else:
            rest.append(part)
    found = joined(rest)
    return {**values, "calendar": json.dumps(found, indent=2, ensure_ascii=False) if found else ""}


def _parts(without: Document | None) -> list[Document]:
    if without is None:
        return []
    return list(without["parts"]) if without["kind"] == "any_of" else [without]


def joined(parts: list[Document]) -> Document | None:
    """Return the calendar that has all parts."""
    if len(parts) > 1:
        return {"kind": "any_of", "parts": parts}
    return parts[0] if parts else None


def to_document(before: Document, spec: Document, without: Document | None, values: Mapping[str, Any]) -> Document:
    """Return a definition with the values of the form, in the place of those that it had before."""
    recurrence = dict(before.get("recurrence") or {"kind": "recurrence"})
    recurrence["spec"] = spec
    _put(recurrence, "without", without, None)
    for name, (field, default) in OF_RECURRENCE.items():
        _put(recurrence, name, values.get(field), default)
    document = {**before, "recurrence": recurrence}
    for name, (field, default) in OF_DEFINITION.items():
        _put(document, name, values.get(field), default)
    return document


def _put(document: Document, name: str, value: Any, default: Any) -> None:
    if value is None or value == "":
        value = default
    if value == document.get(name, default):
        return
    if value == default:
        del document[name]
    else:
        document[name] = value


def field_of(path: str, kind: str) -> str | None:
    """Return the field of the form for the path in a RecurrenceError; None for the form as a whole."""
    path = path.removeprefix("recurrence.")
    if path.startswith("without"):
        return "calendar"
    if path == "spec" or path.startswith("spec."):
        fields = SPECS[kind]
        name = path.removeprefix("spec").removeprefix(".").partition("[")[0]
        return fields.get(name, next(iter(fields.values())))
    name = path.partition(".")[0].partition("[")[0]
    found = OF_RECURRENCE.get(name) or OF_DEFINITION.get(name)
    return found[0] if found else None
