"""The window: the near part of a shard in memory, bounded by time, count and bytes.

::

    rows     {row id → Row}                the rows of all lanes that are due soon
    wheel    row id → bucket               rows not yet due; rows that are due stand in their lane's ``ready``
    budget   max_count rows, max_bytes     a share for each lane; over it, the lane's furthest rows are evicted and its
                                           horizon moves back
    shares   main lane alone               all of it
             main lane, others awake       three quarters of it
             each lane beside it           its part of a quarter

No lane has rows loaded or evicted because of another's: a queue that is paused keeps nothing out that becomes due, and
rows that are due in a lane beside the main one do not wait until the main one has room.

The window is a cache: every row in it is committed in the store and can be read again.
The window is complete for (watermark, horizon] of each lane, so a chunk taken from it is a range of the store.

Moving the horizon forward (``prefetch`` in the engine)::

    1. reach           store.reach: the end of the next slice
    2. horizon moves   and a reservation opens at the old horizon          from now on, commits place rows up to the
                                                                           new horizon themselves
    3. slice is read   (old horizon, new horizon] in a new transaction     it sees every row committed before 2
    4. rows placed     unless they are placed already; the reservation is released

If 3 came before 2, a row committed in between would be in neither the slice nor the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from celery_wheel.engine.state.lane import END, Lane
from celery_wheel.store.model import MAX_SEQ, Position, Row
from celery_wheel.timing import TimingWheel

#: The number of the main lane: every row is published from it that need not wait in another lane.
MAIN = 0

#: The part of the budget that the lanes beside the main one share, while any of them is awake.
BESIDE = 0.25

#: Over its share, a lane is evicted down to this part of it, so that the sort is paid once in a quarter share.
KEEP = 0.75

#: Below this part of its share, more of a lane is prefetched.
REFILL = 0.5


@dataclass(slots=True, eq=False)
class Prefetch:
    """A slice that is being read: rows in (after, upto] of a lane."""

    lane: int
    after: Position
    upto: Position
    token: int
    withdrawn: set[int]  #: rows that are cancelled or moved while the slice is read


@dataclass(slots=True)
class Weight:
    """A number of rows, and their bytes."""

    count: float = 0
    bytes: float = 0

    def exceeds(self, share: Weight, part: float = 1.0) -> bool:
        return self.count > share.count * part or self.bytes > share.bytes * part


class WindowLanes(Protocol):
    """The part of ``Lanes`` that the window uses."""

    awake: dict[int, Lane]

    @property
    def are_alone(self) -> bool: ...

    def __getitem__(self, number: int) -> Lane: ...


class Window:
    def __init__(self, wheel: TimingWheel, *, span_ms: int, max_count: int, max_bytes: int) -> None:
        self.wheel = wheel
        self.span_ms = span_ms
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.rows: dict[int, Row] = {}
        self.bytes = 0
        self._weights: dict[int, Weight] = {}  #: by the number of the lane; of lanes that have rows here
        self._watches: list[set[int]] = []  #: see ``watch``
        self._withdrawn: set[int] = set()  #: rows out of the window whose change may not be committed yet

    def place(self, lane: Lane, row: Row) -> None:
        """Place a committed row, unless it is beyond the horizon or in the window already."""
        if (row.due_ms, row.seq) > lane.horizon or row.id in self.rows:
            return
        self.rows[row.id] = row
        self.bytes += row.size
        load = self._weights.setdefault(lane.number, Weight())
        load.count += 1
        load.bytes += row.size
        if not self.wheel.schedule(row.id, row.due_ms, row):
            lane.push(row)

    def withdraw(self, row_id: int) -> None:
        """Forget a row that is being cancelled or moved; no slice begun before ``withdrawn`` brings it back."""
        row = self.rows.pop(row_id, None)
        if row is not None:
            self.left(row.lane, 1, row.size)
            self.wheel.cancel(row_id)
        self._withdrawn.add(row_id)
        for watch in self._watches:
            watch.add(row_id)

    def withdrawn(self, row_ids: Iterable[int]) -> None:
        """Note that the change of the rows is decided: a slice begun from now on reads their new state."""
        self._withdrawn.difference_update(row_ids)

    def watch(self) -> set[int]:
        """Return a set of the rows that are being withdrawn now, and of those that will be until ``unwatch``.

        A slice or a unit of work that places rows later leaves these out: its copies of them may be stale by then.
        """
        watch = set(self._withdrawn)
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: set[int]) -> None:
        self._watches = [one for one in self._watches if one is not watch]

    def has(self, lane: Lane) -> bool:
        """Whether a row of the lane is in memory."""
        return lane.number in self._weights

    def left(self, lane: int, count: int, weight: int) -> None:
        """Account for rows of a lane that are out of the window."""
        if not count:
            return
        self.bytes -= weight
        load = self._weights[lane]
        load.count -= count
        load.bytes -= weight
        if not load.count:
            del self._weights[lane]  # a lane that is closed never comes back under its number

    def reap(self, lanes: WindowLanes, now_ms: int) -> None:
        """Take the rows that expired off the wheel and make them ready in their lanes."""
        for timer in self.wheel.advance(now_ms):
            row: Row = timer.payload
            lanes[row.lane].push(row)

    def evict(self, lanes: WindowLanes) -> int:
        """Evict the furthest rows of each lane that is over its share; returns how many."""
        main, beside = self._share_of_main(lanes), self._share_beside(lanes)
        # At least one row stays, however large it is: it has to be able to leave.
        over: dict[int, list[Row]] = {
            number: []
            for number, load in self._weights.items()
            if load.count > 1 and load.exceeds(main if number == MAIN else beside)
        }
        before = len(self.rows)
        if over:
            # Once, however many lanes there are: a share shrinks for all of them at the same time.
            for row in self.rows.values():
                if row.lane in over:
                    over[row.lane].append(row)
        for number, rows in over.items():
            load, share = self._weights[number], main if number == MAIN else beside
            for row in sorted(rows, key=_furthest_first):
                if load.count == 1 or not load.exceeds(share, KEEP):
                    break
                self._put_back(lanes[number], row)
        return before - len(self.rows)

    def _share_of_main(self, lanes: WindowLanes) -> Weight:
        part = 1.0 if lanes.are_alone else 1 - BESIDE
        return Weight(self.max_count * part, self.max_bytes * part)

    def _share_beside(self, lanes: WindowLanes) -> Weight:
        part = BESIDE / max(1, len(lanes.awake) - 1)
        return Weight(max(1.0, self.max_count * part), self.max_bytes * part)

    def _put_back(self, lane: Lane, row: Row) -> None:
        lane.horizon = min(lane.horizon, row.position.previous())
        del self.rows[row.id]
        self.left(lane.number, 1, row.size)
        self.wheel.cancel(row.id)

    def wanted(self, lane: Lane, lanes: WindowLanes, now_ms: int) -> Position | None:
        """Return up to where more of the lane should be read now; None while it has enough rows in memory.

        Nearly all rows beside the main lane are due: such a lane is read to its end, so that it can become idle.
        """
        beside = lane.number != MAIN
        share = self._share_beside(lanes) if beside else self._share_of_main(lanes)
        load = self._weights.get(lane.number)
        if load is not None and load.exceeds(share, REFILL):
            return None
        if lane.horizon.due_ms >= now_ms + self.span_ms // 2 and (not beside or lane.horizon == END):
            return None
        return END if beside else Position(now_ms + self.span_ms, MAX_SEQ)

    def begin_prefetch(self, lane: Lane, after: Position, upto: Position) -> Prefetch | None:
        """Move the horizon and reserve the slice; None if the horizon is no longer at ``after``."""
        if lane.horizon != after:
            return None
        lane.horizon = upto
        return Prefetch(lane.number, after, upto, lane.reserve(after.next()), self.watch())

    def finish_prefetch(self, lane: Lane, prefetch: Prefetch, rows: Iterable[Row]) -> None:
        """Place the rows of the slice and release its reservation."""
        self.unwatch(prefetch.withdrawn)
        for row in rows:
            if row.id not in prefetch.withdrawn:
                self.place(lane, row)
        lane.release(prefetch.token)


def _furthest_first(row: Row) -> tuple[int, int]:
    return -row.due_ms, -row.seq
