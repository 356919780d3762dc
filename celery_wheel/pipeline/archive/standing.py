"""What there is for an archive in a store, at one moment: looked at by the driver, without reading an event.

::

    mark of the archive           highest number now
    ──────┼───────────────────────────┼──────►     (mark, number] of each shard is what a run archives
          └─ forgotten is beyond it: lost

A day is one of UTC. All rows of a settlement have its instant, so the days of a range are known from settlements and
outcomes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.opened import opened
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.ports.maintenance import Archivable


@dataclass(frozen=True, slots=True)
class Lost:
    """Some events of a shard in (after, upto] were forgotten unread; all of them took place before ``before_ms``."""

    shard: int
    after: int
    upto: int
    before_ms: int | None

    def as_dict(self) -> dict[str, Any]:
        before = None if self.before_ms is None else datetime.fromtimestamp(self.before_ms / 1_000, UTC).isoformat()
        return {"shard": self.shard, "after": self.after, "upto": self.upto, "before": before}


@dataclass(frozen=True, slots=True)
class Standing:
    """``ranges``: of each shard, the numbers to read; ``days``: how many events of each day are in them, about."""

    store: str
    numbers: dict[int, int]
    ranges: dict[int, tuple[int, int]]
    days: dict[str, int]
    known: dict[int, int]  #: of each shard, up to which number nothing can be lost any more: archived, or forgotten
    lost: list[Lost] = field(default_factory=list)


def look(url: str, store: str | None, marks: Mapping[int, int], noted: Mapping[int, int]) -> Standing:
    """Raises StoreUnusable for another store than the archive's, or one that was put back.

    Args:
        store: UUID of the archive's store; None of a new archive, which begins with what is there.
        marks: of each shard, up to which number the archive has everything.
        noted: of each shard, the mark that was put into the store: it is only ever raised, and goes with a copy. So an
            older copy is known also where it has gone on since, beyond the numbers that it gives again.
    """
    with opened(url) as found:
        name, uuid = found.name, found.uuid
        if store not in (None, uuid):
            raise StoreUnusable(
                f"the archive is of the store with the id {store}, and {name} has {uuid}: another one, or made "
                "anew; nothing was written; give each store an archive of its own: --output"
            )
        shards = found.maintenance.archivable(marks)
    for one in shards:
        upto, mark = marks.get(one.shard, 0), noted.get(one.shard, 0)
        if one.seq < upto or one.archived < mark:
            knows = f"knows of {one.archived} only" if one.archived < mark else f"has given only {one.seq}"
            raise StoreUnusable(
                f"the archive has shard {one.shard} up to number {max(upto, mark)}, and {name} {knows}: it was put "
                "back to an older copy, and gives numbers again that the archive has; nothing was written; begin "
                "a new archive: --output"
            )
    ranges = {one.shard: (marks.get(one.shard, 0), one.seq) for one in shards}
    # A new archive cannot lose what went before it; an old one also knows all of a shard that came since.
    had = {one.shard: marks.get(one.shard, one.forgotten if store is None else 0) for one in shards}
    return Standing(
        store=uuid,
        numbers={one.shard: one.seq for one in shards},
        ranges={number: range_ for number, range_ in ranges.items() if range_[0] < range_[1]},
        days=_days(shards),
        known={one.shard: max(marks.get(one.shard, 0), one.forgotten) for one in shards},
        lost=_lost(shards, had),
    )


def lost_since(url: str, before: Standing) -> list[Lost]:
    """What retention took while it was read."""
    with opened(url) as found:
        return _lost(found.maintenance.archivable(before.numbers), before.known)


def _lost(shards: Sequence[Archivable], known: Mapping[int, int]) -> list[Lost]:
    return [
        Lost(one.shard, known[one.shard], one.forgotten, one.first_ms)
        for one in shards
        if one.forgotten > known.get(one.shard, one.forgotten)
    ]


def _days(shards: Sequence[Archivable]) -> dict[str, int]:
    found = Counter[int]()
    for one in shards:
        found.update(one.days)
    return {datetime.fromtimestamp(day * DAY_MS / 1_000, UTC).strftime("%Y-%m-%d"): found[day] for day in sorted(found)}
