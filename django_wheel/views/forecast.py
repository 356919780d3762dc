"""The page of the forecast that the job left: due by minute and hour, herds, and how long queues take to drain.

What the wheel itself knows is on the wheel page: by the hour, up to date, without herds.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlencode

from celery_wheel.control import Wheel
from celery_wheel.pipeline.results import Results
from celery_wheel.store.model import HOUR_MS
from django_wheel import picture
from django_wheel.views import results
from django_wheel.views.request import Asked

JOB = "forecast"
LINES = 20
DRAINS = 100
MINUTE_MS = 60_000
#: Shown one by one: so many minutes, then so many hours.
MINUTES, HOURS = 240, 168


def forecast(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    number = results.page_number(asked)
    return results.shown(wheel.conf, JOB, lambda found: _shown(found, asked, number))


def _shown(found: Results, asked: Asked, number: int) -> dict[str, Any]:
    from celery_wheel.pipeline.figures import forecast as figures

    queue, summary = asked.criteria.queue, found.summary
    now_ms = results.moment_ms(summary.get("now")) or 0
    begins_ms = now_ms - now_ms % HOUR_MS
    due = figures.due(found, queue, begins_ms, MINUTES, HOURS)
    hours_ms = begins_ms + MINUTES * MINUTE_MS
    herds, of = figures.herds(found, queue, (number - 1) * LINES, LINES)
    drains, drains_of = figures.drains(found, queue, DRAINS)
    return {
        "counts": {name: results.whole(summary, name) for name in ("pending", "overdue", "beyond")},
        "queues": results.readable(due.queues),
        "now_ms": now_ms,
        "due": due,
        "minutes": picture.bars(due.minutes, begins_ms, MINUTE_MS),
        "hours": picture.bars(due.hours, hours_ms, HOUR_MS),
        "sizes": {"minutes": MINUTES, "hours": HOURS},
        "begins_ms": begins_ms,
        "hours_ms": hours_ms,
        "ends_ms": hours_ms + HOURS * HOUR_MS,
        "narrowed": "" if queue is None else urlencode({"queue": queue}) + "&",
        "busiest": _busiest(summary),
        "herds": [{**one, "query": _query(one)} for one in herds],
        "part": results.part_of(asked, number, LINES, len(herds), of),
        "drains": [{**one, "a_second": _plain(one["rate"]), "wait_ms": _ms(one["longest_wait_s"])} for one in drains],
        "drains_of": drains_of,
    }


def _busiest(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The busiest second and minute, as far as the summary tells them."""
    found = [(unit, summary.get(f"busiest_{unit}")) for unit in ("second", "minute")]
    return [
        {
            "unit": unit,
            "at_ms": results.moment_ms(one.get(unit)),
            "n": results.whole(one, "n"),
            "queue": one.get("queue"),
        }
        for unit, one in found
        if isinstance(one, dict)
    ]


def _query(herd: dict[str, Any]) -> str:
    """Pending tasks of a herd's second, and of its queue where that has a name."""
    queue = {} if herd["queue"] is None else {"queue": herd["queue"]}
    return "?" + urlencode({**queue, "from": herd["second"], "to": herd["second"] + 1_000})


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds * 1_000)


def _plain(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:g}/s"
