"""The page of lateness: the tasks and queues that left worst, and their last two days hour by hour.

A line is a task on a queue; so a cell of the heat map is one row of the results, and no number of it is put together.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from celery_wheel.control import Wheel
from celery_wheel.pipeline.results import Results
from celery_wheel.store.model import HOUR_MS
from django_wheel.present import duration, instant
from django_wheel.views import results
from django_wheel.views.request import Asked

if TYPE_CHECKING:
    from celery_wheel.pipeline.figures.lateness import Hour, Line

JOB = "lateness"
LINES = 20
#: A p99 of at most so many milliseconds has the colour of this number.
HEAT = (100, 1_000, 10_000, 60_000)


@dataclass(frozen=True, slots=True)
class Cell:
    """An hour of a line. ``query`` leads to its rows in the history."""

    hour: Hour
    heat: int
    query: str


@dataclass(frozen=True, slots=True)
class Row:
    line: Line
    query: str  #: this page, with this line alone
    worst: Cell
    cells: list[Cell | None]


def lateness(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    number = results.page_number(asked)
    return results.shown(wheel.conf, JOB, lambda found: _shown(found, asked, number))


def _shown(found: Results, asked: Asked, number: int) -> dict[str, Any]:
    from celery_wheel.pipeline.figures import lateness as figures

    task, queue = asked.criteria.task, asked.criteria.queue
    figure = figures.lateness(found, task, queue, (number - 1) * LINES, LINES)
    span = range(figure.last_ms, figure.to_ms, HOUR_MS)[::-1]  # what was last is what is looked for
    rows = [_row(line, span) for line in figure.lines]
    return {
        "figure": figure,
        "rows": rows,
        "alone": rows[0] if figure.of == 1 and rows else None,
        "part": results.part_of(asked, number, LINES, len(rows), figure.of),
        **_heads(span),
        "scale": _scale(),
        "tasks": results.readable(figure.tasks),
        "queues": results.readable(figure.queues),
    }


def _row(line: Line, span: range) -> Row:
    names = {name: value for name, value in (("task", line.task), ("queue", line.queue)) if value is not None}
    query = "?" + urlencode(names)
    cells = [line.last.get(at) for at in reversed(range(len(span)))]
    return Row(line, query, _cell(line.worst, query), [None if one is None else _cell(one, query) for one in cells])


def _cell(hour: Hour, query: str) -> Cell:
    """The history is asked by due times: what left in an hour was due at most its ``max_ms`` before."""
    from_ms = hour.hour_ms - max(0, hour.max_ms or 0)
    heat = bisect_left(HEAT, hour.p99_ms or 0)
    return Cell(hour, heat, f"{query}&from={max(0, from_ms)}&to={hour.hour_ms + HOUR_MS}")


def _heads(span: range) -> dict[str, Any]:
    """The hours' heads: days with how many hours each has, and times of day; in the current time zone."""
    shown = [instant(at_ms) for at_ms in span]
    days = [(day, len(list(hours))) for day, hours in groupby(one[:10] for one in shown)]
    return {"days": days, "clocks": [one[11:16] for one in shown]}


def _scale() -> list[tuple[int, str]]:
    words = [f"up to {duration(most)}" for most in HEAT] + [f"over {duration(HEAT[-1])}"]
    return list(enumerate(words))
