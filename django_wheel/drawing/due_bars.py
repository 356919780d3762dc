"""Bars of due tasks by equal spans of time; both axes are linear, so that a herd stands out as far as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django_wheel.drawing.linear_axis import TimeAxis, ValueAxis, count_axis


@dataclass(frozen=True, slots=True)
class DueBar:
    """The tasks that are due at or after ``from_ms`` and before ``to_ms``; places are percents."""

    x: float
    width: float
    y: float
    pending: int
    from_ms: int
    to_ms: int

    @property
    def height(self) -> float:
        return round(100 - self.y, 2)


@dataclass(frozen=True, slots=True)
class DueBars:
    time: TimeAxis
    value: ValueAxis
    bars: Sequence[DueBar]

    @property
    def highest(self) -> DueBar | None:
        return max(self.bars, key=lambda one: one.pending, default=None)


def due_bars(counts: Sequence[int], begins_ms: int, width_ms: int) -> DueBars:
    """Return a bar for each span of ``width_ms`` that has tasks."""
    time = TimeAxis(begins_ms, begins_ms + len(counts) * width_ms)
    value = count_axis(max(counts, default=0) or 1)
    width = 100 / max(1, len(counts))
    bars = [
        DueBar(
            x=round(n * width, 3),
            width=round(width * 0.85, 3),
            y=value.at(pending),
            pending=pending,
            from_ms=begins_ms + n * width_ms,
            to_ms=begins_ms + (n + 1) * width_ms,
        )
        for n, pending in enumerate(counts)
        if pending
    ]
    return DueBars(time, value, bars)
