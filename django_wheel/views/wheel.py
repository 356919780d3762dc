"""The wheel page: the five answers that operators look for, the due load, and the wheel itself.

All figures come from the process's ``Overview``, at most a second old. A part is rendered once for all of its viewers
and each ``Overview``: fifty viewers cost what one costs, and for each the request alone. A part has its checksum as its
version; the script of the page names the versions that it has, and ``live`` returns the other parts only. Counts that
only a holder has come from the holders' snapshots, since those holders began. The lateness is that of the worst shard.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.template.loader import get_template
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.overview import Overview, ShardStatus
from celery_wheel.store.audit_model import PEOPLE
from celery_wheel.store.model import PAUSED, WAITING
from celery_wheel.values.format import format_duration, printable
from django_wheel import models
from django_wheel.drawing.charts import Minutes, draw_lines, minutes_of
from django_wheel.drawing.due_load import (
    DueChart,
    DueLink,
    DueSpan,
    draw_bars,
    due_charts,
    herds,
    later_than,
    long_chart,
    round_top,
    rows_of,
)
from django_wheel.drawing.rings import describe, describe_turns, draw_rings, rings_of
from django_wheel.formats import Moments, gate_label, number
from django_wheel.project import project_wheel
from django_wheel.views.audit import AuditLine
from django_wheel.views.gate import gate_page
from django_wheel.views.page import READING, PageAdmin, may_operate
from django_wheel.views.problems import PROBLEMS, Problems, Seen, mark_seen, problems_of, seen_of, since_begin
from django_wheel.views.query import PageQuery
from django_wheel.views.results import JOBS, has_results

#: Titles of the charts, and the spans that they count.
_PERIODS = {
    "minute": lambda: (_("The next minute"), _("by the second")),
    "hour": lambda: (_("The next hour"), _("by the minute")),
    "day": lambda: (_("The next day"), _("by the hour")),
    "month": lambda: (_("The next month"), _("by the day")),
    "year": lambda: (_("The next year"), _("by the week")),
}

#: The last chart hardly changes.
YEAR_MS = 10_000
#: A page waits so long for a search for herds.
SEARCH_S = 0.2
#: The age from which the seconds are said to be older than the page.
OLD_MS = 3_000
#: Lanes, gates and herds of a page; the page of shards and the page of gates have the others.
LINES = 8


class Viewpoint(NamedTuple):
    """All that a rendered part depends on, besides the overview."""

    store: str
    site: str  #: the name of the admin's site
    shard: int
    may_operate: bool
    tables: bool  #: each drawing has a table with the same figures
    language: str | None
    zone: str


class Rendered(NamedTuple):
    """The parts of one overview that are rendered so far."""

    of: Overview | None
    years: dict[Viewpoint, tuple[int, SafeString]]  #: with the time of the overview
    parts: dict[Viewpoint, tuple[dict[str, SafeString], Problems]]
    problems: dict[tuple[Viewpoint, Seen | None], SafeString]


class LiveParts:
    """The rendered parts of the last overview, for each viewpoint. A year is drawn anew every ``YEAR_MS``.

    The problems are rendered for each viewpoint and each ``Seen``: who has seen none shares them with the others.
    Several threads render at once: each goes on with the parts of its own overview, also where another has a newer one.
    """

    def __init__(self) -> None:
        self._last = Rendered(None, {}, {}, {})

    def get(self, wheel: Wheel, overview: Overview, view: Viewpoint, seen: Seen | None) -> dict[str, SafeString]:
        last = self._last
        if last.of is not overview:
            years = last.years.copy().items()  # in one step: another thread may add to it
            kept = {view: one for view, one in years if 0 <= overview.read_ms - one[0] < YEAR_MS}
            self._last = last = Rendered(overview, kept, {}, {})
        if view not in last.parts:
            year, screen = last.years.get(view), Screen(wheel, overview, view)
            parts = {name: _part(name, content) for name, content in screen.parts(with_year=year is None)}
            year = last.years[view] = year or (overview.read_ms, parts["year"])
            last.parts[view] = {**parts, "year": year[1]}, screen.problems
        parts, problems = last.parts[view]
        if (view, seen) not in last.problems:
            values = problems.values(seen, Moments(overview.read_ms))
            last.problems[view, seen] = _part("problems", get_template(PROBLEMS).render(values))
        return {**parts, "problems": last.problems[view, seen]}


def _part(name: str, content: str) -> SafeString:
    version = f"{crc32(content.encode()):x}"
    return mark_safe(f'<section id="wheel-{name}" data-version="{version}">{content}</section>')  # noqa: S308 - a template's


def unlike(parts: Iterable[str], have: str) -> str:
    """Return the parts whose versions are not among those that a page has."""
    versions = set(have.split("."))
    return "".join(part for part in parts if part.split('"', 4)[3] not in versions)


def shard_of(overview: Overview, query: PageQuery) -> int:
    """Return the requested shard, or the first if the store has no such shard."""
    wanted = query.criteria.shard or 0
    if wanted < len(overview.shards):
        return wanted
    query.problems.append(_("shard must be a shard of the store, got %(value)s") % {"value": wanted})
    return 0


class Screen:
    def __init__(self, wheel: Wheel, overview: Overview, view: Viewpoint) -> None:
        self._wheel, self._overview, self._view = wheel, overview, view
        self._chosen = overview.shards[view.shard]
        self._times, self._links = Moments(now_ms()), Links.of(view.site)
        self.problems = problems_of(wheel, overview, self._times, self._links)

    def parts(self, *, with_year: bool) -> Iterator[tuple[str, str]]:
        charts, ahead = due_charts(self._overview.due, self._times.now_ms), self._wheel.ahead(SEARCH_S)
        long = long_chart(ahead.hours, self._times.now_ms)
        yield self._render("alerts", **self._gates())
        soon = [self._soon(chart) for chart in charts[1:]]
        yield self._render("answers", soon=soon, **answers(self._wheel, self._overview, self._times))
        yield self._render("changes", changes=changes(self._wheel, self._times))
        for chart in charts:
            yield chart.period, self._render("due_chart", **self._due(chart, self._counted_ms(chart)))[1]
        if with_year:
            yield "year", self._render("due_chart", **self._due(long, ahead.read_ms))[1]
        coming = [one for one in ahead.herds if one.to_ms > self._times.now_ms]
        found = [self._herd(span) for span in herds(charts, coming)[:LINES]]
        later = later_than(long, ahead.hours)
        yield self._render("herds", herds=found, searched=ahead.searched, later=later)
        memory = self._memory()
        yield self._render("rings", **memory)
        yield self._render("internals", **memory)

    def _render(self, name: str, **values: Any) -> tuple[str, str]:
        more = {"chosen": self._chosen, "shards": self._overview.shards, "links": self._links}
        flags = {"may_operate": self._view.may_operate, "tables": self._view.tables}
        return name, get_template(f"django_wheel/front/{name}.html").render({**more, **flags, **values})

    def _gates(self) -> dict[str, Any]:
        gates = [
            {
                "gate": gate,
                "since": self._times.moment(gate.at_ms),
                "ago": self._times.distance(gate.at_ms),
                "label": gate_label(gate.scope, gate.name),
                "held": self._overview.held_by(gate),
            }
            for gate in self._overview.gates[:LINES]
        ]
        return {"gates": gates, "more_gates": len(self._overview.gates) - len(gates)}

    def _counted_ms(self, chart: DueChart) -> int:
        """Return the instant at which the tasks of a chart were counted; 0: they were not."""
        return self._overview.read_ms if chart.period == "day" else self._overview.due.seconds_ms

    def _soon(self, chart: DueChart) -> dict[str, Any]:
        """Return a number whose window is named, since its link leads to exactly those tasks."""
        begin_ms, end_ms = chart.edges[0], chart.edges[-1]
        return {
            "title": _PERIODS[chart.period]()[0],
            "until": self._times.moment(end_ms),
            "pending": chart.pending if self._counted_ms(chart) else None,
            "link": self._links.due().of(begin_ms, end_ms),
        }

    def _due(self, chart: DueChart, counted_ms: int) -> dict[str, Any]:
        times, link = self._times, self._links.due()
        title, by = _PERIODS[chart.period]()
        return {
            "chart": chart,
            "title": title,
            "by": by,
            "known": bool(counted_ms),
            "counted": times.distance(counted_ms) if 0 < counted_ms < times.now_ms - OLD_MS else "",
            "drawing": draw_bars(chart, times, link),
            "rows": rows_of(chart, times, link) if self._view.tables else (),
        }

    def _herd(self, span: DueSpan) -> dict[str, Any]:
        when = span.from_ms, span.to_ms
        return {
            "pending": span.pending,
            "time": self._times.span(*when),
            "link": self._links.due().of(*when),
            "ahead": self._times.distance(max(span.from_ms, self._times.now_ms)),
            "tasks": span.tasks,
        }

    def _memory(self) -> dict[str, Any]:
        chosen, times, link = self._chosen, self._times, self._links.due(self._chosen.shard)
        levels = rings_of(self._wheel.store.browse.levels(chosen.shard))
        filled = max((place for place, ring in enumerate(levels, 1) if ring.pending), default=1)
        rings = levels[:filled]  # coarser levels without a task are listed among the internals alone

        arcs = [
            (ring.number, times.span(arc.begins_ms, arc.ends_ms), link.of(arc.from_ms, arc.to_ms), arc.pending)
            for ring in (rings if self._view.tables else ())
            for arc in ring.arcs
        ]
        rates = self._wheel.conf.rate_limits
        return {
            "drawing": draw_rings(rings, (chosen.snapshot or {}).get("window_count", 0), times, link),
            "turns": describe_turns(rings) if rings else "",
            "levels": [(ring, describe(ring)) for ring in levels],
            "arcs": arcs,
            "lanes": [lane_row(one, chosen, rates, times) for one in chosen.lanes[:LINES]],
            "more_lanes": max(0, len(chosen.lanes) - LINES),
        }


#: Requests of the audit log.
CHANGES = 5


class Links(NamedTuple):
    pending: str
    rejected: str
    schedules: str
    shards: str
    wheel: str
    gate: str

    @classmethod
    def of(cls, site: str) -> Links:
        pages = (
            "pending_changelist rejected_changelist schedule_changelist shard_changelist wheel_changelist wheel_gate"
        )
        return cls(*(reverse(f"admin:django_wheel_{page}", current_app=site) for page in pages.split()))

    def due(self, shard: int | None = None) -> DueLink:
        return DueLink(escape(self.pending), "" if shard is None else f"&amp;shard={shard}")


def answers(wheel: Wheel, overview: Overview, times: Moments) -> dict[str, Any]:
    snapshots = [one.snapshot for one in overview.shards if one.snapshot]
    minutes, held = minutes_of(snapshots, times.now_ms), overview.held_back
    return {
        **_alive(overview, times),
        **_late(wheel, overview, minutes),
        **_throughput(minutes, times),
        "overview": overview,
        "next_in": times.distance(overview.next_free_ms),
        "next_due": "" if overview.next_free_ms is None else times.moment(overview.next_free_ms),
        "held": held,
        "held_since": times.distance(held.first_ms),
        # beyond the horizon: in the store only
        "beyond": sum(max(0, one.pending - (one.snapshot or {}).get("window_count", 0)) for one in overview.shards),
        "totals": {name: sum(one.get(name, 0) for one in snapshots) for name in ("accepted", "dispatched")},
        "since": since_begin(snapshots, times),
    }


def changes(wheel: Wheel, times: Moments) -> list[tuple[str, str, str]]:
    return [
        (line.request.actor, line.summary, times.distance(line.request.at_ms))
        for line in map(AuditLine, wheel.audit(limit=CHANGES, origin=PEOPLE).items)
    ]


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


class LaneLine(NamedTuple):
    name: str
    state: str
    offset: str  #: the instant up to which the lane is published
    ready: int | None  #: rows in memory that are due; None where the holder's snapshot has no such lane


#: Rates by the name of a queue or a task, as the setting ``wheel_rate_limits`` has them.
Rates = Mapping[str, tuple[int, int]]


def lane_row(lane: Mapping[str, Any], shard: ShardStatus, rates: Rates, times: Moments) -> LaneLine:
    known = {one["lane"]: one for one in (shard.snapshot or {}).get("lanes", ())}
    target, scope = lane["target"], lane["scope"]
    if lane["lane"] == WAITING:
        name, state = _("groups"), _("tasks that wait for their group or for room in their queue")
    elif scope is not None:
        name, state = gate_label(scope, target or ""), _gate_state(shard, scope, target, rates)
    elif target is not None:
        name, state = printable(target), _("waits until its queue accepts messages")
    else:
        name, state = (_("beside the main lane") if lane["lane"] else _("main lane")), ""
    offset_ms = lane["offset"][0]
    offset = f"{times.moment(offset_ms)} ({times.distance(offset_ms)})" if offset_ms else "-"
    return LaneLine(name, state, offset, known.get(lane["lane"], {}).get("ready"))


def _gate_state(shard: ShardStatus, scope: str, target: str | None, rates: Rates) -> str:
    for gate in shard.gates:
        if (gate.scope, gate.name) == (scope, target):
            return (
                _("paused")
                if gate.state == PAUSED
                else _("resumed evenly over %(duration)s") % {"duration": format_duration(gate.per_ms)}
            )
    rate = rates.get(target or "")
    if rate is None:
        return ""
    return _("at most %(number)s in %(duration)s") % {"number": number(rate[0]), "duration": format_duration(rate[1])}


@admin.register(models.Wheel)
class WheelAdmin(PageAdmin):
    template = "django_wheel/wheel.html"
    live_parts = LiveParts()

    def more_urls(self, name: str) -> list[URLPattern]:
        return [
            path("live/", self.guarded(self.live), name=f"{name}_live"),
            path("seen/", self.guarded(mark_seen, methods=("POST",)), name=f"{name}_seen"),
            path("gate/", self.for_operators(partial(gate_page, self), (*READING, "POST")), name=f"{name}_gate"),
        ]

    def page(self, request: HttpRequest) -> HttpResponse:
        jobs = {job: has_results(job) for job in JOBS}
        return self.answer(request, self.template, partial(self.parts, request), jobs=jobs)

    def live(self, request: HttpRequest) -> HttpResponse:
        try:
            parts = self.parts(request, project_wheel(), PageQuery(request.GET))["parts"]
        except (WheelError, ImproperlyConfigured):
            return self.page(request)  # it reads the same error, and shows it
        return HttpResponse(unlike(parts.values(), request.GET.get("have", "")))

    def parts(self, request: HttpRequest, wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        overview, tables = wheel.overview(), query.text("tables") == "1"
        view = Viewpoint(
            store=wheel.store.uuid,
            site=self.admin_site.name,
            shard=shard_of(overview, query),
            may_operate=may_operate(request),
            tables=tables,
            language=get_language(),
            zone=timezone.get_current_timezone_name(),
        )
        link = query.link(tables=None if tables else 1)
        parts = self.live_parts.get(wheel, overview, view, seen_of(request, wheel.store.uuid))
        reloads = query.text("reload") != "0"
        reload_link = query.link(reload=0 if reloads else None)
        return {"parts": parts, "tables": tables, "tables_link": link, "reloads": reloads, "reload_link": reload_link}
