"""The SVG of a chart of the due load: bars over a linear axis from 0, with its scale and its times.

::

     12 ┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈    PLOT px high; places are percents, so that the chart fills its page and its texts keep
      6 ┈┈█┈┈┈┈┈┈┈┈┈┈┈┈    their size: an SVG without a viewBox
      0 ▂▂█▁▂▂▁▂▁▂▂▁▂▁▁
      16:58      16:59     a bar is a link to its tasks; its target is as high as the plot

The drawing is hidden from screen readers and is no stop for the keyboard: tables with the same links stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_wheel.drawing.due_load import DAYS, DueChart, DueSpan
from django_wheel.drawing.times import Moments
from django_wheel.formats import number

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
