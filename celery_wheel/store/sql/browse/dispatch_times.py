"""The time of a task's dispatch: the settlement around its position says it, its row does not.

::

    batches of a lane   (from, to] (from, to] (from, to]  …      in order of their ends
    positions                *  *      *                         each in one of the batches that end at or after it

After a replay ranges overlap; then the earliest batch counts. Where the batch is forgotten, the time is unknown.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from celery_wheel.store.model import Position
from celery_wheel.store.ports.pages import Settlement, Task
from celery_wheel.store.sql.queries import browse as queries

#: Settlements compared for one position, of those that end at or after it: a replay in smaller parts puts the original
#: settlement after all of its own.
NEAR = 32

#: Settlements read at once: the tasks of a page are mostly neighbours, but tasks of a rare name are not.
AT_ONCE = 2 * NEAR


def with_times(connection: Connection, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks with the times of their dispatch."""
    by_lane: dict[tuple[int, int], list[Position]] = defaultdict(list)
    for task in tasks:
        by_lane[task.shard, task.lane].append(task.position)
    times: dict[Position, int | None] = {}
    for (shard, lane), places in by_lane.items():
        near = _NearbySettlements(connection, shard, lane)
        times |= {place: near.dispatched_ms(place) for place in sorted(places)}
    return [replace(one, dispatched_ms=times[one.position]) for one in tasks]


def dispatches_of(connection: Connection, task: Task) -> list[int]:
    """Return the times of a task's dispatches from its position; there are several where the broker lost writes."""
    around = _NearbySettlements(connection, task.shard, task.lane).around(task.position)
    return [one.dispatched_ms for one in around]


class _NearbySettlements:
    """The settlements of a lane near a position; the positions must come in order."""

    def __init__(self, connection: Connection, shard: int, lane: int) -> None:
        self._connection = connection
        self._lane = (shard, lane)
        self._read: list[Settlement] = []
        self._is_last = False  #: the lane has no settlement after those read

    def dispatched_ms(self, place: Position) -> int | None:
        return next((one.dispatched_ms for one in self.around(place)), None)

    def around(self, place: Position) -> list[Settlement]:
        """Return the settlements of the position, the earliest first."""
        at = bisect.bisect_left(self._read, place, key=lambda one: one.to)
        if not self._is_last and at + NEAR > len(self._read):
            found = self._connection.execute(queries.settlements_from(*self._lane, place, AT_ONCE))
            self._read = [Settlement(*row) for row in found]
            self._is_last = len(self._read) < AT_ONCE
            at = 0
        return sorted((one for one in self._read[at : at + NEAR] if one.from_ < place), key=lambda one: one.id)
