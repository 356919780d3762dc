"""When did a message leave? Its row does not say; the settlement that its position lies in does.

::

    batches of a lane   (from, to] (from, to] (from, to]  …      in the order of where they end
    positions                *  *      *                         each belongs to the first that ends at or behind it

After a replay ranges overlap; then it is the first time that it left. Where the batch is forgotten, nobody knows.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, select, tuple_

from celery_wheel.store.browse.rows import SETTLED_COLUMNS, Settled, Task
from celery_wheel.store.model import Position
from celery_wheel.store.schema import batch


def with_times(connection: Connection, tasks: Sequence[Task]) -> list[Task]:
    """The same tasks, each with the time at which it left."""
    by_lane: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for task in tasks:
        by_lane[task.shard, task.lane].append(task.position)
    settled = {
        lane: _settlements(connection, *lane, min(places), max(places), len(places)) for lane, places in by_lane.items()
    }
    return [replace(one, dispatched_ms=_left(settled[one.shard, one.lane], one.position)) for one in tasks]


def _settlements(
    connection: Connection, shard: int, lane: int, low: Position, high: Position, tasks: int
) -> list[Settled]:
    """Those that can have a position from ``low`` to ``high``; a task needs one, so a few more than tasks will do."""
    ends = tuple_(batch.c.to_due_ms, batch.c.to_seq)
    starts = tuple_(batch.c.from_due_ms, batch.c.from_seq)
    wanted = select(*SETTLED_COLUMNS).where(
        batch.c.shard == shard, batch.c.lane == lane, ends >= tuple_(*low), starts < tuple_(*high)
    )
    in_order = wanted.order_by(batch.c.to_due_ms, batch.c.to_seq, batch.c.id).limit(20 * tasks + 200)
    return [Settled(*row) for row in connection.execute(in_order)]


def _left(settled: list[Settled], place: Position) -> int | None:
    for one in settled[bisect.bisect_left(settled, place, key=lambda one: one.to) :]:
        if one.from_ < place:
            return one.dispatched_ms
    return None
