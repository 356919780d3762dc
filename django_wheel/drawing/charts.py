"""Charts over linear axes, so that a herd or an outage stands out as far as it does.

Ticks are at round values, few enough for a narrow screen. Places are percents of the drawing's width or height: an SVG
without a ``viewBox`` takes them as they are, so that a chart fills its page while its texts keep their size. A cell has
its heat as a colour and as a height, so that nobody needs to tell colours apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from django.utils.safestring import SafeString, mark_safe

from celery_wheel.engine.stats import SPAN_MS, SPANS
from celery_wheel.store.model import DAY_MS, HOUR_MS
from celery_wheel.store.ports.pages import Task
from celery_wheel.values.format import format_duration
from django_wheel.formats import in_zone, instant

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
        step = _step(self.to_ms - self.from_ms)
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
    step = _step(most_ms)
    top = max(1, -(-most_ms // step)) * step
    return ValueAxis(
        top, [AxisTick(round(100 - 100 * at / top, 2), format_duration(at)) for at in range(0, top + 1, step)]
    )


def _step(length: int) -> int:
    """Return the smallest span that divides the length into few parts; beyond the last span, a multiple of it."""
    at = bisect_left(_SPANS, length / STEPS)
    return _SPANS[at] if at < len(_SPANS) else -(-length // (STEPS * _SPANS[-1])) * _SPANS[-1]


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
    moment = in_zone(at_ms)
    offset = None if moment is None else moment.utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1_000)


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


def heat_cells(hours: Mapping[int, Any], axis: TimeAxis) -> list[HeatCell]:
    """Return the cells of hours by their numbers from the begin of the axis, the oldest first."""
    width = 100 * HOUR_MS / max(HOUR_MS, axis.to_ms - axis.from_ms)
    return [
        HeatCell(round(number * width, 3), round(width * 0.9, 3), hour, bisect_left(HEAT, hour.p99_ms or 0))
        for number, hour in sorted(hours.items())
    ]


@dataclass(frozen=True, slots=True)
class LatenessPoint:
    x: float
    y: float
    task: Task
    late_ms: int
    late: bool  #: later than the objective


@dataclass(frozen=True, slots=True)
class LatenessChart:
    """``objective`` is the height of the objective's line; None where no line is drawn."""

    time: TimeAxis
    value: ValueAxis
    objective_ms: int | None
    points: Sequence[LatenessPoint] = ()
    lines: Sequence[tuple[str, list[str]]] = ()  #: name, and values of ``points``: one for each run without a gap
    from_ms: int = 0  #: the first dispatch
    to_ms: int = 0  #: the last dispatch
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0

    @property
    def objective(self) -> float | None:
        drawn = self.objective_ms is not None and self.objective_ms <= self.value.most
        return self.value.at(self.objective_ms or 0) if drawn else None

    @property
    def over(self) -> int:
        return sum(point.late for point in self.points)


def of_tasks(tasks: Iterable[Task], objective_ms: int) -> LatenessChart | None:
    """Return the chart of dispatched tasks; None where the time of no dispatch is known."""
    known = [(one.dispatched_ms, one.late_ms or 0, one) for one in tasks if one.dispatched_ms is not None]
    if not known:
        return None
    times, lateness = [at_ms for at_ms, _, _ in known], sorted(late_ms for _, late_ms, _ in known)
    time = TimeAxis(min(times), max(max(times), min(times) + 1_000))
    value = duration_axis(max(1, lateness[-1]))
    return LatenessChart(
        time,
        value,
        objective_ms,
        points=[
            LatenessPoint(time.at(at_ms), value.at(late_ms), task, late_ms, late_ms > objective_ms)
            for at_ms, late_ms, task in known
        ],
        from_ms=min(times),
        to_ms=max(times),
        p50_ms=_percentile(lateness, 50),
        p99_ms=_percentile(lateness, 99),
        max_ms=lateness[-1],
    )


def of_hours(hours: Mapping[int, Any], from_ms: int, to_ms: int) -> LatenessChart | None:
    """Return the chart of hours by their numbers, with ``p50_ms``, ``p99_ms``, ``max_ms`` and ``objective_ms``."""
    if not hours:
        return None
    time = TimeAxis(from_ms, to_ms)
    last = hours[max(hours)]
    value = duration_axis(max(1, *(one.max_ms for one in hours.values())))
    return LatenessChart(
        time,
        value,
        last.objective_ms,
        lines=[(name, _paths(hours, f"{name}_ms", time, value)) for name in ("max", "p99", "p50")],
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the value that so many percent of the values do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _paths(hours: Mapping[int, Any], name: str, time: TimeAxis, value: ValueAxis) -> list[str]:
    """Return steps: each hour is level, and hours that follow each other are joined."""
    paths: list[list[str]] = []
    before: int | None = None
    for hour in sorted(hours):
        begin_ms, y = time.from_ms + hour * HOUR_MS, value.at(getattr(hours[hour], name))
        if before is None or hour > before + 1:
            paths.append([])
        paths[-1] += [f"{time.at(begin_ms)},{y}", f"{time.at(begin_ms + HOUR_MS)},{y}"]
        before = hour
    return [" ".join(path) for path in paths]


#: The drawing's units; CSS stretches it.
WIDTH, HEIGHT = SPANS - 2, 40


@dataclass(frozen=True, slots=True)
class Minutes:
    """The last ten minutes, a value for each whole span; None where a span has no value."""

    begins_ms: range
    accepted: list[float | None]  #: a second
    dispatched: list[float | None]
    p50_ms: list[int | None]
    p99_ms: list[int | None]

    @property
    def known(self) -> bool:
        return any(value is not None for value in self.dispatched)


def minutes_of(snapshots: Iterable[Mapping[str, Any] | None], now_ms: int) -> Minutes:
    present_ms = now_ms - now_ms % SPAN_MS
    begins_ms = range(present_ms - (SPANS - 1) * SPAN_MS, present_ms, SPAN_MS)
    accepted, dispatched = Counter[int](), Counter[int]()
    late: tuple[dict[int, int], dict[int, int]] = {}, {}
    for snapshot in snapshots:
        for at_ms, one_in, one_out, *lateness in (snapshot or {}).get("recent", ()):
            accepted[at_ms] += one_in
            dispatched[at_ms] += one_out
            for worst, value_ms in zip(late, lateness, strict=True):
                if value_ms is not None and value_ms >= worst.get(at_ms, 0):
                    worst[at_ms] = value_ms
    return Minutes(
        begins_ms=begins_ms,
        accepted=[accepted[at] * 1_000 / SPAN_MS if at in accepted else None for at in begins_ms],
        dispatched=[dispatched[at] * 1_000 / SPAN_MS if at in dispatched else None for at in begins_ms],
        p50_ms=[late[0].get(at) for at in begins_ms],
        p99_ms=[late[1].get(at) for at in begins_ms],
    )


def draw_lines(top: float, lines: Mapping[str, Sequence[float | None]], limit: float | None = None) -> SafeString:
    """Return the SVG of lines by the name of their class, over an axis from 0 to ``top``, and of a limit up to it."""
    drawn = "".join(f'<path class="wheel-line-{name}" d="{_path(values, top)}"/>' for name, values in lines.items())
    at = None if limit is None or limit > top else HEIGHT * (1 - limit / top)
    line = "" if at is None else f'<path class="wheel-limit" d="M0 {at:.1f}H{WIDTH}"/>'
    return mark_safe(  # noqa: S308 - names are this package's, all else are numbers
        f'<svg class="wheel-spark" aria-hidden="true" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f"{line}{drawn}</svg>"
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """Return a path that breaks off where a value is missing; a value alone is a short line."""
    steps, joined = [], False
    for place, value in enumerate(values):
        if value is not None:
            steps.append(f"{'L' if joined else 'M'}{place} {HEIGHT * (1 - min(1, value / top)):.1f}")
            steps += [] if joined else ["h.01"]
        joined = value is not None
    return "".join(steps)
