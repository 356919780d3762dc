"""The answers of the first screen: is the wheel alive, is it late, what is ahead, what went wrong, who changed it.

Counts that only a holder has come from the holders' snapshots, and are counts since those holders began; the page says
so. The lateness is that of the worst shard.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.formats import number_format
from django.utils.html import escape
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel
from celery_wheel.overview import Overview, ShardStatus
from django_wheel.drawing.bars import DueLink, round_top
from django_wheel.drawing.sparkline import Minutes, draw_lines, minutes_of
from django_wheel.drawing.times import Moments
from django_wheel.formats import number
from django_wheel.views.audit import AuditLine

#: Requests of the audit log.
CHANGES = 5


class Links:
    """Addresses of the admin's pages."""

    def __init__(self, site: str) -> None:
        self._site = site
        self.pending = self._page("pending_changelist")
        self.rejected = self._page("rejected_changelist")
        self.schedules = self._page("schedule_changelist")
        self.shards = self._page("shard_changelist")
        self.wheel = self._page("wheel_changelist")
        self.gate = self._page("wheel_gate")

    def _page(self, name: str) -> str:
        return reverse(f"admin:django_wheel_{name}", current_app=self._site)

    def due(self, shard: int | None = None) -> DueLink:
        return DueLink(escape(self.pending), "" if shard is None else f"&amp;shard={shard}")


class Problem(NamedTuple):
    label: str
    total: int
    link: str = ""


def answers(wheel: Wheel, overview: Overview, times: Moments, links: Links) -> dict[str, Any]:
    snapshots = [one.snapshot for one in overview.shards if one.snapshot]
    problems = list(_problems(wheel, snapshots, links))
    minutes = minutes_of(snapshots, times.now_ms)
    next_due_ms = min((one.next_due_ms for one in overview.shards if one.next_due_ms is not None), default=None)
    return {
        **_alive(overview, times),
        **_late(wheel, overview, minutes),
        **_throughput(minutes, times),
        "overview": overview,
        "next_in": times.distance(next_due_ms),
        "next_due": times.moment(next_due_ms),
        "beyond": sum(_beyond(one) for one in overview.shards),
        "totals": {name: sum(one.get(name, 0) for one in snapshots) for name in ("accepted", "dispatched")},
        "problems": problems,
        "wrong": sum(one.total for one in problems),
        "since": _since(snapshots, times),
        "changes": [
            (line.request.actor, line.summary, times.distance(line.request.at_ms))
            for line in map(AuditLine, wheel.audit(limit=CHANGES).items)
        ],
    }


def _alive(overview: Overview, times: Moments) -> dict[str, Any]:
    live = [one for one in overview.shards if one.live]
    leases = [one.lease_until_ms for one in live if one.lease_until_ms is not None]
    return {
        "live": len(live),
        "silent": [one for one in overview.shards if not one.live],
        "holders": Counter(str(one.holder) for one in live).most_common(),
        "lease": times.distance(min(leases)) if leases else "",
        "heard_ms": max((one.snapshot_age_ms or 0 for one in live), default=None),
        "standby": overview.standby,
    }


def _late(wheel: Wheel, overview: Overview, minutes: Minutes) -> dict[str, Any]:
    figures = [
        one.snapshot["late"] for one in overview.shards if one.live and one.snapshot and one.snapshot.get("late")
    ]
    lateness = {name: max(one[name] for one in figures) for name in ("p50_ms", "p99_ms", "max_ms")} if figures else None
    objective_ms = wheel.conf.objective_ms
    late_ms = round_top(max([1_000, *(value for value in minutes.p99_ms if value is not None)]))
    return {
        "lateness": lateness,
        "of_last": sum(one["count"] for one in figures),
        "objective_ms": objective_ms,
        "is_late": max(overview.behind_ms, lateness["p99_ms"] if lateness else 0) > objective_ms,
        "minutes": minutes,
        "late_top_ms": late_ms,
        "late_lines": draw_lines(late_ms, {"p99": minutes.p99_ms, "p50": minutes.p50_ms}, objective_ms),
    }


def _throughput(minutes: Minutes, times: Moments) -> dict[str, Any]:
    rates = [value for value in (*minutes.accepted, *minutes.dispatched) if value is not None]
    top = round_top(max([1, *(math.ceil(rate) for rate in rates)]))
    figures = zip(minutes.begins_ms, minutes.accepted, minutes.dispatched, minutes.p50_ms, minutes.p99_ms, strict=True)
    return {
        "rate_in": _rate(minutes.accepted[-1]),
        "rate_out": _rate(minutes.dispatched[-1]),
        "rate_top": top,
        "rate_lines": draw_lines(top, {"in": minutes.accepted, "out": minutes.dispatched}),
        "minute_rows": [
            (times.moment(begins_ms), _rate(accepted), _rate(dispatched), p50_ms, p99_ms)
            for begins_ms, accepted, dispatched, p50_ms, p99_ms in figures
            if dispatched is not None
        ],
    }


def _rate(value: float | None) -> str:
    """Return tasks a second; a dash where they are not known yet."""
    if value is None:
        return "-"
    return _("%(number)s/s") % {"number": number(round(value)) if value >= 10 else number_format(value, 1)}


def _problems(wheel: Wheel, snapshots: list[dict[str, Any]], links: Links) -> Iterator[Problem]:
    def count(name: str) -> int:
        return sum(one.get(name, 0) for one in snapshots)

    yield Problem(_("Rejected"), count("rejected"), links.rejected)
    yield Problem(_("Expired"), count("expired"), f"{links.rejected}?kind=expired")
    yield Problem(_("Errors of the store"), count("store_errors"))
    yield Problem(_("Errors of the broker"), count("broker_errors"))
    yield Problem(_("Rollbacks of the broker"), count("rollbacks") + count("emptied"))
    yield Problem(_("Guard trips"), count("guard_trips"))
    schedules = wheel.schedule_counts()
    yield Problem(_("Broken schedules, now"), schedules.broken, f"{links.schedules}?state=broken")
    yield Problem(_("Failing schedules, now"), schedules.failing, f"{links.schedules}?state=active")


def _since(snapshots: list[dict[str, Any]], times: Moments) -> str:
    began = [one["began_ms"] for one in snapshots if one.get("began_ms")]
    if not began:
        return _("since this holder began")
    text = _("since this holder began, %(time)s") if len(began) == 1 else _("since the holders began, first %(time)s")
    return text % {"time": times.moment(min(began))}


def _beyond(shard: ShardStatus) -> int:
    """Return the number of the shard's tasks beyond the horizon, in the store only."""
    in_memory = shard.snapshot["window_count"] if shard.snapshot else 0
    return max(0, shard.pending - in_memory)
