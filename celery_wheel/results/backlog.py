"""Estimate when the backlog drains at a given rate, from counts by the hour: for commands and pages without pyarrow.

::

    pending  ▂ ▅ █ ▂ ▁        the tasks of an hour count as due at its beginning: the worst case of the counts
    backlog    ▁ ▆ ▃          grows by the due tasks, shrinks by the rate; drained when it is 0 after the last hour

A file of its own: the other results need pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BacklogEstimate:
    """``worst``: the largest number of overdue tasks, from ``worst_ms`` on; ``done_ms``: when none is pending."""

    worst: int
    worst_ms: int
    done_ms: int


def estimate_backlog(due: Iterable[tuple[int, int]], now_ms: int, per_second: float) -> BacklogEstimate | None:
    """Estimate a backlog; None where nothing is pending. ``due``: (beginning of the hour, count), in order."""
    estimate, at_ms, backlog, worst = None, now_ms, 0.0, 0.0
    worst_ms = now_ms
    for from_ms, pending in due:
        begins_ms = max(now_ms, from_ms)
        backlog = max(0.0, backlog - per_second * (begins_ms - at_ms) / 1_000) + pending
        at_ms = begins_ms
        if backlog > worst:
            worst, worst_ms = backlog, begins_ms
        estimate = BacklogEstimate(round(worst), worst_ms, at_ms + round(backlog / per_second * 1_000))
    return estimate
