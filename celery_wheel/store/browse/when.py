"""When did a message leave? Its row does not say; the settlement that its position lies in does.

::

    batches of a lane   (from, to] (from, to] (from, to]  …      in the order of where they end
    positions                *  *      *                         in one of the first that end at or behind it

After a replay ranges overlap; then it is the first time that it left. Where the batch is forgotten, nobody knows.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, select, tuple_

from celery_wheel.store.browse.rows import SETTLED_COLUMNS
from celery_wheel.store.model import Position
from celery_wheel.store.ports.pages import Settled, Task
from celery_wheel.store.schema import batch

#: Of the settlements that end at or behind a position so many are looked at: after a replay in smaller parts the
#: original one is behind all of those.
NEAR = 32

#: Read at once: tasks of a page are mostly neighbours, but those of a rare name are not.
AT_ONCE = 2 * NEAR


def with_times(connection: Connection, tasks: Sequence[Task]) -> list[Task]:
    """The same tasks, each with the time at which it left."""
    by_lane: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for task in tasks:
        by_lane[task.shard, task.lane].append(task.position)
    left: dict[Position, int | None] = {}
    for (shard, lane), places in by_lane.items():
        near = _Near(connection, shard, lane)
        left |= {place: near.left(place) for place in sorted(places)}
    return [replace(one, dispatched_ms=left[one.position]) for one in tasks]


class _Near:
    """The settlements of a lane near a position; asked in order of position."""

    def __init__(self, connection: Connection, shard: int, lane: int) -> None:
        self._connection = connection
        self._lane = (batch.c.shard == shard, batch.c.lane == lane)
        self._read: list[Settled] = []
        self._all = False  #: there are none behind those

    def left(self, place: Position) -> int | None:
        at = self._at(place)
        if not self._all and at + NEAR > len(self._read):
            ends = tuple_(batch.c.to_due_ms, batch.c.to_seq)
            wanted = select(*SETTLED_COLUMNS).where(*self._lane, ends >= tuple_(*place))
            in_order = wanted.order_by(batch.c.to_due_ms, batch.c.to_seq).limit(AT_ONCE)
            self._read = [Settled(*row) for row in self._connection.execute(in_order)]
            self._all = len(self._read) < AT_ONCE
            at = 0
        around = [one for one in self._read[at : at + NEAR] if one.from_ < place]
        return min(around, key=lambda one: one.id).dispatched_ms if around else None

    def _at(self, place: Position) -> int:
        return bisect.bisect_left(self._read, place, key=lambda one: one.to)
