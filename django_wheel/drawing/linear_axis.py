"""The ticks of linear axes: durations, counts and instants, at round values, few enough for a narrow screen.

Places are percents of the drawing's width or height. An SVG without a ``viewBox`` takes them as they are, so that a
chart fills its page while its texts keep their size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from django.utils.timezone import localtime

from celery_wheel.store.model import DAY_MS, HOUR_MS
from django_wheel.formats import format_duration, instant, number, to_datetime

#: Most steps from the axis's begin to its end: four labels with a time of day are as wide as a narrow screen.
STEPS = 4

_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_BELOW_S = [1, 2, 5, 10, 20, 50, 100, 200, 500]
_SIXTIETHS = [1, 2, 5, 10, 15, 30]
_DAYS = [1, 2, 7, 14, 30, 90, 180, 365, 1_825, 3_650, 36_500]
#: The distances of two ticks of an axis of time, in milliseconds.
_SPANS = [
    *_BELOW_S,
    *(at * unit for unit in (_SECOND_MS, _MINUTE_MS) for at in _SIXTIETHS),
    *(hours * HOUR_MS for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in _DAYS),
]


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A tick with its label. ``date``: a second line, where the label begins another day."""

    at: float
    label: str
    date: str = ""

    @property
    def anchor(self) -> str:
        """The ``text-anchor`` with which the label stays inside the drawing."""
        return "start" if self.at < 10 else "end" if self.at > 90 else "middle"


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """The axis from 0 up to a round value; ``at`` returns a height from the top."""

    most: int
    ticks: list[AxisTick]

    def at(self, value: int) -> float:
        return round(100 - 100 * max(0, value) / self.most, 2)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    from_ms: int
    to_ms: int

    def at(self, at_ms: int) -> float:
        return round(100 * (at_ms - self.from_ms) / max(1, self.to_ms - self.from_ms), 2)

    @property
    def ticks(self) -> list[AxisTick]:
        """Ticks at round times of day of the current time zone, also where its clocks change in between."""
        step = _step(self.to_ms - self.from_ms, _SPANS)
        ticks: list[AxisTick] = []
        day = ""
        for at_ms in _round_instants(self.from_ms, self.to_ms, step):
            date, _, clock = instant(at_ms).partition(" ")
            label = clock[:5] if step % _MINUTE_MS == 0 else clock[:8] if step % _SECOND_MS == 0 else clock
            if step >= DAY_MS:
                ticks.append(AxisTick(self.at(at_ms), date))
            else:
                ticks.append(AxisTick(self.at(at_ms), label, "" if date == day else date))
            day = date
        return ticks


def duration_axis(most_ms: int) -> ValueAxis:
    return _value_axis(most_ms, _SPANS, format_duration)


def count_axis(most: int) -> ValueAxis:
    steps = [digit * 10**power for power in range(len(str(max(1, most)))) for digit in (1, 2, 5)]
    return _value_axis(most, steps, number)


def _value_axis(most: int, steps: Sequence[int], label: Callable[[int], str]) -> ValueAxis:
    step = _step(most, steps)
    top = max(1, -(-most // step)) * step
    ticks = [AxisTick(round(100 - 100 * value / top, 2), label(value)) for value in range(0, top + 1, step)]
    return ValueAxis(top, ticks)


def _step(length: int, steps: Sequence[int]) -> int:
    """Return the smallest step that divides the length into few parts; beyond the last step, a multiple of it."""
    at = bisect_left(steps, length / STEPS)
    return steps[at] if at < len(steps) else -(-length // (STEPS * steps[-1])) * steps[-1]


def _round_instants(from_ms: int, to_ms: int, step: int) -> list[int]:
    first = -(-(from_ms + _offset_ms(from_ms)) // step) * step
    found: list[int] = []
    for local_ms in count(first, step):
        at_ms = local_ms - _offset_ms(local_ms - _offset_ms(local_ms))
        if at_ms > to_ms:
            return found
        if at_ms >= from_ms:
            found.append(at_ms)
    raise AssertionError(step)


def _offset_ms(at_ms: int) -> int:
    """Return the offset of the current time zone from UTC; 0 where no calendar has the instant."""
    moment = to_datetime(at_ms)
    try:
        offset = None if moment is None else localtime(moment).utcoffset()
    except OverflowError:  # the last hours of the calendar
        offset = None
    return 0 if offset is None else round(offset.total_seconds() * 1_000)
