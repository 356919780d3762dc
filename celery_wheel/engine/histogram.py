"""Histograms of durations: counts by bucket, for the metrics.

::

    Histogram       publishes and commits: one duration a call
    LatenessByTask  one histogram for each task and queue: a chunk at a time

The clock's milliseconds are whole, so a duration below a millisecond counts as 0 or 1 ms; sums are right on average.

``LatenessByTask`` adds a row for about 0.2 µs of CPU, and a row that is accepted and dispatched takes 60 µs and more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from celery_wheel.store.model import Route, Row

#: The upper ends of the buckets.
LATENESS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
DURATION_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)

#: Pairs of task and queue with a histogram of their own; all later pairs share the histogram of OTHER.
MAX_NAMES = 200
OTHER = "_other"

#: Routes that a ``LatenessByTask`` knows by identity; very many differ in their routing keys alone.
MAX_ROUTES = 10_000

Names = tuple[str, str]  #: task and queue


class Histogram:
    """Counts by bucket; ``counts`` has one item more than ``bounds_ms``, for all longer durations."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[int] = DURATION_MS) -> None:
        self.bounds_ms = bounds_ms
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        self.counts[bisect_left(self.bounds_ms, duration_ms)] += 1
        self.sum_ms += duration_ms

    def cumulative(self) -> Iterator[tuple[float | None, int]]:
        """Yield the upper end of each bucket in seconds, with the count up to it; None is the end of the last."""
        ends_s = [bound_ms / 1_000 for bound_ms in self.bounds_ms]
        return zip([*ends_s, None], accumulate(self.counts), strict=True)

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms


class LatenessByTask:
    """The time from a message's eta to its publish, by task and queue."""

    def __init__(self) -> None:
        self.by_names: dict[Names, Histogram] = {}
        self._by_route: dict[Route, Histogram] = {}

    def add(self, rows: Iterable[Row], now_ms: int) -> int:
        """Add the rows of a chunk; returns the highest lateness, 0 where there is none.

        A broker to which messages are sent somewhat ahead of their time has no negative lateness.
        """
        by_route, highest_ms = self._by_route, 0
        for row in rows:
            late_ms = now_ms - row.eta_ms if now_ms > row.eta_ms else 0
            highest_ms = late_ms if late_ms > highest_ms else highest_ms
            histogram = by_route.get(row.route) or self._histogram_of(row.route)
            histogram.counts[bisect_left(LATENESS_MS, late_ms)] += 1
            histogram.sum_ms += late_ms
        return highest_ms

    def merge(self, other: LatenessByTask) -> None:
        for names, histogram in list(other.by_names.items()):
            self._named(names).merge(histogram)

    def _histogram_of(self, route: Route) -> Histogram:
        if len(self._by_route) >= MAX_ROUTES:
            self._by_route.clear()
        found = self._by_route[route] = self._named((route.task, route.target))
        return found

    def _named(self, names: Names) -> Histogram:
        if names not in self.by_names and len(self.by_names) >= MAX_NAMES:
            names = OTHER, OTHER
        return self.by_names.setdefault(names, Histogram(LATENESS_MS))
