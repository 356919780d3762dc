"""Limits of groups as people write them, in the setting ``wheel_limits`` and in requests, and the rule of the setting.

::

    {"concurrency": 5, "rate": "100/m", "weight": 1, "max_runtime": 3600}      every part may be left out
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from celery_wheel.conf.setting import Rule, by_name, parse_rate
from celery_wheel.values.text import group_name_rule

MAX_CONCURRENCY, MAX_WEIGHT = 1_000_000, 1_000

#: A run that takes longer has its slot for ever, as far as people are concerned.
MAX_RUNTIME_S = 30 * 86_400

PARTS = ("concurrency", "rate", "weight", "max_runtime")


class LimitValues(NamedTuple):
    """Parsed limits; None for a part that is left out."""

    concurrency: int | None = None  #: runs in flight
    rate: tuple[int, int] | None = None  #: tasks, and the milliseconds in which they may be dispatched
    weight: int | None = None
    max_runtime_ms: int | None = None


def parse_limits(values: Any) -> LimitValues:
    """Return the limits of a group. Raises ValueError with a sentence that names the part."""
    if not isinstance(values, Mapping):
        raise ValueError(f"limits must be a dict with some of {', '.join(PARTS)}, got {values!r}")
    if unknown := [str(name) for name in values if name not in PARTS]:
        raise ValueError(f"limits are {', '.join(PARTS)}, got {', '.join(unknown)}")
    rate = values.get("rate")
    try:
        parsed = None if rate is None else parse_rate(rate)
    except ValueError:
        raise ValueError(f'rate must be a text like "100/m", with /s, /m or /h, got {rate!r}') from None
    return LimitValues(
        _whole("concurrency", values.get("concurrency"), MAX_CONCURRENCY),
        parsed,
        _whole("weight", values.get("weight"), MAX_WEIGHT),
        _milliseconds(values.get("max_runtime")),
    )


def format_rate(rate: tuple[int, int]) -> str:
    """Return a parsed rate as people write it."""
    count, per_ms = rate
    return f"{count}/{({1_000: 's', 60_000: 'm', 3_600_000: 'h'}).get(per_ms) or f'{per_ms} ms'}"


def _whole(name: str, value: Any, most: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, got {value!r}")
    return value


def _milliseconds(value: Any) -> int | None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 1 <= seconds <= MAX_RUNTIME_S:  # NaN is not
        raise ValueError(f"max_runtime must be from 1 to {MAX_RUNTIME_S:,} seconds, got {value!r}")
    return int(seconds * 1_000)


def _classes(value: Any) -> dict[str, LimitValues]:
    named = by_name(value)
    # Limits of one group are set live, and not in a setting.
    if any(":" in name or group_name_rule(name) for name in named):
        raise ValueError(value)
    return {name: parse_limits(limits) for name, limits in named.items()}


#: Limits by class: ``{"tenant": {"concurrency": 5}}`` is for "tenant:1", "tenant:2" and on.
CLASSES = Rule(
    'a dict of limits by class like {"tenant": {"concurrency": 5, "rate": "100/m", "weight": 1, "max_runtime": '
    '3600}}, where "tenant" is the class of the groups "tenant:1", "tenant:2" and on',
    _classes,
)


def _depths(value: Any) -> dict[str, int]:
    named = by_name(value)
    if not all(type(most) is int and 1 <= most <= MAX_CONCURRENCY for most in named.values()):
        raise ValueError(value)
    return named


#: The most ready messages, by queue.
DEPTHS = Rule(f'a dict like {{"mail": 500}}: by queue, a whole number from 1 to {MAX_CONCURRENCY:,}', _depths)
