"""The numbers of bar charts: one chart a level of the wheel, and charts of the hours and days ahead.

::

    level 1   |▂ ▅      ▁  █            |      x     ticks from the level's current time, 0 to its size
              now                  + interval  height  logarithm of the pending tasks; a bar links to its tasks

A template draws the charts. A bucket holds the tasks that are due in its span. Due times are rounded up to the finest
tick, so the span of due times begins a tick minus a millisecond before the bucket's expiration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports.pages import HourCount

HEIGHT = 40.0
LOWEST = 5.0  #: so that the bar of a single task can be seen and clicked

HOURS = 48  #: bars of an hour; later tasks are counted by the day
DAY_MS = 24 * HOUR_MS
DAYS = 60


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar of the tasks that are due at or after ``from_ms`` and before ``to_ms``."""

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
class LevelChart:
    number: int
    tick_ms: int
    interval_ms: int
    current_time_ms: int
    size: int
    pending: int
    bars: list[ChartBar]

    @property
    def ends_ms(self) -> int:
        """The end of the chart: later tasks are on a coarser level."""
        return self.current_time_ms + self.interval_ms


def level_charts(levels: Iterable[dict[str, Any]]) -> list[LevelChart]:
    """Return a chart for each level of a holder's snapshot."""
    listed = list(levels)
    finest_ms = listed[0]["tick_ms"] if listed else 1
    return [_level_chart(level, finest_ms) for level in listed]


def _level_chart(level: dict[str, Any], finest_ms: int) -> LevelChart:
    tick_ms, current_ms = level["tick_ms"], level["current_time_ms"]
    buckets = sorted(level["buckets"], key=lambda bucket: int(bucket["expiration_ms"]))
    heights = _heights([bucket["pending"] for bucket in buckets])
    return LevelChart(
        number=level["level"],
        tick_ms=tick_ms,
        interval_ms=level["interval_ms"],
        current_time_ms=current_ms,
        size=level["interval_ms"] // tick_ms,
        pending=level["pending"],
        bars=[
            ChartBar(
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
class DueChart:
    """The due tasks by the hour for two days, by the day for two months, and the number of all later ones."""

    hours: list[ChartBar]
    days: list[ChartBar]
    later: int
    overdue: int
    hours_from_ms: int
    days_from_ms: int  #: the end of the hours; the first day is the rest of that day
    days_to_ms: int


def due_chart(due: Iterable[HourCount], now_ms: int) -> DueChart:
    """Return the chart of due tasks. ``due`` may be of several shards; tasks of past hours are overdue."""
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
    return DueChart(
        hours=bars(hours, this_hour, HOUR_MS),
        days=bars(days, midnight, DAY_MS, not_before_ms=hours_end),
        later=later,
        overdue=overdue,
        hours_from_ms=this_hour,
        days_from_ms=hours_end,
        days_to_ms=midnight + DAYS * DAY_MS,
    )


def bars(counts: Sequence[int], begins_ms: int, width_ms: int, not_before_ms: int = 0) -> list[ChartBar]:
    """Return a bar for each span of ``width_ms`` that has tasks."""
    heights = _heights(counts)
    return [
        ChartBar(
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
