"""``apply_async(…, wheel=…)``: the wheel's options of a single call.

``None`` and ``True`` set no option, ``False`` leaves the delay to Celery itself, a dict sets options:

    group          a tenant or a provider, like "tenant:42": its tasks share a shard and limits; None: no group, even if
                   the route, the setting wheel_group or the running task names one
    key            tasks that share a key share a shard, and so are dispatched in order with any number of shards
    unique         only one task of this name is pending; on_conflict chooses it: "keep" the pending task, "replace" it
                   (debounce), or "reject" the new one, so that people see it
    max_wait       seconds; beside "replace": the task is due at the latest so long after the first call of the name,
                   however often it is replaced
    window         seconds; beside unique (throttle): the name stays taken so long after the task is due. edge chooses
                   the tasks that run: the first one ("leading", the default), the last one at the end ("trailing"), or
                   "both"
    batch          calls of this name become one run of a ``celery_wheel.Batches`` task, once they are ``size`` calls or
                   ``wait`` seconds after the first one
    watch          names like "order:42"; ``app.wheel.complete("order:42")`` cancels the tasks that watch it, or runs
                   them
    jitter         seconds: a random part of them is added to the eta, so that a crowd does not come at once
    misfire        for a task that is late, after an outage or a pause: "run" it, "skip" it when it is more than a
                   minute late, or a number: skip it when it is more than so many seconds late
    transactional  True: schedule if and only if the caller's own Django transaction commits, also a call without a
                   delay; False: independently of it. It takes precedence over the setting wheel_transactional

``group``, ``unique``, ``batch``, ``watch``, ``jitter`` and ``misfire`` need the store, so a call with one of them goes
to the wheel also without a delay, or with one below ``wheel_min_delay``, and is due now. ``key`` alone says which shard
a pending task has, and a task without a delay is not pending.

A group chooses the shard. So a call of a group has no ``key``, unless it is the group; and its ``unique`` is the group,
or begins with the group and a colon, like "tenant:42:sync". A call of a batch has no group, key or unique name.

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

from celery_wheel.broker.envelope import BATCH, MAX_BATCH, MAX_WATCHED
from celery_wheel.store.model import FOLLOW, KEEP, REJECT, REPLACE
from celery_wheel.values.text import check_group, check_text, group_rule

#: Options that decide together which calls become a run; a call that names one of the first two has none of its route.
_COLLAPSE = ("unique", "batch", "on_conflict", "max_wait", "window", "edge", "size", "wait")

KNOWN = ("key", "group", *_COLLAPSE, "watch", "jitter", "misfire", "transactional")

#: Edges of a window: which of several calls runs.
LEADING, TRAILING, BOTH = "leading", "trailing", "both"

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
    max_wait_ms: int | None = None
    window_ms: int | None = None
    edge: str | None = None
    batch: str | None = None
    size: int | None = None
    wait_ms: int | None = None
    watch: tuple[str, ...] | None = None
    jitter_ms: int | None = None
    misfire_ms: int | None = None
    transactional: bool | None = None

    @property
    def need_store(self) -> bool:
        """Whether an option has an effect only on a task that the store has."""
        others = (self.unique, self.batch, self.watch, self.jitter_ms, self.misfire_ms)
        return bool(self.group) or any(one is not None for one in others)

    def over(self, route: CallOptions) -> CallOptions:
        """Return these options, completed by those of a route. Raises ValueError as ``parse``."""
        if route is PLAIN:
            return self
        own = _COLLAPSE_FIELDS if self.unique or self.batch else ()
        unset = [one.name for one in fields(self) if getattr(self, one.name) is None and one.name not in own]
        return replace(self, **{name: getattr(route, name) for name in unset}).checked()

    def checked(self) -> CallOptions:
        """Return these options. Raises ValueError for a name that must not be beside the group or the batch."""
        if self.group and (rule := group_rule(self.group, self.key, self.unique)):
            raise ValueError(f"wheel option {rule}")
        if self.batch and (beside := [name for name in ("group", "key", "unique") if getattr(self, name)]):
            raise ValueError(
                f"wheel option batch must be without {beside[0]}, since all calls of a batch have one shard and one "
                f"run; got batch {self.batch!r} and {beside[0]} {getattr(self, beside[0])!r}"
            )
        return self

    def admission(self, eta_ms: int, created_ms: int) -> dict[str, Any]:
        """Return the fields of the envelope by which the scheduler collapses calls, and the eta."""
        latest_ms: int | None = None
        if self.batch is not None:
            latest_ms = eta_ms + (self.wait_ms or 0)
            return {"eta_ms": eta_ms, "unique": self.batch, "latest_ms": latest_ms, "batch": self.size}
        on_conflict, window_ms = self.on_conflict, self.window_ms
        if self.max_wait_ms is not None:
            latest_ms = created_ms + self.max_wait_ms
            eta_ms = min(eta_ms, latest_ms)
        elif self.edge == BOTH:
            on_conflict = FOLLOW
        elif self.edge == TRAILING and window_ms is not None:
            eta_ms = latest_ms = eta_ms + window_ms  # the last call replaces the others, and keeps their due time
            on_conflict, window_ms = REPLACE, None
        rule = {"on_conflict": on_conflict, "latest_ms": latest_ms, "window_ms": window_ms}
        return {"eta_ms": eta_ms, "unique": self.unique, **rule}


_COLLAPSE_FIELDS = [one.name for one in fields(CallOptions) if one.name.removesuffix("_ms") in _COLLAPSE]

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
    group = _text(wheel, "group")
    return CallOptions(
        group=NO_GROUP if group is None and "group" in wheel else group,
        key=_text(wheel, "key"),
        **_collapse(wheel),
        watch=_watch(wheel.get("watch")),
        jitter_ms=_milliseconds("jitter", wheel.get("jitter")),
        misfire_ms=_misfire(wheel.get("misfire")),
        transactional=_flag("transactional", wheel.get("transactional")),
    ).checked()


def with_batch(task: Any, options: CallOptions, headers: Any = None) -> CallOptions:
    """Return the options of a call of a task; those of a ``Batches`` task have its batch, unless they name another.

    A batch that is retried as a whole has a number in its header, and joins no batch.
    """
    own: Mapping[str, Any] | None = getattr(task, "wheel_batch", None)
    if own is None or options.native or options.batch or isinstance((headers or {}).get(BATCH), int):
        return options
    return options.over(parse(own))


def _collapse(wheel: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the options about calls that become one run. Raises TypeError or ValueError."""
    given = {name for name in _COLLAPSE if wheel.get(name) is not None}
    for name in sorted(given):
        for needed in _NEEDS.get(name, ()):
            if needed not in given:
                raise ValueError(f"wheel option {name} needs the option {needed}, {_MEANING[needed]}")
    for name, choices in _CHOICES.items():
        if name in given and wheel[name] not in choices:
            raise ValueError(f"wheel option {name} must be {_listed(choices)}, got {wheel[name]!r}")
    on_conflict, edge = wheel.get("on_conflict"), wheel.get("edge")
    if "max_wait" in given and (on_conflict != REPLACE or "window" in given):
        raise ValueError('wheel option max_wait must be beside on_conflict "replace", and without a window')
    if "window" in given and on_conflict is not None and (on_conflict == REPLACE or edge in (TRAILING, BOTH)):
        raise ValueError(
            f'wheel option on_conflict must be "{KEEP}" or "{REJECT}" beside a window with edge "{LEADING}", and must '
            f"not be beside another edge, which replaces the task that waits; got {on_conflict!r}"
        )
    size = wheel.get("size")
    if size is not None and type(size) is not int:
        raise TypeError(f"wheel option size must be a whole number of calls, got {size!r}")
    if size is not None and not 1 <= size <= MAX_BATCH:
        raise ValueError(f"wheel option size must be from 1 to {MAX_BATCH:,} calls, got {size}")
    return {
        "unique": _text(wheel, "unique"),
        "on_conflict": on_conflict,
        "max_wait_ms": _milliseconds("max_wait", wheel.get("max_wait")),
        "window_ms": _milliseconds("window", wheel.get("window")),
        "edge": edge,
        "batch": _text(wheel, "batch"),
        "size": size,
        "wait_ms": _milliseconds("wait", wheel.get("wait")),
    }


_NEEDS = {
    **dict.fromkeys(("on_conflict", "max_wait", "window"), ("unique",)),
    **{"edge": ("window",), "batch": ("size", "wait"), "size": ("batch",), "wait": ("batch",)},
}
_MEANING = {
    "unique": "the name of which only one task is pending",
    "window": "the seconds for which the name stays taken",
    "batch": "the name of the calls that become one run",
    "size": "the number of calls of a full batch",
    "wait": "the seconds for which the first call waits for others",
}
_CHOICES = {"on_conflict": (KEEP, REPLACE, REJECT), "edge": (LEADING, TRAILING, BOTH)}


def _listed(choices: tuple[str, ...]) -> str:
    *first, last = [f'"{one}"' for one in choices]
    return f"{', '.join(first)} or {last}"


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
