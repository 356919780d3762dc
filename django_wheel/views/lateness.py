"""The page of the job ``lateness``: the tasks and queues with the worst lateness, and their last two days by the hour.

A row is a task on a queue, so a cell of the heat map is one row of the results and no number is computed here.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _

from celery_wheel.control import Wheel
from celery_wheel.results.reader import JobResults
from celery_wheel.store.model import HOUR_MS
from django_wheel.formats import format_duration, instant
from django_wheel.views import results
from django_wheel.views.query import PageQuery

if TYPE_CHECKING:
    from celery_wheel.results.lateness import LatenessHour, LatenessLine

JOB = "lateness"
LINES = 20
#: The limits of the heat map's colours: a p99 of at most so many milliseconds has the colour of that place.
HEAT = (100, 1_000, 10_000, 60_000)


@dataclass(frozen=True, slots=True)
class HeatCell:
    """An hour of a row. ``query`` selects its tasks in the history."""

    hour: LatenessHour
    heat: int
    query: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    line: LatenessLine
    query: str  #: of this page with this row alone
    worst: HeatCell
    cells: list[HeatCell | None]


def lateness(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    page = results.page_number(query)
    return results.results_page(wheel.conf, JOB, lambda found: _values(found, query, page))


def _values(found: JobResults, query: PageQuery, page: int) -> dict[str, Any]:
    from celery_wheel.results import lateness as figures

    task, queue = query.criteria.task, query.criteria.queue
    figure = figures.lateness_page(found, task, queue, (page - 1) * LINES, LINES)
    span = range(figure.last_ms, figure.to_ms, HOUR_MS)[::-1]  # the last hour first
    rows = [_row(line, span) for line in figure.lines]
    return {
        "figure": figure,
        "rows": rows,
        "alone": rows[0] if figure.of == 1 and rows else None,
        "range": results.page_range(query, page, LINES, len(rows), figure.of),
        **_heads(span),
        "scale": _scale(),
        "tasks": results.readable(figure.tasks),
        "queues": results.readable(figure.queues),
    }


def _row(line: LatenessLine, span: range) -> HeatRow:
    names = {name: value for name, value in (("task", line.task), ("queue", line.queue)) if value is not None}
    query = "?" + urlencode(names)
    cells = [line.last.get(at) for at in reversed(range(len(span)))]
    return HeatRow(line, query, _cell(line.worst, query), [None if one is None else _cell(one, query) for one in cells])


def _cell(hour: LatenessHour, query: str) -> HeatCell:
    """Return a cell with its link. A task that was dispatched in an hour was due at most ``max_ms`` before it."""
    from_ms = hour.hour_ms - max(0, hour.max_ms or 0)
    heat = bisect_left(HEAT, hour.p99_ms or 0)
    return HeatCell(hour, heat, f"{query}&from={max(0, from_ms)}&to={hour.hour_ms + HOUR_MS}")


def _heads(span: range) -> dict[str, Any]:
    """Return the column heads: days with their numbers of hours, and times of day; in the current time zone."""
    shown = [instant(at_ms) for at_ms in span]
    days = [(day, len(list(hours))) for day, hours in groupby(one[:10] for one in shown)]
    return {"days": days, "clocks": [one[11:16] for one in shown]}


def _scale() -> list[tuple[int, str]]:
    labels = [_("up to %(duration)s") % {"duration": format_duration(most)} for most in HEAT]
    return list(enumerate([*labels, _("over %(duration)s") % {"duration": format_duration(HEAT[-1])}]))
