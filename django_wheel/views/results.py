"""The pages of results of the pipeline's jobs: ``lateness`` and ``forecast``, each in a folder of its name.

``lateness`` has the tasks and queues with the worst lateness, and their last two days by the hour. A row is a task on a
queue, so a cell of the heat map is one row of the results and no number is computed here. ``forecast`` has due tasks by
minute and hour, herds, and the time that queues take to drain; the wheel page has the present counts. No Java is
started and PySpark is not imported. Without results the admin's menu does not offer the page; its address says what to
do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.conf import Conf
from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import FileUnusable, WheelError
from celery_wheel.results.reader import JobResults, read_results
from celery_wheel.store.model import HOUR_MS
from celery_wheel.values.format import format_duration
from celery_wheel.values.text import whole_number
from django_wheel import models
from django_wheel.drawing import charts
from django_wheel.drawing.charts import HEAT, HeatCell, TimeAxis, heat_cells
from django_wheel.drawing.due_load import MINUTE_MS, DueLink, draw_bars, even_chart, rows_of
from django_wheel.formats import Moments
from django_wheel.project import project_conf
from django_wheel.views.lists import readable
from django_wheel.views.page import PageAdmin
from django_wheel.views.query import PageQuery

if TYPE_CHECKING:
    from celery_wheel.results.figures import LatenessHour, LatenessLine


#: The page marks results that are older.
OLD_MS = 86_400_000
#: The folder in the examples of a remedy.
EXAMPLE_FOLDER = "/var/lib/wheel"
#: The jobs with a page. A job, its folder and its page have one name.
JOBS = LATENESS, FORECAST = ("lateness", "forecast")
MAX_PAGE = 10**6
#: Rows of a page.
LINES = 20


@dataclass(frozen=True, slots=True)
class MissingResults:
    """``cause`` and ``remedy`` are sentences; ``line`` is the command or setting to type."""

    cause: str
    remedy: str
    line: str


def has_results(job: str) -> bool:
    """Whether the job's page has something to show. Every page of the admin asks, so only the summary is read."""
    try:
        conf = project_conf()
        return conf is not None and missing_results(conf, job) is None
    except WheelError:  # an invalid setting: a system check names it
        return False


def missing_results(conf: Conf, job: str) -> MissingResults | None:
    """Why a job's page has nothing to show; None if it has results."""
    folder = conf.results
    run = f"celery-wheel-pipeline {job} --store <URL> --output {folder or EXAMPLE_FOLDER}/{job}"
    if folder is None:
        remedy = _("Name a folder, and let the job write into it (%(command)s).") % {"command": run}
        return MissingResults(_("wheel_results is not set."), remedy, f'CELERY_WHEEL_RESULTS = "{EXAMPLE_FOLDER}"')
    if find_spec("pyarrow") is None:
        return MissingResults(
            _("pyarrow is not installed here."), _("Install it."), "pip install 'celery-wheel[results]'"
        )
    try:
        found = read_results(folder / job, lambda results: results.job)
    except FileUnusable as error:
        return MissingResults(f"{error}.", _("Run the job as often as the page has to be up to date."), run)
    if found != job:
        cause = _("%(folder)s has the results of another job, %(job)s.") % {"folder": folder / job, "job": found}
        return MissingResults(cause, _("Let each job write into a folder of its own name."), run)
    return None


def results_page(
    job: str, values: Callable[[JobResults, PageQuery, int], dict[str, Any]], wheel: Wheel, query: PageQuery
) -> dict[str, Any]:
    """Return the values of a template from the results of a job. Raises FileUnusable if they cannot be read twice."""
    page, conf = page_number(query), wheel.conf
    if (missing := missing_results(conf, job)) is not None:
        return {"missing": missing}

    def read(results: JobResults) -> dict[str, Any]:
        return {"run": _job_run(results), "unusable_rows": _unusable_rows(results), **values(results, query, page)}

    assert conf.results is not None  # noqa: S101 - missing_results() says so
    return read_results(conf.results / job, read)


def _job_run(results: JobResults) -> dict[str, Any]:
    if results.at is None:
        return {"at_ms": None}
    at_ms = round(results.at.timestamp() * 1_000)
    age_ms = max(0, now_ms() - at_ms)
    return {"at_ms": at_ms, "age_ms": age_ms, "old": age_ms > OLD_MS}


def _unusable_rows(results: JobResults) -> list[tuple[str, int | None]]:
    found = results.summary.get("rejects")
    return [(reason, whole(found, reason)) for reason in sorted(found)] if isinstance(found, dict) else []


def whole(facts: dict[str, Any], name: str) -> int | None:
    """Return a count of a summary; None if the summary has no such count."""
    found = facts.get(name)
    return found if isinstance(found, int) else None


def moment_ms(text: Any) -> int | None:
    """Return a time of a summary; None if the text is no time."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (TypeError, ValueError, OverflowError):
        return None


def page_number(query: PageQuery) -> int:
    text = query.text("page") or "1"
    page = whole_number(text)
    if page is not None and 1 <= page <= MAX_PAGE:
        return page
    query.problems.append(_("page must be a whole number from 1 on, got %(value)s") % {"value": repr(text)})
    return 1


def page_range(query: PageQuery, page: int, rows: int, total: int) -> dict[str, Any]:
    """Return the numbers of the rows of a page, and the links to the pages beside it; None where there is none."""
    begin, last = (page - 1) * LINES, -(-total // LINES)
    before = query.link(page=min(page - 1, last)) if page > 1 and total else None
    after = query.link(page=page + 1) if page < last else None
    return {"first": begin + 1, "last": begin + rows, "total": total, "before": before, "after": after}


class ResultsAdmin(PageAdmin):
    """A page of the results of a job of the pipeline; in the menu while there are results."""

    failure = gettext_lazy("The results cannot be shown: %(error)s.")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) and has_results(str(self.opts.model_name))


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


def _lateness(found: JobResults, query: PageQuery, page: int) -> dict[str, Any]:
    from celery_wheel.results import figures

    task, queue = query.criteria.task, query.criteria.queue
    figure = figures.lateness_page(found, task, queue, (page - 1) * LINES, LINES)
    axis = TimeAxis(figure.last_ms, figure.to_ms)
    rows = [_lateness_row(line, axis) for line in figure.lines]
    alone = rows[0] if figure.of == 1 and rows else None
    return {
        "figure": figure,
        "rows": rows,
        "alone": alone,
        "chart": alone and charts.of_hours(alone.line.last, figure.last_ms, figure.to_ms),
        "range": page_range(query, page, len(rows), figure.of),
        "axis": axis,
        "hours": (figure.to_ms - figure.last_ms) // HOUR_MS,
        "scale": _scale(),
        "tasks": readable(figure.tasks),
        "queues": readable(figure.queues),
    }


def _lateness_row(line: LatenessLine, axis: TimeAxis) -> HeatRow:
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


DRAINS = 100
#: Bars of the charts: so many minutes, then the hours of eight days, whose quarters begin at one time of day.
MINUTES, HOURS = 240, 192


def _forecast(found: JobResults, query: PageQuery, page: int) -> dict[str, Any]:
    from celery_wheel.results import figures

    queue, summary = query.criteria.queue, found.summary
    as_of_ms = moment_ms(summary.get("now")) or 0
    begins_ms = as_of_ms - as_of_ms % HOUR_MS
    hours_ms = begins_ms + MINUTES * MINUTE_MS
    due = figures.due_counts(found, queue, begins_ms, hours_ms + HOURS * HOUR_MS)
    plots = {
        _("by the minute"): even_chart("hours", due.minutes, begins_ms, MINUTE_MS, MINUTES),
        _("by the hour"): even_chart("week", due.minutes, hours_ms, HOUR_MS, HOURS),
    }
    times = Moments(now_ms())
    link = DueLink("../pending/", "" if queue is None else f"&amp;{urlencode({'queue': queue})}")
    herds, of = figures.largest_herds(found, queue, (page - 1) * LINES, LINES)
    drains, drains_of = figures.longest_drains(found, queue, DRAINS)
    return {
        "counts": {name: whole(summary, name) for name in ("pending", "overdue", "beyond")},
        "queues": readable(due.queues),
        "as_of_ms": as_of_ms,
        "due": due,
        "charts": [
            (by, times.span(chart.edges[0], chart.edges[-1]), chart, draw_bars(chart, times, link))
            for by, chart in plots.items()
        ],
        "rows": [row for chart in plots.values() for row in rows_of(chart, times, link)],
        "busiest": _busiest(summary),
        "herds": [{**one, "query": _query_of_herd(one)} for one in herds],
        "range": page_range(query, page, len(herds), of),
        "drains": [
            {**one, "a_second": "-" if rate is None else f"{rate:g}/s", "wait_ms": _ms(one["longest_wait_s"])}
            for one in drains
            for rate in (one["rate"],)
        ],
        "drains_of": drains_of,
    }


def _busiest(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the busiest second and minute, as far as the summary has them."""
    labels = {"second": _("Busiest second"), "minute": _("Busiest minute")}
    found = [(unit, summary.get(f"busiest_{unit}")) for unit in labels]
    return [
        {"label": labels[unit], "at_ms": moment_ms(one.get(unit)), "n": whole(one, "n"), "queue": one.get("queue")}
        for unit, one in found
        if isinstance(one, dict)
    ]


def _query_of_herd(herd: dict[str, Any]) -> str:
    """Return the query of the pending tasks of a herd: its second, and its queue if that has a name."""
    queue = {} if herd["queue"] is None else {"queue": herd["queue"]}
    return "?" + urlencode({**queue, "from": herd["second"], "to": herd["second"] + 1_000})


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds * 1_000)


for model, job, values in ((models.Lateness, LATENESS, _lateness), (models.Forecast, FORECAST, _forecast)):
    page_of_job = staticmethod(partial(results_page, job, values))
    admin.site.register(model, ResultsAdmin, template=f"django_wheel/{job}.html", values=page_of_job)
