"""A survey of the events that a store has for an archive, by the driver, at one moment, without reading an event.

::

    mark of the archive           highest number now
    ──────┼───────────────────────────┼──────►     a run archives (mark, number] of each shard
          └─ removed by retention beyond the mark: lost

Days are in UTC. All rows of a settlement have its instant, so settlements and outcomes alone give the days of a range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.snapshot import open_for_reading
from celery_wheel.store.model import DAY_MS
from celery_wheel.store.store_model import Archivable


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range of a shard, (after, upto], of which retention removed events unread, all from before ``before_ms``."""

    shard: int
    after: int
    upto: int
    before_ms: int | None

    def as_dict(self) -> dict[str, Any]:
        before = None if self.before_ms is None else datetime.fromtimestamp(self.before_ms / 1_000, UTC).isoformat()
        return {"shard": self.shard, "after": self.after, "upto": self.upto, "before": before}


@dataclass(frozen=True, slots=True)
class ArchiveSurvey:
    """``ranges``: the numbers to read, by shard; ``days``: their events by day, about."""

    store: str
    numbers: dict[int, int]
    ranges: dict[int, tuple[int, int]]
    days: dict[str, int]
    known: dict[int, int]  #: by shard, the number up to which all events are archived or lost
    lost: list[LostRange] = field(default_factory=list)


def survey_store(url: str, store: str | None, marks: Mapping[int, int], noted: Mapping[int, int]) -> ArchiveSurvey:
    """Survey the store at ``url``. Raises StoreUnusable for a store that is not the archive's, or an older copy of it.

    Args:
        store: UUID of the archive's store; None for a new archive, which begins with the store's oldest event.
        marks: by shard, the number up to which the archive has every event.
        noted: by shard, the mark that was written to the store: it only rises, and a copy includes it. So an older copy
            is detected even after it has given more numbers than the archive has.
    """
    with open_for_reading(url) as opened:
        name, uuid = opened.name, opened.uuid
        if store not in (None, uuid):
            raise StoreUnusable(
                f"the archive belongs to the store {store}, but {name} is {uuid}: another store, or one created anew; "
                "nothing was written; give each store an archive of its own: --output"
            )
        shards = opened.maintenance.archivable(marks)
    for one in shards:
        upto, mark = marks.get(one.shard, 0), noted.get(one.shard, 0)
        if one.seq < upto or one.archived < mark:
            state = f"has the mark {one.archived}" if one.archived < mark else f"is at {one.seq}"
            raise StoreUnusable(
                f"the archive has shard {one.shard} up to number {max(upto, mark)}, but {name} {state}: it was "
                "replaced by an older copy, and gives numbers again that the archive has; nothing was written; begin "
                "a new archive: --output"
            )
    ranges = {one.shard: (marks.get(one.shard, 0), one.seq) for one in shards}
    # A new archive cannot lose earlier events. To an old archive a shard that was added since is known from its start.
    expected = {one.shard: marks.get(one.shard, one.forgotten if store is None else 0) for one in shards}
    return ArchiveSurvey(
        store=uuid,
        numbers={one.shard: one.seq for one in shards},
        ranges={number: range_ for number, range_ in ranges.items() if range_[0] < range_[1]},
        days=_days(shards),
        known={one.shard: max(marks.get(one.shard, 0), one.forgotten) for one in shards},
        lost=_lost(shards, expected),
    )


def lost_since(url: str, before: ArchiveSurvey) -> list[LostRange]:
    """Return the events that retention removed while a run read them."""
    with open_for_reading(url) as opened:
        return _lost(opened.maintenance.archivable(before.numbers), before.known)


def _lost(shards: Sequence[Archivable], known: Mapping[int, int]) -> list[LostRange]:
    return [
        LostRange(one.shard, known[one.shard], one.forgotten, one.first_ms)
        for one in shards
        if one.forgotten > known.get(one.shard, one.forgotten)
    ]


def _days(shards: Sequence[Archivable]) -> dict[str, int]:
    days = Counter[int]()
    for one in shards:
        days.update(one.days)
    return {datetime.fromtimestamp(day * DAY_MS / 1_000, UTC).strftime("%Y-%m-%d"): days[day] for day in sorted(days)}
