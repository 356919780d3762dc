"""A heat map of hours: a row a line, a cell an hour, the newest hour at the right; all hours fit any screen.

A cell has its heat as a colour and as a height, so that nobody needs to tell colours apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import HOUR_MS
from django_wheel.drawing.linear_axis import TimeAxis

#: The limits of the heats: a p99 of at most so many milliseconds has the heat of that place.
HEAT = (100, 1_000, 10_000, 60_000)
#: Height of the cell of each heat, in percent; a mark above it tells a missed objective.
HEIGHTS = (20, 35, 50, 65, 80)


@dataclass(frozen=True, slots=True)
class HeatCell:
    """An hour of a line, ``x`` and ``width`` in percent."""

    x: float
    width: float
    hour: Any
    heat: int

    @property
    def height(self) -> int:
        return HEIGHTS[self.heat]

    @property
    def y(self) -> int:
        return 100 - self.height


def heat_of(p99_ms: int | None) -> int:
    return bisect_left(HEAT, p99_ms or 0)


def heat_cells(hours: Mapping[int, Any], axis: TimeAxis) -> list[HeatCell]:
    """Return the cells of hours by their numbers from the begin of the axis, the oldest first."""
    width = 100 * HOUR_MS / max(HOUR_MS, axis.to_ms - axis.from_ms)
    return [
        HeatCell(round(number * width, 3), round(width * 0.9, 3), hours[number], heat_of(hours[number].p99_ms))
        for number in sorted(hours)
    ]
