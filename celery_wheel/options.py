"""``apply_async(…, wheel=…)``: what a single call may ask of the wheel.

``None`` or ``True`` asks for nothing, ``False`` leaves the delay to Celery itself, a dict sets options:

    key            tasks that share a key share a shard, and so leave in order even where there are several shards
    unique         of this name only one task waits; on_conflict says which: "keep" the one that waits (throttle),
                   "replace" it (debounce), or "reject" the new one, so that people see it
    watch          names like "order:42"; ``app.wheel.complete("order:42")`` cancels what watches it, or runs it
    jitter         seconds: the eta is put off by a random part of them, so that a crowd does not come at once
    misfire        of what is found late, after an outage or a pause: "run" it, "skip" it when it is more than a
                   minute late, or a number: when it is more than so many seconds late
    transactional  True: schedule if and only if the caller's own Django transaction commits, also what has no delay;
                   False: without regard to it. It comes before the setting wheel_transactional

Anything else raises at the call. A route in ``task_routes`` may carry ``wheel`` too, but for ``transactional``; what
the call asks comes first.

Under ``task_always_eager`` nothing is sent and so nothing is looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from celery_wheel.broker.envelope import MAX_WATCHED
from celery_wheel.store.model import KEEP, REJECT, REPLACE
from celery_wheel.store.text import check_text

KNOWN = ("key", "unique", "on_conflict", "watch", "jitter", "misfire", "transactional")

#: "skip" is for what is found late, and not for what takes its usual fraction of a second.
SKIP_MS = 60_000

#: Longer than this is a mistake in the unit.
MAX_SECONDS = 366 * 86_400


@dataclass(frozen=True, slots=True)
class CallOptions:
    """``native``: Celery itself is to hold this message. What nobody asked for is None."""

    native: bool = False
    key: str | None = None
    unique: str | None = None
    on_conflict: str | None = None
    watch: tuple[str, ...] | None = None
    jitter_ms: int | None = None
    misfire_ms: int | None = None
    transactional: bool | None = None

    def over(self, route: CallOptions) -> CallOptions:
        """These options, and for what they leave open those of a route."""
        if route is PLAIN:
            return self
        open_ = {one.name: getattr(route, one.name) for one in fields(self) if getattr(self, one.name) is None}
        return replace(self, **open_)


PLAIN = CallOptions()
_NATIVE = CallOptions(native=True)


def parse(wheel: Any) -> CallOptions:
    """Raises TypeError for what is not known, ValueError for what makes no sense."""
    if wheel is None or wheel is True:
        return PLAIN
    if wheel is False:
        return _NATIVE
    if not isinstance(wheel, Mapping):
        raise TypeError(f"wheel must be True, False or a dict of options, got {wheel!r}")
    unknown = [option for option in wheel if option not in KNOWN]
    if unknown:
        raise TypeError(f"wheel options must be among {', '.join(KNOWN)}, got {', '.join(map(repr, unknown))}")
    unique, on_conflict = _text(wheel, "unique"), _on_conflict(wheel.get("on_conflict"))
    if on_conflict is not None and unique is None:
        raise ValueError("wheel option on_conflict needs the option unique beside it, which names what there is one of")
    return CallOptions(
        key=_text(wheel, "key"),
        unique=unique,
        on_conflict=on_conflict,
        watch=_watch(wheel.get("watch")),
        jitter_ms=_milliseconds("jitter", wheel.get("jitter")),
        misfire_ms=_misfire(wheel.get("misfire")),
        transactional=_flag("transactional", wheel.get("transactional")),
    )


def _text(wheel: Mapping[Any, Any], option: str) -> str | None:
    value = wheel.get(option)
    return None if value is None else name_of(option, value)


def name_of(option: str, value: Any) -> str:
    """Raises TypeError or ValueError for what is no name that a store can hold."""
    if not isinstance(value, str):
        raise TypeError(f"wheel option {option} must be a text, got {value!r}")
    return check_text(f"wheel option {option}", value)


def _on_conflict(value: Any) -> str | None:
    if value is not None and value not in (KEEP, REPLACE, REJECT):
        raise ValueError(f'wheel option on_conflict must be "{KEEP}", "{REPLACE}" or "{REJECT}", got {value!r}')
    found: str | None = value
    return found


def _watch(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    keys = (value,) if isinstance(value, str) else value
    if not isinstance(keys, (list, tuple, set, frozenset)):
        raise TypeError(f"wheel option watch must be a list of names, got {value!r}")
    if not 0 < len(keys) <= MAX_WATCHED:
        raise ValueError(f"wheel option watch must be a list of 1 to {MAX_WATCHED} names, got {len(keys)}")
    return tuple(name_of("watch", key) for key in keys)


def _misfire(value: Any) -> int | None:
    if value is None or value == "run":
        return None
    if value == "skip":
        return SKIP_MS
    if isinstance(value, str):
        raise ValueError(f'wheel option misfire must be "run", "skip" or a number of seconds, got {value!r}')
    return _milliseconds("misfire", value)


def _milliseconds(option: str, value: Any) -> int | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None:
        return None
    if type(value) not in (int, float):
        raise TypeError(f"wheel option {option} must be a number of seconds, got {value!r}")
    if not 0 <= value <= MAX_SECONDS:  # NaN is neither
        raise ValueError(f"wheel option {option} must be from 0 to {MAX_SECONDS:,} seconds, got {value!r}")
    exact: float = round(value * 1_000, 6)
    return math.ceil(exact)


def _flag(option: str, value: bool | None) -> bool | None:
    if value is not None and value is not True and value is not False:
        raise TypeError(f"wheel option {option} must be True or False, got {value!r}")
    return value
