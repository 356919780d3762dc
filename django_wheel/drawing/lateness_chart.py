"""The lateness of tasks over time: points of single tasks, or lines of the percentiles of hours; both axes are linear.

::

    of_tasks   1 s ┤      ·            a point a task, by the time of its dispatch; it links to the task
               0   ┤· ·· ·  · ···
                   └────────────
    of_hours   max, p99, p50 by the hour, and the objective; an hour without tasks is a gap in the lines
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.ports.pages import Task
from django_wheel.drawing.linear_axis import TimeAxis, ValueAxis, duration_axis


@dataclass(frozen=True, slots=True)
class LatenessPoint:
    x: float
    y: float
    task: Task
    late_ms: int
    late: bool  #: later than the objective


@dataclass(frozen=True, slots=True)
class LatenessLineOfHours:
    name: str
    paths: list[str]  #: values of ``points``, one for each run of hours without a gap


@dataclass(frozen=True, slots=True)
class LatenessChart:
    """``objective`` is the height of the objective's line; None where no line is drawn."""

    time: TimeAxis
    value: ValueAxis
    objective_ms: int | None
    points: Sequence[LatenessPoint] = ()
    lines: Sequence[LatenessLineOfHours] = ()
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
        lines=[LatenessLineOfHours(name, _paths(hours, f"{name}_ms", time, value)) for name in ("max", "p99", "p50")],
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the value that so many percent of the values do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _paths(hours: Mapping[int, Any], name: str, time: TimeAxis, value: ValueAxis) -> list[str]:
    """Return steps: each hour is level, and hours that follow each other are joined."""
    paths: list[list[str]] = []
    before: int | None = None
    for number in sorted(hours):
        begin_ms, y = time.from_ms + number * HOUR_MS, value.at(getattr(hours[number], name))
        if before is None or number > before + 1:
            paths.append([])
        paths[-1] += [f"{time.at(begin_ms)},{y}", f"{time.at(begin_ms + HOUR_MS)},{y}"]
        before = number
    return [" ".join(path) for path in paths]
