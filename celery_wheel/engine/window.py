"""The window: the near part of a shard in memory, bounded by time, count and bytes.

::

    rows     {row id → Row}                what may leave soon, of all lanes
    wheel    row id → bucket               those not yet due; the others stand in their lane's ``ready``
    budget   max_count rows, max_bytes     over it, the furthest rows are evicted and the edge moves back
    aside    lanes beside the main one     together a quarter of it at most: what waits there is due, and would else
                                           keep out what becomes due

A cache, never the truth: every row here is committed in the store, and all of it can be read again.
The window is complete for (watermark, edge] of each lane, so a chunk taken from it is a range of the store.

Moving the edge forward (``load`` in the engine)::

    1. how far?        store.reach(edge, horizon)
    2. edge moves      and a reservation opens at the old edge     ← first: from now on ingest places rows
    3. slice is read   (old edge, new edge] in a new transaction   ← second: it sees whatever was committed
    4. rows placed     those that were not placed already; the reservation closes         before the edge moved

Were 3 before 2, a row committed in between would be in neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from celery_wheel.engine.lane import Lane
from celery_wheel.store.model import MAX_SEQ, Position, Row
from celery_wheel.timing import TimingWheel

#: The number of the lane from which everything leaves that need not wait elsewhere.
MAIN = 0

#: Over budget, the window is cut to this part of it, so that the sort is paid once in a quarter window.
KEEP = 0.75

#: Below this part of the budget, more is loaded.
REFILL = 0.5


@dataclass(slots=True, eq=False)
class Load:
    """A slice under way: rows in (after, upto] of a lane."""

    lane: int
    after: Position
    upto: Position
    token: int
    withdrawn: set[int]  #: rows that are being cancelled or moved while it is read


class Window:
    def __init__(self, wheel: TimingWheel, *, span_ms: int, max_count: int, max_bytes: int) -> None:
        self.wheel = wheel
        self.span_ms = span_ms
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.rows: dict[int, Row] = {}
        self.bytes = 0
        self._in_lane: Counter[int] = Counter()  #: of rows, by the number of their lane
        self._watches: list[set[int]] = []  #: see ``watch``
        self._withdrawn: set[int] = set()  #: out of the window, and the store may not know yet

    def place(self, lane: Lane, row: Row) -> None:
        """Let a committed row wait; one beyond the edge stays in the store, one that is here stays as it is."""
        if (row.due_ms, row.seq) > lane.edge or row.id in self.rows:
            return
        self.rows[row.id] = row
        self.bytes += row.size
        self._in_lane[lane.number] += 1
        if not self.wheel.schedule(row.id, row.due_ms, row):
            lane.push(row)

    def withdraw(self, row_id: int) -> None:
        """Forget a row that is being cancelled or moved; no slice brings it back before ``withdrawn``."""
        row = self.rows.pop(row_id, None)
        if row is not None:
            self.left(row.lane, 1, row.size)
            self.wheel.cancel(row_id)
        self._withdrawn.add(row_id)
        for watch in self._watches:
            watch.add(row_id)

    def withdrawn(self, row_ids: Iterable[int]) -> None:
        """The store knows now: a slice that is begun from here on reads what became of the rows."""
        self._withdrawn.difference_update(row_ids)

    def watch(self) -> set[int]:
        """The rows that are being withdrawn, and will be until ``unwatch``: for whoever places rows that it read or
        moved before, and the store may know better by then."""
        watch = set(self._withdrawn)
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: set[int]) -> None:
        self._watches = [one for one in self._watches if one is not watch]

    def has(self, lane: Lane) -> bool:
        """Whether a row of the lane is in memory."""
        return self._in_lane[lane.number] > 0

    def left(self, lane: int, count: int, weight: int) -> None:
        """Account for rows of a lane that are here no more."""
        self.bytes -= weight
        self._in_lane[lane] -= count

    def reap(self, lanes: dict[int, Lane], now_ms: int) -> None:
        """Take what expired off the wheel and make it ready in its lane."""
        for timer in self.wheel.advance(now_ms):
            row: Row = timer.payload
            lanes[row.lane].push(row)

    def evict(self, lanes: dict[int, Lane]) -> int:
        """Over budget: put the furthest rows back to the store alone. Returns how many."""
        evicted = self._evict_aside(lanes)
        if len(self.rows) <= self.max_count and self.bytes <= self.max_bytes:
            return evicted
        count, size = int(self.max_count * KEEP), int(self.max_bytes * KEEP)
        for row in sorted(self.rows.values(), key=_furthest_first):
            # At least one row stays, however large it is: it has to be able to leave.
            if len(self.rows) == 1 or (len(self.rows) <= count and self.bytes <= size):
                break
            self._put_back(lanes[row.lane], row)
            evicted += 1
        return evicted

    def _evict_aside(self, lanes: dict[int, Lane]) -> int:
        """The same for each lane beside the main one that has more than its share."""
        if len(lanes) == 1:
            return 0
        most, evicted = self._share(lanes), 0
        for number, count in list(self._in_lane.items()):
            if number != MAIN and count > most:
                mine = sorted((row for row in self.rows.values() if row.lane == number), key=_furthest_first)
                for row in mine[: count - max(1, int(most * KEEP))]:
                    self._put_back(lanes[number], row)
                    evicted += 1
        return evicted

    def _share(self, lanes: dict[int, Lane]) -> int:
        return max(1, self.max_count // 4 // max(1, len(lanes) - 1))

    def _put_back(self, lane: Lane, row: Row) -> None:
        lane.edge = min(lane.edge, row.position.previous())
        del self.rows[row.id]
        self.left(lane.number, 1, row.size)
        self.wheel.cancel(row.id)

    def wanted(self, lane: Lane, lanes: dict[int, Lane], now_ms: int) -> Position | None:
        """Up to where more of the lane should be loaded now; None while there is enough."""
        if lane.number != MAIN and self._in_lane[lane.number] > self._share(lanes) * REFILL:
            return None
        if len(self.rows) > self.max_count * REFILL or self.bytes > self.max_bytes * REFILL:
            return None
        if lane.edge.due_ms >= now_ms + self.span_ms // 2:
            return None
        return Position(now_ms + self.span_ms, MAX_SEQ)

    def begin_load(self, lane: Lane, after: Position, upto: Position) -> Load | None:
        """Move the edge; None if it was moved by somebody else since ``after`` was looked at."""
        if lane.edge != after:
            return None
        lane.edge = upto
        return Load(lane.number, after, upto, lane.reserve(after.next()), self.watch())

    def finish_load(self, lane: Lane, load: Load, rows: Iterable[Row]) -> None:
        self.unwatch(load.withdrawn)
        for row in rows:
            if row.id not in load.withdrawn:
                self.place(lane, row)
        lane.release(load.token)


def _furthest_first(row: Row) -> tuple[int, int]:
    return -row.due_ms, -row.seq
