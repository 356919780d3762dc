"""The wheel page: the levels of a shard, and the state of the whole store.

::

    page   the frame, with the live part in it           live   the live part alone; the page fetches it every second

Counts and offsets are read from the store each time; levels come from the holder's last snapshot, whose age is shown.
Without a script the page reloads itself every few seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.requests.status import SILENT_MS, ShardStatus, status_of
from django_wheel import charts
from django_wheel.views.query import PageQuery

#: The lateness that the page shows is that of the tasks dispatched last, at most so many.
LATENESS_TASKS = 200


@dataclass(frozen=True, slots=True)
class RecentLateness:
    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


def wheel_values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    """Return the values of ``levels.html`` for the requested shard, or for the first if the store has no such shard."""
    now, due = now_ms(), wheel.store.browse.due_by_hour()
    pending = Counter[int]()  # of the same reading of the tally, because every viewer asks every second
    for one in due:
        pending[one.shard] += one.pending
    shards = status_of(wheel.store, now, pending)
    wanted = query.criteria.shard or 0
    if wanted >= len(shards):
        query.problems.append(_("shard must be a shard of the store, got %(value)s") % {"value": wanted})
    chosen = shards[wanted] if wanted < len(shards) else shards[0]
    return {
        "now_ms": now,
        "shards": shards,
        "several": len(shards) > 1,
        "chosen": chosen,
        "narrowed": f"shard={chosen.shard}&",
        "pending": sum(one.pending for one in shards),
        "charts": charts.level_charts(chosen.snapshot["levels"]) if chosen.snapshot else [],
        "ahead": charts.due_chart((one for one in due if one.shard == chosen.shard), now),
        "beyond": _beyond(chosen),
        "lateness": recent_lateness(wheel, chosen.shard),
        "standby": _standby(wheel, shards, now),
        "sizes": {"hours": charts.HOURS, "days": charts.DAYS},
    }


def _beyond(chosen: ShardStatus) -> int:
    """Return the number of the shard's tasks beyond the horizon, in the store only."""
    in_memory = chosen.snapshot["window_count"] if chosen.snapshot else 0
    return max(0, chosen.pending - in_memory)


def _standby(wheel: Wheel, shards: list[ShardStatus], now: int) -> list[str]:
    """Return the schedulers that run and hold no shard."""
    holders = {one.holder for one in shards}
    seen_at = wheel.store.browse.schedulers()
    return [name for name, seen_ms in seen_at.items() if now - seen_ms < SILENT_MS and name not in holders]


def recent_lateness(wheel: Wheel, shard: int) -> RecentLateness | None:
    """Return the lateness of the tasks dispatched last; None if there are none."""
    dispatched = wheel.history(limit=LATENESS_TASKS, shard=shard).items
    late = sorted(one.late_ms for one in dispatched if one.late_ms is not None)
    if not late:
        return None
    return RecentLateness(len(late), _percentile(late, 50), _percentile(late, 99), late[-1])


def _percentile(ordered: list[int], percent: int) -> int:
    """Return the nearest rank: the smallest value that at least ``percent`` of all do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
