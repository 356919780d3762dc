"""Restore: a schedule with the progress that it had in another store or system. It goes on where it stopped there.

::

    {"schedule": {"definition": text, "source", "revision", "next_ms", "made", "last_ms", "paused", "note", "broken",
                  "since_ms"},         the fields of a Schedule but its id and its name; all but the first have defaults
     "revisions": [{"number", "what", "actor", "reason", "at_ms", "before"}, …]}        its changes there, by number

Instants between ``next_ms`` and now were missed: the schedule's catch-up decides on them, as after an outage. No
instant before ``next_ms`` is made here. A definition that this version cannot read makes a broken schedule.

Every field is checked here: a value that no store accepts would fail in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.checks import check_type, check_whole, refuse
from celery_wheel.recurring.definition import read_definition, reason_not_run
from celery_wheel.store.schedule_model import Revision, Schedule, is_same_definition
from celery_wheel.values.text import END_OF_TIME_MS, text_rule

#: The largest number of a revision; the column has 32 bits, and changes are still to come.
MAX_NUMBER = 2**30

_DEFAULTS: dict[str, Any] = {
    **{"source": "api", "revision": 0, "next_ms": None, "made": 0, "last_ms": None},
    **{"paused": False, "note": "", "broken": False, "since_ms": None},
}
_REVISION = ("number", "what", "actor", "reason", "at_ms", "before")


def restored(name: str, document: Any, now_ms: int) -> tuple[Schedule, list[Revision]]:
    """Return a schedule and its revisions, both without the schedule's number. Raises RecurrenceError."""
    values = _fields("schedule", _field(document, "schedule"), ("definition", *_DEFAULTS), _DEFAULTS)
    for field in ("definition", "note"):
        _check_text(field, values[field])
    _check_text("source", values["source"], short=True)
    check_whole("revision", values["revision"], 0, MAX_NUMBER)
    check_whole("made", values["made"], 0, 2**62)
    for field in ("next_ms", "last_ms", "since_ms"):
        if values[field] is not None:
            check_whole(field, values[field], -1, END_OF_TIME_MS - 1)
    for field in ("paused", "broken"):
        check_type(field, values[field], bool)
    schedule = Schedule(0, name, **values)
    return _stopped(schedule, now_ms), _revisions(schedule, _field(document, "revisions", []))


def restores(document: Any, schedule: Schedule) -> bool:
    """Whether a document has the definition of a schedule that exists; False for one that cannot be read."""
    of_schedule = document.get("schedule") if isinstance(document, Mapping) else None
    definition = of_schedule.get("definition") if isinstance(of_schedule, Mapping) else None
    return isinstance(definition, str) and is_same_definition(definition, schedule.definition)


def _stopped(schedule: Schedule, now_ms: int) -> Schedule:
    """Return the schedule; where it is paused or broken, without a next instant, and with ``since_ms``."""
    with suppress(ValueError, RecursionError):
        if reason_not_run(json.loads(schedule.definition)) is not None:
            return replace(schedule, next_ms=None)
    try:
        read_definition(schedule.definition)
    except RecurrenceError as error:
        schedule = replace(schedule, broken=True, note=schedule.note or str(error)[:1_000])
    if not schedule.paused and not schedule.broken:
        return replace(schedule, since_ms=None)
    since_ms = schedule.decided_upto(now_ms) if schedule.since_ms is None else schedule.since_ms
    return replace(schedule, next_ms=None, since_ms=since_ms)


def _revisions(schedule: Schedule, documents: Any) -> list[Revision]:
    if not isinstance(documents, list):
        refuse("revisions", "a list", documents)
    found = [_revision(schedule.name, one) for one in documents]
    numbers = [one.number for one in found]
    if numbers != sorted(set(numbers)) or max(numbers, default=0) > schedule.revision:
        refuse("revisions", f"in the order of their numbers, each once, up to {schedule.revision}", numbers)
    return found


def _revision(name: str, document: Any) -> Revision:
    values = _fields("revision", document, _REVISION, {})
    for field in ("what", "actor", "reason", "before"):
        _check_text(f"revision.{field}", values[field])
    check_whole("revision.number", values["number"], 1, MAX_NUMBER)
    check_whole("revision.at_ms", values["at_ms"], 0, END_OF_TIME_MS - 1)
    return Revision(0, name=name, **values)


def _field(document: Any, name: str, default: Any = None) -> Any:
    if not isinstance(document, Mapping):
        refuse("the definition", 'an object like {"schedule": …, "revisions": […]}', document)
    return document.get(name, default)


def _fields(what: str, document: Any, names: tuple[str, ...], defaults: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(document, Mapping) or not set(names) - set(defaults) <= set(document) <= set(names):
        refuse(what, f"an object with the fields {', '.join(names)}", document)
    return {**defaults, **document}


def _check_text(field: str, value: Any, *, short: bool = False) -> None:
    if rule := text_rule(value, 1 if short else 0, any_length=not short):
        refuse(field, rule, value)
