"""The wheel as a picture: for each level a strip of bars, time to the right; and the days behind the wheel.

::

    level 1   |▂ ▅      ▁  █            |      x     ticks from the level's current time, 0 to its size
              now                  + interval  height  logarithm of how many are pending; a bar leads to its tasks

Plain numbers for a template; nothing is drawn here. A bucket holds what is due in its span: a due time is rounded up to
the finest tick, so the span of due times begins a tick minus a millisecond before the bucket's expiration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports.pages import Due

HEIGHT = 40.0
LOWEST = 5.0  #: a single task can be seen and clicked

HOURS = 48  #: shown one by one; what is later, by the day
DAY_MS = 24 * HOUR_MS
DAYS = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """``from_ms`` and ``to_ms``: the due times that it stands for, from the one on and before the other."""

    x: float
    height: float
    pending: int
    index: int
    begins_ms: int
    from_ms: int
    to_ms: int

    @property
    def y(self) -> float:
        return HEIGHT - self.height


@dataclass(frozen=True, slots=True)
class Strip:
    number: int
    tick_ms: int
    interval_ms: int
    current_time_ms: int
    size: int
    pending: int
    bars: list[Bar]

    @property
    def ends_ms(self) -> int:
        """Where the strip ends: what is due later is on the next level."""
        return self.current_time_ms + self.interval_ms


def strips(levels: Iterable[dict[str, Any]]) -> list[Strip]:
    """The levels of a holder's snapshot."""
    listed = list(levels)
    finest_ms = listed[0]["tick_ms"] if listed else 1
    return [_strip(level, finest_ms) for level in listed]


def _strip(level: dict[str, Any], finest_ms: int) -> Strip:
    tick_ms, current_ms = level["tick_ms"], level["current_time_ms"]
    buckets = sorted(level["buckets"], key=lambda bucket: int(bucket["expiration_ms"]))
    heights = _heights([bucket["pending"] for bucket in buckets])
    return Strip(
        number=level["level"],
        tick_ms=tick_ms,
        interval_ms=level["interval_ms"],
        current_time_ms=current_ms,
        size=level["interval_ms"] // tick_ms,
        pending=level["pending"],
        bars=[
            Bar(
                x=(bucket["expiration_ms"] - current_ms) / tick_ms,
                height=height,
                pending=bucket["pending"],
                index=bucket["index"],
                begins_ms=bucket["expiration_ms"],
                from_ms=bucket["expiration_ms"] - finest_ms + 1,
                to_ms=bucket["expiration_ms"] + tick_ms - finest_ms + 1,
            )
            for bucket, height in zip(buckets, heights, strict=True)
        ],
    )


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is due: by the hour for two days, by the day for two months, and how much is due after that."""

    hours: list[Bar]
    days: list[Bar]
    later: int
    overdue: int
    hours_from_ms: int
    days_from_ms: int  #: the end of the hours; the first day is what is left of it
    days_to_ms: int


def ahead(due: Iterable[Due], now_ms: int) -> Ahead:
    """``due``: of any shards; hours that are over, but for this one, are overdue."""
    this_hour = now_ms - now_ms % HOUR_MS
    hours_end = this_hour + HOURS * HOUR_MS
    midnight = hours_end - hours_end % DAY_MS
    hours, days = [0] * HOURS, [0] * DAYS
    later = overdue = 0
    for one in due:
        hour, day = (one.from_ms - this_hour) // HOUR_MS, (one.from_ms - midnight) // DAY_MS
        if hour < 0:
            overdue += one.pending
        elif hour < HOURS:
            hours[hour] += one.pending
        elif day < DAYS:
            days[day] += one.pending
        else:
            later += one.pending
    return Ahead(
        hours=bars(hours, this_hour, HOUR_MS),
        days=bars(days, midnight, DAY_MS, not_before_ms=hours_end),
        later=later,
        overdue=overdue,
        hours_from_ms=this_hour,
        days_from_ms=hours_end,
        days_to_ms=midnight + DAYS * DAY_MS,
    )


def bars(counts: Sequence[int], begins_ms: int, width_ms: int, not_before_ms: int = 0) -> list[Bar]:
    """A bar for each span of so many milliseconds that has something in it."""
    heights = _heights(counts)
    return [
        Bar(
            x=n,
            height=height,
            pending=pending,
            index=n,
            begins_ms=begins_ms + n * width_ms,
            from_ms=max(begins_ms + n * width_ms, not_before_ms),
            to_ms=begins_ms + (n + 1) * width_ms,
        )
        for n, (pending, height) in enumerate(zip(counts, heights, strict=True))
        if pending
    ]


def _heights(counts: Sequence[int]) -> list[float]:
    most = math.log1p(max(counts, default=0)) or 1.0
    return [round(LOWEST + (HEIGHT - LOWEST) * math.log1p(count) / most, 2) for count in counts]
