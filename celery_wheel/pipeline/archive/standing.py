"""What there is for an archive in a store, at one moment: looked at by the driver, without reading an event.

::

    mark of the archive           highest number now
    ──────┼───────────────────────────┼──────►     (mark, number] of each shard is what a run archives
          └─ forgotten is beyond it: lost

A day is one of UTC. All rows of a settlement have its instant, so the days of a range are known from settlements and
outcomes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, select

from celery_wheel.errors import StoreUnusable
from celery_wheel.pipeline.source.opened import opened
from celery_wheel.store.archive_marks import first_after
from celery_wheel.store.model import HOUR_MS
from celery_wheel.store.schema import batch, outcome, shard

DAY_MS = 24 * HOUR_MS


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
    with opened(url) as found, found.database.snapshot() as connection:
        name = found.database.name
        if store not in (None, found.uuid):
            raise StoreUnusable(
                f"the archive is of the store with the id {store}, and {name} has {found.uuid}: another one, or made "
                "anew; nothing was written; give each store an archive of its own: --output"
            )
        columns = select(shard.c.shard, shard.c.seq, shard.c.forgotten, shard.c.archived).order_by(shard.c.shard)
        shards = connection.execute(columns).all()
        for row in shards:
            upto, mark = marks.get(row.shard, 0), noted.get(row.shard, 0)
            if row.seq < upto or row.archived < mark:
                knows = f"knows of {row.archived} only" if row.archived < mark else f"has given only {row.seq}"
                raise StoreUnusable(
                    f"the archive has shard {row.shard} up to number {max(upto, mark)}, and {name} {knows}: it was put "
                    "back to an older copy, and gives numbers again that the archive has; nothing was written; begin "
                    "a new archive: --output"
                )
        ranges = {row.shard: (marks.get(row.shard, 0), row.seq) for row in shards}
        # A new archive cannot lose what went before it; an old one also knows all of a shard that came since.
        had = {row.shard: marks.get(row.shard, row.forgotten if store is None else 0) for row in shards}
        return Standing(
            store=found.uuid,
            numbers={row.shard: row.seq for row in shards},
            ranges={number: range_ for number, range_ in ranges.items() if range_[0] < range_[1]},
            days=_days(connection, ranges),
            known={row.shard: max(marks.get(row.shard, 0), row.forgotten) for row in shards},
            lost=_lost(connection, had),
        )


def lost_since(url: str, before: Standing) -> list[Lost]:
    """What retention took while it was read."""
    with opened(url) as found, found.database.snapshot() as connection:
        return _lost(connection, before.known)


def _lost(connection: Connection, known: Mapping[int, int]) -> list[Lost]:
    rows = connection.execute(select(shard.c.shard, shard.c.forgotten).order_by(shard.c.shard)).all()
    return [
        Lost(row.shard, known[row.shard], row.forgotten, first_after(connection, row.shard, row.forgotten))
        for row in rows
        if row.forgotten > known.get(row.shard, row.forgotten)
    ]


def _days(connection: Connection, ranges: Mapping[int, tuple[int, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, (after, upto) in ranges.items():
        for table, at_ms, count in (
            (batch, batch.c.dispatched_ms, func.sum(batch.c.count)),
            (outcome, outcome.c.at_ms, func.count()),
        ):
            day = at_ms.op("/")(DAY_MS).label("day")
            of_range = select(day, count).where(table.c.shard == number, table.c.id > after, table.c.id <= upto)
            for since, events in connection.execute(of_range.group_by("day")):
                name = datetime.fromtimestamp(since * DAY_MS / 1_000, UTC).strftime("%Y-%m-%d")
                found[name] = found.get(name, 0) + int(events)
    return dict(sorted(found.items()))
