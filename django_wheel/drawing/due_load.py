"""The due load: how many tasks are due in each span of the next minute, hour, day and year, its herds, and its bars.

Spans begin with the present second, minute, hour and day of UTC. A bar is a link to its tasks; its target is as high as
the plot. A herd is a span with at least ``HERD`` tasks, ``FAR_ABOVE`` times the mean of the others in its chart, and
``STEEP`` times each of its neighbours: a load that only declines has none. A herd of a coarser chart that a finer one
explains is left out: ten thousand tasks of one second are one herd and not four. The drawing is hidden from screen
readers and is no stop for the keyboard: tables with the same links stand in for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from celery_wheel.overview import DueLoad
from celery_wheel.store.model import DAY_MS, HOUR_MS
from django_wheel.formats import Moments, number

SECOND_MS, MINUTE_MS = 1_000, 60_000
DAYS = 365

#: Tasks of the smallest herd.
HERD = 100
FAR_ABOVE, STEEP = 5, 3
#: More spans of one chart than these are not far above the others.
HERDS = 3


class DueSpan(NamedTuple):
    """The tasks that are due at or after ``from_ms`` and before ``to_ms``."""

    place: int  #: the number of the span in its chart
    from_ms: int
    to_ms: int
    pending: int


class DueChart(NamedTuple):
    period: str  #: minute, hour, day or year
    begins_ms: int
    width_ms: int
    size: int
    spans: list[DueSpan]  #: those that have tasks

    @property
    def pending(self) -> int:
        return sum(span.pending for span in self.spans)

    @property
    def most(self) -> int:
        return max((span.pending for span in self.spans), default=0)


def due_charts(due: DueLoad, now_ms: int) -> list[DueChart]:
    """Return the four charts; those of seconds and minutes are empty where the seconds were not counted."""
    this_hour = now_ms - now_ms % HOUR_MS
    days = Counter[int]()
    for spans, from_ms in ((due.hours, this_hour), (due.days, 0)):
        for begins_ms, pending in spans.items():
            if begins_ms >= from_ms:
                days[begins_ms - begins_ms % DAY_MS] += pending
    return [
        _chart("minute", due.seconds, SECOND_MS, 60, now_ms),
        _chart("hour", due.minutes, MINUTE_MS, 60, now_ms),
        _chart("day", due.hours, HOUR_MS, 24, now_ms),
        _chart("year", days, DAY_MS, DAYS, now_ms),
    ]


def _chart(period: str, counts: Mapping[int, int], width_ms: int, size: int, now_ms: int) -> DueChart:
    begins_ms = now_ms - now_ms % width_ms
    spans = [
        DueSpan(place, from_ms, from_ms + width_ms, counts[from_ms])
        for place, from_ms in enumerate(range(begins_ms, begins_ms + size * width_ms, width_ms))
        if counts.get(from_ms)
    ]
    return DueChart(period, begins_ms, width_ms, size, spans)


def later_than_charts(due: DueLoad, now_ms: int) -> int:
    """Return the number of tasks that are due after the year of the charts."""
    ends_ms = now_ms - now_ms % DAY_MS + DAYS * DAY_MS
    return sum(pending for begins_ms, pending in due.days.items() if begins_ms >= ends_ms)


def herds(charts: Iterable[DueChart]) -> list[DueSpan]:
    found: list[DueSpan] = []
    for chart in charts:
        counts = {span.place: span.pending for span in chart.spans}
        total, others = chart.pending, chart.size - 1
        high = [
            span
            for span in chart.spans
            if (span.place or chart.width_ms == SECOND_MS)  # a finer chart has the first span
            and span.pending >= max(HERD, FAR_ABOVE * (total - span.pending) / others)
            and span.pending >= STEEP * max(counts.get(span.place - 1, 0), counts.get(span.place + 1, 0))
        ]
        if len(high) <= HERDS:
            found += [span for span in high if not _is_explained(span, found)]
    return found


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
        f'<div class="wheel-plot" aria-hidden="true"><div>{"".join(f"<span>{value}</span>" for value in scale)}</div>'
        f'<svg height="{PLOT + BELOW}"><svg width="100%" height="{PLOT}">{lines}{bars}</svg>{labels}</svg></div>'
    )


def _ticks(chart: DueChart, times: Moments) -> Iterator[tuple[float, str]]:
    """Yield place and label of the begin of each quarter; a label has its day where that begins since the last."""
    day = times.date(times.now_ms)
    for quarter in range(4):
        at_ms = chart.begins_ms + chart.size * quarter // 4 * chart.width_ms
        date = times.date(at_ms)
        if chart.size == DAYS:
            yield 25 * quarter, date
        else:
            yield 25 * quarter, times.clock(at_ms) if date == day else times.moment(at_ms)
        day = date


def rows_of(chart: DueChart, times: Moments, link: DueLink) -> list[tuple[str, str, DueSpan]]:
    """Return the lines of the table that has what the chart has: time, address and span."""
    return [(times.span(span.from_ms, span.to_ms), link.of(span.from_ms, span.to_ms), span) for span in chart.spans]
