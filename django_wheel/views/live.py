"""The wheel page: what a shard's levels hold at this moment, and how the store as a whole is doing.

::

    page   the frame, with the live part in it           live   the live part alone, which the page fetches every second

Read anew each time: counts and offsets from the store, levels from the holder's last snapshot, with its age. The page
is as good without a script: it then loads itself anew every few seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from celery_wheel.control import Wheel, now_ms
from celery_wheel.status import SILENT_MS, ShardStatus, status_of
from django_wheel import picture
from django_wheel.views.request import Asked

#: Lateness is shown of so many tasks that left last.
LATENESS_OF = 200


@dataclass(frozen=True, slots=True)
class Lateness:
    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int


def live(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    """What ``live.html`` needs: the levels of the shard that is asked for; of the first, if the store has no such."""
    now, due = now_ms(), wheel.store.browse.due_by_hour()
    pending = Counter[int]()  # of the same pass over the tally: every viewer asks every second
    for one in due:
        pending[one.shard] += one.pending
    shards = status_of(wheel.store, now, pending)
    wanted = asked.criteria.shard or 0
    if wanted >= len(shards):
        asked.problems.append(f"shard must be one that the store has, got {wanted}")
    chosen = shards[wanted] if wanted < len(shards) else shards[0]
    return {
        "now_ms": now,
        "shards": shards,
        "several": len(shards) > 1,
        "chosen": chosen,
        "narrowed": f"shard={chosen.shard}&",
        "pending": sum(one.pending for one in shards),
        "strips": picture.strips(chosen.snapshot["levels"]) if chosen.snapshot else [],
        "ahead": picture.ahead((one for one in due if one.shard == chosen.shard), now),
        "beyond": _beyond(chosen),
        "lateness": lateness(wheel, chosen.shard),
        "standby": _standby(wheel, shards, now),
        "picture": picture,
    }


def _beyond(chosen: ShardStatus) -> int:
    """How many of the shard's tasks are in the store only, further ahead than the wheel looks."""
    in_memory = chosen.snapshot["window_count"] if chosen.snapshot else 0
    return max(0, chosen.pending - in_memory)


def _standby(wheel: Wheel, shards: list[ShardStatus], now: int) -> list[str]:
    """Schedulers that are at work and hold nothing."""
    holders = {one.holder for one in shards}
    heard = wheel.store.browse.schedulers()
    return [name for name, seen_ms in heard.items() if now - seen_ms < SILENT_MS and name not in holders]


def lateness(wheel: Wheel, shard: int) -> Lateness | None:
    """Of the tasks that left last, how long after their eta that was; None where none did."""
    left = wheel.history(limit=LATENESS_OF, shard=shard).items
    late = sorted(one.late_ms for one in left if one.late_ms is not None)
    if not late:
        return None
    return Lateness(len(late), _rank(late, 50), _rank(late, 99), late[-1])


def _rank(ordered: list[int], percent: int) -> int:
    """The smallest value that at least so many of a hundred do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
