"""The page of the job ``lateness``: the tasks and queues with the worst lateness, and their last two days by the hour.

A row is a task on a queue, so a cell of the heat map is one row of the results and no number is computed here. A page
with one row also has a chart of its percentiles, and its hours as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.results.reader import JobResults
from celery_wheel.store.model import HOUR_MS
from django_wheel import models
from django_wheel.drawing import charts
from django_wheel.drawing.charts import HEAT, HeatCell, TimeAxis, heat_cells
from django_wheel.formats import format_duration
from django_wheel.views import results
from django_wheel.views.query import PageQuery

if TYPE_CHECKING:
    from celery_wheel.results.lateness import LatenessHour, LatenessLine

JOB = "lateness"
LINES = 20


@dataclass(frozen=True, slots=True)
class LinkedHour:
    """An hour of a row. ``query`` selects its tasks in the history."""

    hour: LatenessHour
    query: str
    place: HeatCell | None = None


@dataclass(frozen=True, slots=True)
class HeatRow:
    line: LatenessLine
    query: str  #: of this page with this row alone
    worst: LinkedHour
    cells: list[LinkedHour]  #: those with tasks, the oldest first

    @property
    def newest(self) -> LinkedHour | None:
        return self.cells[-1] if self.cells else None


def lateness(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    page = results.page_number(query)
    return results.results_page(wheel.conf, JOB, lambda found: _values(found, query, page))


def _values(found: JobResults, query: PageQuery, page: int) -> dict[str, Any]:
    from celery_wheel.results import lateness as figures

    task, queue = query.criteria.task, query.criteria.queue
    figure = figures.lateness_page(found, task, queue, (page - 1) * LINES, LINES)
    axis = TimeAxis(figure.last_ms, figure.to_ms)
    rows = [_row(line, axis) for line in figure.lines]
    alone = rows[0] if figure.of == 1 and rows else None
    return {
        "figure": figure,
        "rows": rows,
        "alone": alone,
        "chart": alone and charts.of_hours(alone.line.last, figure.last_ms, figure.to_ms),
        "range": results.page_range(query, page, LINES, len(rows), figure.of),
        "axis": axis,
        "hours": (figure.to_ms - figure.last_ms) // HOUR_MS,
        "scale": _scale(),
        "now_ms": now_ms(),
        "tasks": results.readable(figure.tasks),
        "queues": results.readable(figure.queues),
    }


def _row(line: LatenessLine, axis: TimeAxis) -> HeatRow:
    names = {name: value for name, value in (("task", line.task), ("queue", line.queue)) if value is not None}
    query = "?" + urlencode(names)
    cells = [_linked(place.hour, query, place) for place in heat_cells(line.last, axis)]
    return HeatRow(line, query, _linked(line.worst, query), cells)


def _linked(hour: LatenessHour, query: str, place: HeatCell | None = None) -> LinkedHour:
    """Return an hour with its link. A task that was dispatched in an hour was due at most ``max_ms`` before it."""
    from_ms = hour.hour_ms - max(0, hour.max_ms or 0)
    return LinkedHour(hour, f"{query}&from={max(0, from_ms)}&to={hour.hour_ms + HOUR_MS}", place)


def _scale() -> list[tuple[int, str]]:
    labels = [_("up to %(duration)s") % {"duration": format_duration(most)} for most in HEAT]
    return list(enumerate([*labels, _("over %(duration)s") % {"duration": format_duration(HEAT[-1])}]))


@admin.register(models.Lateness)
class LatenessAdmin(results.ResultsAdmin):
    template = "django_wheel/lateness.html"
    values = staticmethod(lateness)
