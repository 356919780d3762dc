"""The definition of a schedule: JSON of a recurrence, a call and policies.

::

    {"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0"}},      see ``recurring.document``
     "task": "app.report", "args": [], "kwargs": {},
     "options": {"queue": "mail", "priority": 3, "expires": 600, "wheel": {"misfire": "skip", "group": "tenant:42"}},
     "jitter_ms": 60000, "jitter_by": "run",
     "catch_up": "latest", "overlap": "skip", "max_runtime_ms": 600000}

    options          those of apply_async in OPTIONS; expires is in seconds after the occurrence is due; wheel may have
                     misfire, and a group or a key
    jitter_by        run: the delay is drawn for each instant; name: it is drawn once, from the name
    catch_up         of missed instants runs: latest, the last one, unless a later instant is on time; all, those of the
                     last ``catch_up_ms``, which must be given; none
    overlap          while an earlier run is not over: allow, another starts; skip; queue_one, the latest such instant
                     runs when it is over; cancel_running, the earlier run is cancelled
    max_runtime_ms   a run counts as over after this time, where its worker does not say that it ended; a day by default

A source may also store an entry that the wheel does not run: ``{"task": …, "broken": reason}`` cannot be read, and
Beat's own scheduler runs ``{"task": …, "base": reason}``. A *patch* has new values for some of the fields, and for
single values of ``recurrence`` and ``options``; None removes a value. A queue that the app lacks, and arguments that
the task does not take, are found when the message is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_wheel import recurring
from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring.checks import check_choice, check_duration, check_names, check_text, check_whole, refuse
from celery_wheel.values.format import format_duration
from celery_wheel.values.text import END_OF_TIME_MS, group_name_rule, group_rule, text_rule

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence


BY_RUN, BY_NAME = "run", "name"

#: A longer jitter or duration is a mistake in the unit, as for the options of ``apply_async(wheel=…)``.
MAX_JITTER_MS, MAX_SECONDS = 7 * 86_400_000, 366 * 86_400

#: Headers that the wheel itself gives to an occurrence.
OWN_HEADERS = ("wheel", "wheel_group", "wheel_occurrence", "wheel_native", "wheel_redelivered")


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """A checked call. Its values are shared by all occurrences: do not change them."""

    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  #: of apply_async, without wheel
    wheel: dict[str, Any] = field(default_factory=dict)
    jitter_ms: int = 0
    jitter_by: str = BY_RUN

    def options_at(self, due: datetime, task: Any) -> dict[str, Any]:
        """Return the options of an occurrence, whose headers may be changed.

        ``expires``, of the schedule or else of its task, is a time: an occurrence may be made long before it is due.
        """
        options = {**self.options, "headers": dict(self.options.get("headers", {}))}
        expires = options.get("expires", getattr(task, "expires", None))
        if isinstance(expires, int | float):
            options["expires"] = due + timedelta(seconds=expires)
        return options

    def due_ms(self, schedule_id: int, name: str, instant_ms: int) -> int:
        """Return when an occurrence is due: its instant and the jitter, which is the same for each call."""
        if not self.jitter_ms:
            return instant_ms
        seed = name if self.jitter_by == BY_NAME else f"{schedule_id} {instant_ms}"
        drawn = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest()) % (self.jitter_ms + 1)
        return min(instant_ms + drawn, END_OF_TIME_MS - 1)


def check_call(document: Mapping[str, Any]) -> ScheduledCall:
    """Return the call of a definition; other fields are ignored. Raises RecurrenceError, which names the field."""
    found: dict[str, Any] = {"task": _text("task", document.get("task"), "app.report")}
    for name, kind, example in (("args", list, "[]"), ("kwargs", dict, "{}"), ("options", dict, "{}")):
        value = document.get(name, kind())
        if not isinstance(value, kind):
            refuse(name, f"a JSON value like {example}", value)
        found[name] = value
    found["options"] = options = dict(found["options"])
    found["wheel"] = wheel = _checked_options("options.wheel", options.pop("wheel", {}), _WHEEL)
    if (group := wheel.get("group")) and (rule := group_rule(group, wheel.get("key"))):
        raise RecurrenceError(f"options.wheel.{rule}")
    _checked_options("options", options, OPTIONS)
    if "jitter_ms" in document:
        found["jitter_ms"] = check_duration("jitter_ms", document["jitter_ms"], 0, MAX_JITTER_MS)
    if "jitter_by" in document:
        found["jitter_by"] = check_choice("jitter_by", document["jitter_by"], (BY_RUN, BY_NAME))
    return ScheduledCall(**found)


def _checked_options(path: str, options: Any, known: Mapping[str, Callable[[str, Any], object]]) -> dict[str, Any]:
    if not isinstance(options, dict):
        refuse(path, "a JSON object", options)
    check_names(path, options, known, "an option of a schedule")
    for name, value in options.items():
        known[name](f"{path}.{name}", value)
    return options


def _text(path: str, value: Any, example: str = "mail") -> str:
    text = check_text(path, value, example)
    if rule := text_rule(text):
        refuse(path, rule, value)
    return text


def _flag(path: str, value: Any) -> None:
    if not isinstance(value, bool):
        refuse(path, "true or false", value)


def _seconds(path: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:  # NaN is not
        refuse(path, f"a number of seconds, more than 0 and at most {MAX_SECONDS:,}", value)


def _misfire(path: str, value: Any) -> None:
    if value in ("run", "skip") if isinstance(value, str) else value == 0 and not isinstance(value, bool):
        return
    if isinstance(value, str):
        refuse(path, '"run", "skip" or a number of seconds', value)
    _seconds(path, value)


def _group(path: str, value: Any) -> None:
    if value is not None:  # it says that there is none
        check_text(path, value, "tenant:42")
        if rule := group_name_rule(value):
            refuse(path, rule, value)


def _headers(path: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse(path, 'a JSON object like {"tenant": "acme"}', value)
    for name in value:
        if name in OWN_HEADERS:
            refuse(f"{path}.{name}", f"a header other than {', '.join(OWN_HEADERS)}, which the wheel sets", value[name])


def _signatures(path: str, value: Any) -> None:
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict) or not isinstance(one.get("task"), str):
            refuse(path, "a signature as JSON, or a list of them", one)


#: The options of ``apply_async`` that a schedule may have, each with its check.
OPTIONS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(
        ("queue", "routing_key", "exchange", "exchange_type", "serializer", "compression", "shadow", "reply_to"), _text
    ),
    "priority": lambda path, value: check_whole(path, value, 0, 255),
    "delivery_mode": lambda path, value: check_whole(path, value, 1, 2),
    **dict.fromkeys(("expires", "time_limit", "soft_time_limit"), _seconds),
    "ignore_result": _flag,
    "headers": _headers,
    **dict.fromkeys(("link", "link_error"), _signatures),
}

_WHEEL: dict[str, Callable[[str, Any], object]] = {"misfire": _misfire, "key": _text, "group": _group}


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
_FIELDS = ("recurrence", "task", "args", "kwargs", "options", "jitter_ms", "jitter_by", *_POLICIES)


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
    except (RecurrenceError, PackageMissing) as error:  # a package that is installed where the schedule was made
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
