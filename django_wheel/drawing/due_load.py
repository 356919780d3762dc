"""The due load: how many tasks are due in each span of the next minute, hour, day, and month or year; herds; bars.

Spans begin with the present second, minute, hour, and day of the current time zone. The last chart has a bar for each
day where all tasks are due within ``DAYS`` days, and else one for each of 53 weeks: bars of 365 days could not be seen.
Counts are by the hour of UTC, so a day of a zone that is half an hour off begins up to half an hour late. A bar is a
link to its tasks; its target is as high as the plot. A herd is a span with at least ``HERD`` tasks, ``FAR_ABOVE`` times
the mean of the others in its chart, and ``STEEP`` times each of its neighbours: a load that only declines has none. A
herd of a coarser chart that a finer one explains is left out: ten thousand tasks of one second are one herd and not
three. The drawing is hidden from screen readers and is no stop for the keyboard: tables with the same links stand in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from html import escape
from typing import NamedTuple

from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

from celery_wheel.overview import DueLoad
from celery_wheel.overview.ahead import ComingHerd, is_far_above
from celery_wheel.store.model import HOUR_MS
from django_wheel.formats import Moments, number

SECOND_MS, MINUTE_MS = 1_000, 60_000
#: Bars of the chart of days, days of a bar of the chart of weeks, and its bars: a year and a day.
DAYS, WEEK, WEEKS = 31, 7, 53

STEEP = 3
#: More spans of one chart than these are not far above the others.
HERDS = 3


class DueSpan(NamedTuple):
    """The tasks that are due at or after ``from_ms`` and before ``to_ms``."""

    place: int  #: the number of the span in its chart
    from_ms: int
    to_ms: int
    pending: int
    tasks: tuple[str, ...] = ()  #: of a herd: the most frequent task, and the next one


class DueChart(NamedTuple):
    period: str  #: minute, hour, day, month or year; of a forecast also hours or week
    edges: Sequence[int]  #: the begin of each span, and the end of the last
    spans: list[DueSpan]  #: those that have tasks

    @property
    def size(self) -> int:
        return len(self.edges) - 1

    @property
    def pending(self) -> int:
        return sum(span.pending for span in self.spans)

    @property
    def most(self) -> int:
        return max((span.pending for span in self.spans), default=0)


def due_charts(due: DueLoad, now_ms: int) -> list[DueChart]:
    """Return the charts of the next minute, hour and day; the first two are empty where no seconds were counted."""
    return [
        even_chart("minute", due.seconds, now_ms, SECOND_MS, 60),
        even_chart("hour", due.minutes, now_ms, MINUTE_MS, 60),
        even_chart("day", due.hours, now_ms, HOUR_MS, 24),
    ]


def long_chart(hours: Mapping[int, int], now_ms: int) -> DueChart:
    """Return the chart of all hours ahead within a year: by the day, or by the week."""
    days = _days(now_ms, WEEK * WEEKS)
    last_ms = max((one for one in hours if one < days[-1]), default=0)
    if last_ms < days[DAYS]:
        return _chart("month", hours, days[: DAYS + 1])
    return _chart("year", hours, days[::WEEK])


def later_than(chart: DueChart, hours: Mapping[int, int]) -> int:
    return sum(pending for begin_ms, pending in hours.items() if begin_ms >= chart.edges[-1])


def even_chart(period: str, counts: Mapping[int, int], now_ms: int, width_ms: int, size: int) -> DueChart:
    """Return the chart of so many spans of one width, the first of which has the present."""
    begins_ms = now_ms - now_ms % width_ms
    return _chart(period, counts, list(range(begins_ms, begins_ms + (size + 1) * width_ms, width_ms)))


def _days(now_ms: int, count: int) -> list[int]:
    """Return the begins of so many days of the current time zone, and of the day after, at a full hour of UTC."""
    zone = get_current_timezone()
    today = datetime.fromtimestamp(now_ms // 1_000, zone).date()
    begins = (datetime.combine(today + timedelta(day), time(), zone) for day in range(count + 1))
    return [-(-round(one.timestamp()) * 1_000 // HOUR_MS) * HOUR_MS for one in begins]


def _chart(period: str, counts: Mapping[int, int], edges: list[int]) -> DueChart:
    found = Counter[int]()
    for begin_ms, pending in counts.items():
        if edges[0] <= begin_ms < edges[-1]:
            found[bisect_right(edges, begin_ms) - 1] += pending
    spans = [DueSpan(place, edges[place], edges[place + 1], found[place]) for place in sorted(found)]
    return DueChart(period, edges, spans)


def herds(charts: Iterable[DueChart], coming: Iterable[ComingHerd] = ()) -> list[DueSpan]:
    """Return the coming herds, which are known with their tasks, and those of the charts, the largest first."""
    found = [DueSpan(0, one.from_ms, one.to_ms, one.pending, one.tasks) for one in coming]
    for chart in charts:
        counts = {span.place: span.pending for span in chart.spans}
        high = [
            span
            for span in chart.spans
            if (span.place or chart.period == "minute")  # a finer chart has the first span
            and is_far_above(span.pending, chart.pending, chart.size)
            and span.pending >= STEEP * max(counts.get(span.place - 1, 0), counts.get(span.place + 1, 0))
        ]
        if len(high) <= HERDS:
            found += [span for span in high if not _is_explained(span, found)]
    return sorted(found, key=lambda span: (-span.pending, span.from_ms))


def _is_explained(span: DueSpan, finer: Iterable[DueSpan]) -> bool:
    within = sum(one.pending for one in finer if span.from_ms <= one.from_ms and one.to_ms <= span.to_ms)
    return 2 * within >= span.pending


PLOT, BELOW = 96, 20
#: The lowest bar in percent, so that the bar of a single task can be seen.
LOWEST = 2.0


class DueLink(NamedTuple):
    """The address of pending tasks that are due from one instant to another, escaped for HTML."""

    page: str
    more: str = ""  #: the rest of the query, like ``&amp;shard=1``

    def of(self, from_ms: int, to_ms: int) -> SafeString:
        return mark_safe(f"{self.page}?from={from_ms}&amp;to={to_ms}{self.more}")  # noqa: S308 - numbers


def round_top(most: int) -> int:
    """Return the end of an axis: a round number whose half is whole, unless it is 1."""
    power = int("1" + "0" * (len(str(most)) - 1))
    return next(digit * power for digit in (1, 2, 4, 6, 8, 10) if digit * power >= most)


def draw_bars(chart: DueChart, times: Moments, link: DueLink) -> SafeString:
    top, width = round_top(chart.most), 100 / chart.size
    label = escape(_("%(number)s pending, %(time)s"))
    bars = "".join(
        f'<a tabindex="-1" href="{link.of(span.from_ms, span.to_ms)}"><title>'
        f"{label % {'number': number(span.pending), 'time': times.span(span.from_ms, span.to_ms)}}</title>"
        f'<rect class="wheel-target" x="{span.place * width:.2f}%" width="{width:.2f}%" height="100%"/>'
        f'<rect x="{span.place * width:.2f}%" width="{width * 0.84:.2f}%" y="{100 - height:.1f}%"'
        f' height="{height:.1f}%"/></a>'
        for span in chart.spans
        for height in (max(LOWEST, 100 * span.pending / top),)
    )
    lines = "".join(f'<line x2="100%" y1="{y}%" y2="{y}%"/>' for y in (0, 50, 100))
    scale = (number(top), number(top // 2) if top > 1 else "", "0")
    labels = "".join(f'<text x="{at:g}%" y="{PLOT + 15}">{escape(text)}</text>' for at, text in _ticks(chart, times))
    return mark_safe(  # noqa: S308 - texts are escaped above, all else are numbers
        f'<div class="wheel-bars" aria-hidden="true"><div>{"".join(f"<span>{value}</span>" for value in scale)}</div>'
        f'<svg height="{PLOT + BELOW}"><svg width="100%" height="{PLOT}">{lines}{bars}</svg>{labels}</svg></div>'
    )


def _ticks(chart: DueChart, times: Moments) -> Iterator[tuple[float, str]]:
    """Yield place and label of the begin of each quarter; a label has its day where that begins since the last."""
    day = times.date(times.now_ms)
    for quarter in range(4):
        place = chart.size * quarter // 4
        at_ms, at = chart.edges[place], 100 * place / chart.size
        date = times.date(at_ms)
        if chart.period in ("week", "month", "year"):
            yield at, date
        else:
            yield at, times.clock(at_ms) if date == day else times.moment(at_ms)
        day = date


def rows_of(chart: DueChart, times: Moments, link: DueLink) -> list[tuple[str, str, DueSpan]]:
    """Return the lines of the table that has what the chart has: time, address and span."""
    return [(times.span(span.from_ms, span.to_ms), link.of(span.from_ms, span.to_ms), span) for span in chart.spans]
