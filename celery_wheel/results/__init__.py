"""The results of the jobs, read back for pages and programs: few lines from many rows, by Arrow, without Spark.

``reader`` reads a job's folder, and ``figures`` makes lines of its tables. This module alone needs no Arrow.

Promises: of a table at most ``figures.MAX_ROWS`` rows are read; omitted rows are counted. Counts, maxima and misses are
exact. Percentiles are those of one hour of one task and queue; a line of several hours names the worst hour, because an
average of percentiles has no meaning (``celery_wheel.pipeline.jobs.lateness.merge_hours`` computes those of a day).
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
    """Estimate when a backlog drains at a given rate; None where nothing is pending.

    Args:
        due: (beginning of the hour, count), in order; its tasks count as due at its beginning, the worst case.
    """
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
