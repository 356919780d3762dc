"""When will what is pending have left, at so many a second? From counts by the hour. Standard library only.

::

    pending  ▂ ▅ █ ▂ ▁        what is due in an hour counts as due at its beginning, the worst that the counts allow
    backlog    ▁ ▆ ▃          grows by what is due, shrinks by the rate; the last of it has left when it is empty
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """``worst``: the most that waits although it is due, and since when; ``done_ms``: when nothing is left."""

    worst: int
    worst_ms: int
    done_ms: int


def drain(due: Iterable[tuple[int, int]], now_ms: int, per_second: float) -> Drain | None:
    """``due``: (beginning of the hour, how many), in order. None where nothing is pending."""
    at_ms, backlog = now_ms, 0.0
    worst, worst_ms, any_ = 0.0, now_ms, False
    for from_ms, pending in due:
        any_ = True
        begins_ms = max(now_ms, from_ms)
        backlog = max(0.0, backlog - per_second * (begins_ms - at_ms) / 1_000) + pending
        at_ms = begins_ms
        if backlog > worst:
            worst, worst_ms = backlog, begins_ms
    return Drain(round(worst), worst_ms, at_ms + round(backlog / per_second * 1_000)) if any_ else None
