"""The definition of a schedule: JSON of a recurrence, a call and policies.

::

    {"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0"}},      see ``recurring.document``
     "task": "app.report", "args": [], "kwargs": {}, "options": {"queue": "mail"},               see ``recurring.call``
     "jitter_ms": 60000, "jitter_by": "run",
     "catch_up": "latest", "overlap": "skip", "max_runtime_ms": 600000}

    catch_up         of the instants that the scheduler missed
        latest       the last one runs, unless a later instant is on time; the default
        all          those of the last ``catch_up_ms`` run, which must be given
        none         none of them runs
    overlap          at an instant at which an earlier run is not over
        allow        another run starts; the default
        skip         the instant is skipped
        queue_one    the latest such instant runs when the earlier run is over; the instants before it are skipped
        cancel_running   the earlier run is cancelled, and the instant runs
    max_runtime_ms   a run counts as over after this time, where its worker does not say that it ended; a day by default

A source (``scheduler.sources``) may also store an entry that the wheel does not run: its definition has the task and
the reason alone::

    {"task": "app.report", "broken": "args must be JSON"}          the entry cannot be read
    {"task": "app.report", "base": "its schedule is a Market"}     Beat's own scheduler runs it

A *patch* has new values for some of the fields, and for single values of ``recurrence`` and ``options``. None removes a
value, so that its default holds again.

Any other field is refused, with its path. Definitions that were read are cached by their text. The first read imports
the specs, and with them Celery's parser of crontabs; the engine itself imports neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_wheel import recurring
from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring.call import FIELDS, ScheduledCall, check_call
from celery_wheel.recurring.checks import check_choice, check_duration, check_names, refuse
from celery_wheel.values.format import format_duration
from celery_wheel.values.text import END_OF_TIME_MS

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence

LATEST, ALL, NONE = "latest", "all", "none"
ALLOW, SKIP, QUEUE_ONE, CANCEL_RUNNING = "allow", "skip", "queue_one", "cancel_running"
OVERLAPS = (ALLOW, SKIP, QUEUE_ONE, CANCEL_RUNNING)

#: A policy of backfills alone: each of the instants runs when the run before it is over.
QUEUE_ALL = "queue_all"
BACKFILL_OVERLAPS = (*OVERLAPS, QUEUE_ALL)

#: Fields of an entry that the wheel does not run: the reason.
BROKEN, BASE = "broken", "base"

#: ``max_runtime_ms`` of a definition without one: a day.
MAX_RUNTIME_MS = 86_400_000

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

#: Definitions that stay read; one has about 2 KB.
CACHED = 10_000

_POLICIES = ("catch_up", "catch_up_ms", "overlap", "max_runtime_ms")
_FIELDS = ("recurrence", *FIELDS, *_POLICIES)


@dataclass(frozen=True, slots=True)
class Definition:
    recurrence: Recurrence
    call: ScheduledCall
    catch_up: str = LATEST
    catch_up_ms: int = 0
    overlap: str = ALLOW
    max_runtime_ms: int = MAX_RUNTIME_MS

    @property
    def is_guarded(self) -> bool:
        """Whether an instant has to wait for its time, and for earlier runs."""
        return self.overlap != ALLOW


@lru_cache(CACHED)
def read_definition(text: str) -> Definition:
    """Return the definition of a JSON text. Raises RecurrenceError, which names the field by its path."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecurrenceError(f"the definition must be JSON, got {text!r:.100}: {error}") from None
    try:
        return _checked(document)
    except PackageMissing as error:  # the schedule was made where the package is installed
        raise RecurrenceError(f"recurrence: {error}") from None
    except RecursionError:
        raise RecurrenceError(f"the definition must be nested less deeply, got {text!r:.100}") from None


def to_text(document: object) -> str:
    """Return the JSON text of a definition. Raises RecurrenceError where the definition is invalid."""
    text = dumped(document)
    if reason_not_run(document) is None:
        read_definition(text)
    return text


def read_document(document: object) -> tuple[str, Definition]:
    """Return the text of a definition that was read from JSON, and the definition. Raises RecurrenceError."""
    return dumped(document), _checked(document)


def dumped(document: object) -> str:
    """Return the JSON text of values, without checking them as a definition. Raises RecurrenceError."""
    try:
        return _encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(document, Mapping) and len(document) > 1:
            for name, value in document.items():
                dumped({name: value})  # names the value
        name, value = next(iter(document.items())) if isinstance(document, Mapping) else ("the definition", document)
        raise RecurrenceError(f"{name} must be values of JSON, got {value!r:.100} ({error})") from None


def reason_not_run(document: object) -> str | None:
    """Return the reason for which the wheel does not run an entry, as stored by its source; None for a definition."""
    if isinstance(document, Mapping) and len(document) == 2 and isinstance(document.get("task"), str):
        for kind in (BROKEN, BASE):
            if isinstance(reason := document.get(kind), str):
                return reason
    return None


def patched(text: str, patch: object) -> dict[str, Any]:
    """Return the document of a definition with the values of a patch. Raises RecurrenceError."""
    if not isinstance(patch, Mapping):
        refuse("the change", 'an object like {"recurrence": {"zone": "Europe/Paris"}}', patch)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RecurrenceError(f"the definition cannot be read, and has to be replaced as a whole, got {text!r:.100}")
    return merged(document, patch)


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the values of a patch; None removes a value."""
    changes = dict(patch)
    for name in ("recurrence", "options"):
        old, new = document.get(name, {}), changes.get(name)
        if isinstance(old, dict) and isinstance(new, Mapping):
            changes[name] = {field: value for field, value in {**old, **new}.items() if value is not None}
    every = {**document, **changes}
    return {field: value for field, value in every.items() if value is not None and value != {}}


def _checked(document: object) -> Definition:
    if not isinstance(document, Mapping):
        refuse("the definition", 'an object like {"recurrence": …, "task": "app.report"}', document)
    if (reason := reason_not_run(document)) is not None:
        raise RecurrenceError(reason)
    check_names("", document, _FIELDS, "a field of a definition")
    call = check_call(document)
    recurrence = _recurrence(json.dumps(document.get("recurrence")))
    return Definition(recurrence, call, **_policies(document))


@lru_cache(CACHED)
def _recurrence(text: str) -> Recurrence:
    """Return the recurrence of a JSON text: schedules that differ in their arguments share one."""
    document = json.loads(text)
    try:
        recurrence = recurring.from_json(document)
    except RecurrenceError as error:
        raise RecurrenceError(f"recurrence: {error}") from None
    if not isinstance(recurrence, recurring.Recurrence):
        refuse("recurrence", 'an object of kind "recurrence"', document)
    return recurrence


def _policies(document: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: document[name] for name in _POLICIES if name in document}
    check_choice("catch_up", found.get("catch_up", LATEST), (LATEST, ALL, NONE))
    check_choice("overlap", found.get("overlap", ALLOW), OVERLAPS)
    for name in ("catch_up_ms", "max_runtime_ms"):
        if name in found:
            check_duration(name, found[name], 1, END_OF_TIME_MS)
    if (found.get("catch_up") == ALL) != ("catch_up_ms" in found):
        window_ms = found.get("catch_up_ms")
        rule = 'given with the catch_up "all", and with no other'
        refuse("catch_up_ms", rule, None if window_ms is None else format_duration(window_ms))
    return found
