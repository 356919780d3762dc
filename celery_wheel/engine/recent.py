"""The last ten minutes of an engine, in spans of twenty seconds: for the sparklines of pages that read its snapshot."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPAN_MS = 20_000
#: Spans that are kept: the present one, and those of ten minutes.
SPANS = 31


class RecentSpan(NamedTuple):
    """One span: tasks accepted and dispatched in it, and the lateness of its last dispatched tasks."""

    begins_ms: int
    accepted: int
    dispatched: int
    p50_ms: int | None = None  #: None where no task was dispatched
    p99_ms: int | None = None


class Recent:
    """The last spans. ``begins_ms`` of a span is a multiple of ``SPAN_MS``, so that spans of several holders match."""

    def __init__(self) -> None:
        self._spans = deque[RecentSpan](maxlen=SPANS)
        self._before = (0, 0)  #: tasks accepted and dispatched before the present span
        self._seen = (0, 0)

    def add(self, now_ms: int, accepted: int, dispatched: int, late: dict[str, int] | None) -> list[RecentSpan]:
        """Bring the present span up to date, from the totals so far; return all spans."""
        begins_ms = now_ms - now_ms % SPAN_MS
        if self._spans and self._spans[-1].begins_ms == begins_ms:
            self._spans.pop()
        else:
            self._before = self._seen
        self._seen = accepted, dispatched
        counts = accepted - self._before[0], dispatched - self._before[1]
        lateness = (late["p50_ms"], late["p99_ms"]) if late is not None and counts[1] else ()
        self._spans.append(RecentSpan(begins_ms, *counts, *lateness))
        return list(self._spans)
