"""The wheel page: the five answers that operators look for, the due load, and the wheel itself.

::

    alerts     no holder, a disputed clock, the gates in force        answers    alive, late, ahead, problems, changes
    minute … year   the due load           herds    spans far above the others
    rings      the wheel of a shard and its lanes                     internals  facts of the shard, its levels

    page   the frame with all parts                live   the parts that differ from those that the page has

All figures come from the process's ``Overview``, at most a second old. A part is rendered once for all of its viewers
and each ``Overview``: fifty viewers cost what one costs, and for each the request alone. A part has its checksum as its
version; the script of the page names the versions that it has, and gets the other parts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from django.template.loader import get_template
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.overview import Overview
from django_wheel.drawing.bars import draw_bars, rows_of
from django_wheel.drawing.due_load import DueChart, DueSpan, due_charts, herds, later_than_charts
from django_wheel.drawing.rings import describe, draw_rings, rings_of
from django_wheel.drawing.times import Moments
from django_wheel.formats import gate_label
from django_wheel.views.answers import Links, answers
from django_wheel.views.lanes import lane_row
from django_wheel.views.query import PageQuery

#: Titles of the charts, and the spans that they count.
_PERIODS = {
    "minute": lambda: (_("The next minute"), _("by the second")),
    "hour": lambda: (_("The next hour"), _("by the minute")),
    "day": lambda: (_("The next day"), _("by the hour")),
    "year": lambda: (_("The next year"), _("by the day of UTC")),
}

#: A year's chart has hundreds of bars, and hardly changes.
YEAR_MS = 10_000
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


class LiveParts:
    """The rendered parts of the last overview, for each viewpoint. A year is drawn anew every ``YEAR_MS``."""

    def __init__(self) -> None:
        self._of: Overview | None = None
        self._parts: dict[Viewpoint, dict[str, SafeString]] = {}
        self._years: dict[Viewpoint, tuple[int, SafeString]] = {}  #: with the time of the overview

    def get(self, wheel: Wheel, overview: Overview, view: Viewpoint) -> dict[str, SafeString]:
        if self._of is not overview:
            self._of, self._parts = overview, {}
            self._years = {view: one for view, one in self._years.items() if overview.read_ms - one[0] < YEAR_MS}
        if view not in self._parts:
            year, screen = self._years.get(view), Screen(wheel, overview, view)
            parts = {name: _part(name, content) for name, content in screen.parts(with_year=year is None)}
            year = self._years[view] = year or (overview.read_ms, parts["year"])
            self._parts[view] = {**parts, "year": year[1]}
        return self._parts[view]


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
    """The parts of one page, to be rendered."""

    def __init__(self, wheel: Wheel, overview: Overview, view: Viewpoint) -> None:
        self._wheel, self._overview, self._view = wheel, overview, view
        self._chosen = overview.shards[view.shard]
        self._times, self._links = Moments(now_ms()), Links(view.site)

    def parts(self, *, with_year: bool) -> Iterator[tuple[str, str]]:
        """Yield name and content of each part."""
        charts = due_charts(self._overview.due, self._times.now_ms)
        yield self._render("alerts", **self._gates())
        soon = [(chart.period, _PERIODS[chart.period]()[0], chart.pending) for chart in charts[1:3]]
        yield self._render("answers", soon=soon, **answers(self._wheel, self._overview, self._times, self._links))
        for chart in charts if with_year else charts[:-1]:
            _name, content = self._render("due_chart", **self._due(chart))
            yield chart.period, content
        later = later_than_charts(self._overview.due, self._times.now_ms)
        yield self._render("herds", herds=[self._herd(span) for span in herds(charts)[:LINES]], later=later)
        memory = self._memory()
        yield self._render("rings", **memory)
        yield self._render("internals", **memory)

    def _render(self, name: str, **values: Any) -> tuple[str, str]:
        more = {"chosen": self._chosen, "shards": self._overview.shards, "links": self._links}
        flags = {"may_operate": self._view.may_operate, "tables": self._view.tables}
        return name, get_template(f"django_wheel/front/{name}.html").render({**more, **flags, **values})

    def _gates(self) -> dict[str, Any]:
        gates = [
            (gate, self._times.moment(gate.at_ms), self._times.distance(gate.at_ms), gate_label(gate.scope, gate.name))
            for gate in self._overview.gates[:LINES]
        ]
        return {"gates": gates, "more_gates": len(self._overview.gates) - len(gates)}

    def _due(self, chart: DueChart) -> dict[str, Any]:
        times, link = self._times, self._links.due()
        title, by = _PERIODS[chart.period]()
        of_seconds = chart.period in ("minute", "hour")
        counted_ms = self._overview.due.seconds_ms if of_seconds else self._overview.read_ms
        return {
            "chart": chart,
            "title": title,
            "by": by,
            "known": bool(counted_ms),
            "counted": times.distance(counted_ms) if 0 < counted_ms < times.now_ms - OLD_MS else "",
            "drawing": draw_bars(chart, times, link),
            "rows": rows_of(chart, times, link) if self._view.tables else (),
        }

    def _herd(self, span: DueSpan) -> tuple[int, str, str, str]:
        when = span.from_ms, span.to_ms
        ahead = self._times.distance(max(span.from_ms, self._times.now_ms))
        return span.pending, self._times.span(*when), self._links.due().of(*when), ahead

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
            "levels": [(ring, describe(ring)) for ring in levels],
            "arcs": arcs,
            "lanes": [lane_row(one, chosen, rates, times) for one in chosen.lanes[:LINES]],
            "more_lanes": max(0, len(chosen.lanes) - LINES),
        }
