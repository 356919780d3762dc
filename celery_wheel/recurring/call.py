"""The call of a definition: the task, its arguments and options, and the jitter. Pure; no Celery.

::

    {"task": "app.report", "args": [], "kwargs": {},
     "options": {"queue": "mail", "priority": 3, "expires": 600, "wheel": {"misfire": "skip", "key": "acme"}},
     "jitter_ms": 60000, "jitter_by": "name"}

    options     those of apply_async in OPTIONS; expires is in seconds after the occurrence is due
    wheel       misfire ("run", "skip" or seconds) and key, as in ``celery_wheel.producer.options``
    jitter_ms   the most milliseconds by which a run is due after its instant
    jitter_by   run: the delay is drawn for each instant; the default. name: it is drawn once, from the name

The API calls ``check_call`` before a request, the sources call it for entries, and the engine for stored definitions.
A queue that the app lacks, and arguments that the task does not take, are found when the message is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_wheel.recurring.checks import check_choice, check_duration, check_names, check_text, check_whole, refuse
from celery_wheel.values.text import END_OF_TIME_MS, text_rule

BY_RUN, BY_NAME = "run", "name"

#: A longer jitter is a mistake in the unit.
MAX_JITTER_MS = 7 * 86_400_000

#: A longer duration is a mistake in the unit, as for the options of ``apply_async(wheel=…)``.
MAX_SECONDS = 366 * 86_400

#: Headers that the wheel itself gives to an occurrence.
OWN_HEADERS = ("wheel", "wheel_occurrence", "wheel_native", "wheel_redelivered")

#: The fields of a definition that this module reads.
FIELDS = ("task", "args", "kwargs", "options", "jitter_ms", "jitter_by")


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

    def due_ms(self, schedule_id: int, name: str, instant_ms: int) -> int:
        """Return when an occurrence is due: its instant and the jitter, which is the same for each call."""
        if not self.jitter_ms:
            return instant_ms
        seed = name if self.jitter_by == BY_NAME else f"{schedule_id} {instant_ms}"
        drawn = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest()) % (self.jitter_ms + 1)
        return min(instant_ms + drawn, END_OF_TIME_MS - 1)


def check_call(document: Mapping[str, Any]) -> ScheduledCall:
    """Return the call of a definition. Raises RecurrenceError, which names the field by its path.

    Other fields of the definition are ignored.
    """
    found: dict[str, Any] = {"task": _text("task", document.get("task"), "app.report")}
    for name, kind, example in (("args", list, "[]"), ("kwargs", dict, "{}"), ("options", dict, "{}")):
        value = document.get(name, kind())
        if not isinstance(value, kind):
            refuse(name, f"a JSON value like {example}", value)
        found[name] = value
    found["options"] = options = dict(found["options"])
    found["wheel"] = _checked("options.wheel", options.pop("wheel", {}), _WHEEL)
    _checked("options", options, OPTIONS)
    if "jitter_ms" in document:
        found["jitter_ms"] = check_duration("jitter_ms", document["jitter_ms"], 0, MAX_JITTER_MS)
    if "jitter_by" in document:
        found["jitter_by"] = check_choice("jitter_by", document["jitter_by"], (BY_RUN, BY_NAME))
    return ScheduledCall(**found)


def _checked(path: str, options: Any, known: Mapping[str, Callable[[str, Any], object]]) -> dict[str, Any]:
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

_WHEEL: dict[str, Callable[[str, Any], object]] = {"misfire": _misfire, "key": _text}
