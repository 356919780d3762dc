"""``OwnLimits``: ``app.wheel.limits``, the limits of single groups, changed by the holder of each group's shard.

A part of a group's limits comes from its own limits, else from those of its class in ``wheel_limits``, else it has its
default. ``get`` reads ``wheel_limits`` of this process, which should be as the scheduler's.
"""

from __future__ import annotations

from builtins import list as list_
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Unpack

from celery_wheel.conf import Conf
from celery_wheel.conf.limits import PARTS, LimitValues, format_rate, parse_limits
from celery_wheel.errors import ArgumentError
from celery_wheel.requests import arguments
from celery_wheel.requests.arguments import CommandOptions
from celery_wheel.requests.asynchronous import twin
from celery_wheel.requests.request import Asker
from celery_wheel.requests.results import CommandResult
from celery_wheel.store.model import LIMIT, MAX_RUNTIME_MS, GroupLimit
from celery_wheel.values.format import to_datetime

Source = Literal["own", "class", "default"]

#: The limits of a group that nobody limits.
_DEFAULTS = LimitValues(weight=1, max_runtime_ms=MAX_RUNTIME_MS)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits of a group that are in force."""

    group: str
    concurrency: int | None  #: the most runs in flight; None: any number
    rate: str | None  #: like "100/m"; None: any
    weight: int  #: its share of a queue beside other groups
    max_runtime: float  #: seconds
    sources: dict[str, Source]  #: part → where it comes from
    actor: str = ""  #: who set the group's own limits
    at: datetime | None = None  #: when; None: the group has no limits of its own


class OwnLimits:
    """The limits of single groups of one app.

    A change takes effect within a second: rows that wait are released by it, and runs that go on count as before. It
    takes ``reason``, ``actor`` and ``timeout`` as ``Wheel.cancel`` does, and raises WheelUnavailable when no holder
    answers in time; the request is withdrawn then.
    """

    def __init__(self, wheel: Asker) -> None:
        self._wheel = wheel

    @property
    def conf(self) -> Conf:
        """The settings of the app."""
        return self._wheel.conf

    def get(self, group: str) -> GroupLimits:
        """Return the limits of a group that are in force, with the source of each part."""
        found = self._wheel.store.browse.own_limits([arguments.group_of(group)])
        return self.in_force(group, found[0] if found else None)

    def set(
        self,
        group: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        weight: int | None = None,
        max_runtime: float | timedelta | None = None,
        **how: Unpack[CommandOptions],
    ) -> None:
        """Give a group limits of its own, in the place of all that it had: a part that is left out is as its class has
        it. The group need not have any tasks.

        Args:
            concurrency: the most runs in flight.
            rate: tasks in a second, a minute or an hour, like "100/m".
            weight: the group's share of a queue beside other groups.
            max_runtime: seconds, or a timedelta, after which a run counts as over.
        """
        values = {"concurrency": concurrency, "rate": rate, "weight": weight, "max_runtime": max_runtime}
        try:
            own = parse_limits(values)
        except ValueError as error:
            raise ArgumentError(f"{error}; nothing was changed") from None
        if not any(own):
            raise TypeError(f"set must have one of {', '.join(PARTS)}, got none; clear() ends a group's own limits")
        self._change("set", group, _fields(own), how)

    def clear(self, group: str, **how: Unpack[CommandOptions]) -> bool:
        """End the own limits of a group, which is limited as its class is then; returns whether it had any."""
        return self._change("clear", group, None, how) is CommandResult.DONE

    def _change(self, do: str, group: str, limits: dict[str, int] | None, how: Any) -> Any:
        if unknown := how.keys() - CommandOptions.__annotations__.keys():
            raise TypeError(f"{do} got an unknown option {min(unknown)!r}; nothing was changed")
        name = arguments.group_of(group)
        return self._wheel.ask(self._wheel.request(LIMIT, [name], name, how, {"limits": limits}))

    def in_force(self, group: str, own: GroupLimit | None) -> GroupLimits:
        """Return the limits of a group whose own limits are known."""
        return _in_force(self.conf.limits, group, own)

    def list(self, limit: int | None = None) -> list_[GroupLimits]:
        """Return the first groups that have limits of their own, sorted, each with its limits in force; None: all."""
        classes = self.conf.limits  # which is parsed anew each time
        return [_in_force(classes, one.group, one) for one in self._wheel.store.browse.own_limits(limit=limit)]

    aget = twin(get)
    aset = twin(set)
    aclear = twin(clear)
    alist = twin(list)


def _in_force(classes: Mapping[str, LimitValues], group: str, own: GroupLimit | None) -> GroupLimits:
    of_class = classes.get(group.partition(":")[0], LimitValues())
    levels: list[tuple[Source, LimitValues]] = [("own", _values(own)), ("class", of_class), ("default", _DEFAULTS)]
    values, sources = dict[str, Any](), dict[str, Source]()
    for part, field in zip(PARTS, LimitValues._fields, strict=True):
        for source, level in levels:
            values[part], sources[part] = getattr(level, field), source
            if values[part] is not None:
                break
    rate, max_runtime_ms = values["rate"], values["max_runtime"]
    values |= {"rate": rate and format_rate(rate), "max_runtime": max_runtime_ms / 1_000}
    if own is None:
        return GroupLimits(group, **values, sources=sources)
    return GroupLimits(group, **values, sources=sources, actor=own.actor, at=to_datetime(own.at_ms))


def _fields(own: LimitValues) -> dict[str, int]:
    """Return limits as fields of a command."""
    count, per_ms = own.rate or (None, None)
    fields = {"concurrency": own.concurrency, "rate_count": count, "rate_per_ms": per_ms, "weight": own.weight}
    fields["max_runtime_ms"] = own.max_runtime_ms
    return {name: value for name, value in fields.items() if value is not None}


def _values(own: GroupLimit | None) -> LimitValues:
    if own is None:
        return LimitValues()
    rate = (own.rate_count, own.rate_per_ms) if own.rate_count and own.rate_per_ms else None
    return LimitValues(own.concurrency, rate, own.weight, own.max_runtime_ms)
