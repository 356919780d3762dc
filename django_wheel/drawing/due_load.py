"""The due load as numbers: how many tasks are due in each span of the next minute, hour, day and year.

::

    minute   60 seconds       from the present second        day     24 hours    from the present hour
    hour     60 minutes       from the present minute        year    365 days    of UTC, from today

A herd is a span with at least ``HERD`` tasks, ``FAR_ABOVE`` times the mean of the others in its chart, and ``STEEP``
times each of its neighbours: a load that only declines has none. A herd of a coarser chart that a finer one explains is
left out: ten thousand tasks of one second are one herd and not four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from celery_wheel.overview import DueLoad
from celery_wheel.store.model import DAY_MS, HOUR_MS

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
    """Return the herds, the finest first; ``charts`` are in the order of their widths."""
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
