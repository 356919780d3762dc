"""``apply_async(…, wheel=…)``: the wheel's options of a single call.

``None`` and ``True`` set no option, ``False`` leaves the delay to Celery itself, a dict sets options:

    group          a tenant or a provider, like "tenant:42": its tasks share a shard and limits; None: no group, even if
                   the route, the setting wheel_group or the running task names one
    key            tasks that share a key share a shard, and so are dispatched in order with any number of shards
    unique         only one task of this name is pending; on_conflict chooses it: "keep" the pending task (throttle),
                   "replace" it (debounce), or "reject" the new one, so that people see it
    watch          names like "order:42"; ``app.wheel.complete("order:42")`` cancels the tasks that watch it, or runs
                   them
    jitter         seconds: a random part of them is added to the eta, so that a crowd does not come at once
    misfire        for a task that is late, after an outage or a pause: "run" it, "skip" it when it is more than a
                   minute late, or a number: skip it when it is more than so many seconds late
    transactional  True: schedule if and only if the caller's own Django transaction commits, also a call without a
                   delay; False: independently of it. It takes precedence over the setting wheel_transactional

``group``, ``unique``, ``watch``, ``jitter`` and ``misfire`` need the store, so a call with one of them goes to the
wheel also without a delay, or with one below ``wheel_min_delay``, and is due now. ``key`` alone says which shard a
pending task has, and a task without a delay is not pending.

A group chooses the shard. So a call of a group has no ``key``, unless it is the group; and its ``unique`` is the group,
or begins with the group and a colon, like "tenant:42:sync".

Any other option raises at the call. A route in ``task_routes`` may have ``wheel`` too, without ``transactional``; the
call's options take precedence; a route's apply to calls that go to the wheel.

Under ``task_always_eager`` nothing is sent, and the options are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from celery_wheel.broker.envelope import MAX_WATCHED
from celery_wheel.store.model import KEEP, REJECT, REPLACE
from celery_wheel.values.text import check_group, check_text, group_rule

KNOWN = ("key", "group", "unique", "on_conflict", "watch", "jitter", "misfire", "transactional")

#: "skip" concerns late tasks, not the usual fraction of a second.
SKIP_MS = 60_000

#: ``CallOptions.group`` of a call that says that it has none; no group has this name.
NO_GROUP = ""

#: A longer duration is a mistake in the unit.
MAX_SECONDS = 366 * 86_400


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Parsed options; None for an option that is not set. ``native``: Celery itself holds this message."""

    native: bool = False
    group: str | None = None
    key: str | None = None
    unique: str | None = None
    on_conflict: str | None = None
    watch: tuple[str, ...] | None = None
    jitter_ms: int | None = None
    misfire_ms: int | None = None
    transactional: bool | None = None

    @property
    def need_store(self) -> bool:
        """Whether an option has an effect only on a task that the store has."""
        others = (self.unique, self.watch, self.jitter_ms, self.misfire_ms)
        return bool(self.group) or any(one is not None for one in others)

    def over(self, route: CallOptions) -> CallOptions:
        """Return these options, completed by those of a route. Raises ValueError as ``parse``."""
        if route is PLAIN:
            return self
        unset = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(route, name) for name in unset}).checked()

    def checked(self) -> CallOptions:
        """Return these options. Raises ValueError for a key or a unique name that must not be beside the group."""
        if self.group and (rule := group_rule(self.group, self.key, self.unique)):
            raise ValueError(f"wheel option {rule}")
        return self


PLAIN = CallOptions()
_NATIVE = CallOptions(native=True)


def parse(wheel: Any) -> CallOptions:
    """Parse the argument ``wheel``. Raises TypeError for an unknown option or type, ValueError for an invalid value."""
    if wheel is None or wheel is True:
        return PLAIN
    if wheel is False:
        return _NATIVE
    if not isinstance(wheel, Mapping):
        raise TypeError(f"wheel must be True, False or a dict of options, got {wheel!r}")
    unknown = [option for option in wheel if option not in KNOWN]
    if unknown:
        raise TypeError(f"wheel options must be among {', '.join(KNOWN)}, got {', '.join(map(repr, unknown))}")
    unique, on_conflict = _text(wheel, "unique"), wheel.get("on_conflict")
    if on_conflict is not None and on_conflict not in (KEEP, REPLACE, REJECT):
        raise ValueError(f'wheel option on_conflict must be "{KEEP}", "{REPLACE}" or "{REJECT}", got {on_conflict!r}')
    if on_conflict is not None and unique is None:
        raise ValueError("wheel option on_conflict needs the option unique, the name of which only one task is pending")
    group = _text(wheel, "group")
    return CallOptions(
        group=NO_GROUP if group is None and "group" in wheel else group,
        key=_text(wheel, "key"),
        unique=unique,
        on_conflict=on_conflict,
        watch=_watch(wheel.get("watch")),
        jitter_ms=_milliseconds("jitter", wheel.get("jitter")),
        misfire_ms=_misfire(wheel.get("misfire")),
        transactional=_flag("transactional", wheel.get("transactional")),
    ).checked()


def _text(wheel: Mapping[Any, Any], option: str) -> str | None:
    value = wheel.get(option)
    return None if value is None else name_of(option, value)


def name_of(option: str, value: Any) -> str:
    """Return a name that a store can hold. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"wheel option {option} must be a text, got {value!r}")
    return (check_group if option == "group" else check_text)(f"wheel option {option}", value)


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
