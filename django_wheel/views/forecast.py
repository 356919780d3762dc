"""The page of the job ``forecast``: due tasks by minute and hour, herds, and the time that queues take to drain.

The wheel page has the present counts.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.results.reader import JobResults
from celery_wheel.store.model import HOUR_MS
from django_wheel import models
from django_wheel.drawing.charts import due_bars
from django_wheel.views import results
from django_wheel.views.query import PageQuery

JOB = "forecast"
LINES = 20
DRAINS = 100
MINUTE_MS = 60_000
#: Bars of the charts: so many minutes, then so many hours.
MINUTES, HOURS = 240, 168


def forecast(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    page = results.page_number(query)
    return results.results_page(wheel.conf, JOB, lambda found: _values(found, query, page))


def _values(found: JobResults, query: PageQuery, page: int) -> dict[str, Any]:
    from celery_wheel.results import forecast as figures

    queue, summary = query.criteria.queue, found.summary
    as_of_ms = results.moment_ms(summary.get("now")) or 0
    begins_ms = as_of_ms - as_of_ms % HOUR_MS
    due = figures.due_counts(found, queue, begins_ms, MINUTES, HOURS)
    hours_ms = begins_ms + MINUTES * MINUTE_MS
    herds, of = figures.largest_herds(found, queue, (page - 1) * LINES, LINES)
    drains, drains_of = figures.longest_drains(found, queue, DRAINS)
    return {
        "counts": {name: results.whole(summary, name) for name in ("pending", "overdue", "beyond")},
        "queues": results.readable(due.queues),
        "as_of_ms": as_of_ms,
        "now_ms": now_ms(),
        "due": due,
        "minutes": due_bars(due.minutes, begins_ms, MINUTE_MS),
        "hours": due_bars(due.hours, hours_ms, HOUR_MS),
        "narrowed": "" if queue is None else urlencode({"queue": queue}) + "&",
        "busiest": _busiest(summary),
        "herds": [{**one, "query": _query(one)} for one in herds],
        "range": results.page_range(query, page, LINES, len(herds), of),
        "drains": [{**one, "a_second": _plain(one["rate"]), "wait_ms": _ms(one["longest_wait_s"])} for one in drains],
        "drains_of": drains_of,
    }


def _busiest(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the busiest second and minute, as far as the summary has them."""
    labels = {"second": _("Busiest second"), "minute": _("Busiest minute")}
    found = [(unit, summary.get(f"busiest_{unit}")) for unit in labels]
    return [
        {
            "label": labels[unit],
            "at_ms": results.moment_ms(one.get(unit)),
            "n": results.whole(one, "n"),
            "queue": one.get("queue"),
        }
        for unit, one in found
        if isinstance(one, dict)
    ]


def _query(herd: dict[str, Any]) -> str:
    """Return the query of the pending tasks of a herd: its second, and its queue if that has a name."""
    queue = {} if herd["queue"] is None else {"queue": herd["queue"]}
    return "?" + urlencode({**queue, "from": herd["second"], "to": herd["second"] + 1_000})


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds * 1_000)


def _plain(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:g}/s"


@admin.register(models.Forecast)
class ForecastAdmin(results.ResultsAdmin):
    template = "django_wheel/forecast.html"
    values = staticmethod(forecast)
