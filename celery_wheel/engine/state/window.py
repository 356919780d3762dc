"""The window: the near part of a shard in memory, bounded by time, count and bytes.

While other lanes are awake, the main lane has three quarters of the budget, and the others share the rest: a paused
queue keeps no due row of another out of memory. Over its share, a lane's furthest rows are evicted. The window is a
cache, complete for (watermark, horizon] of each lane: a chunk taken from it is a range of the store. ``prefetch``::

    1 reach           store.slice_end: the end of the next slice
    2 horizon moves   and a reservation opens at the old horizon          from now on, commits place rows up to the
                                                                          new horizon themselves
    3 slice is read   (old horizon, new horizon] in a new transaction     it has every row committed before 2
    4 rows placed     but those that are placed already, or were removed after 3 (see ``track_removed``)

If 3 came before 2, a row committed in between would be in neither the slice nor the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_wheel.engine.state.lane import END, MAIN, Lane, Lanes
from celery_wheel.store.model import MAX_SEQ, Position, Row
from celery_wheel.timing import TimingWheel

#: The part of the budget that the lanes beside the main one share, while any of them is awake.
BESIDE = 0.25

#: Over its share, a lane is evicted down to this part of it, so that the sort is paid once in a quarter share.
KEEP = 0.75


@dataclass(slots=True, eq=False)
class Prefetch:
    """A slice that is being read."""

    token: int  #: of its reservation
    removed: set[int]  #: rows that are removed from the window while the slice is read


@dataclass(slots=True)
class Weight:
    """A number of rows, and their bytes."""

    count: float = 0
    bytes: float = 0

    def exceeds(self, share: Weight, part: float = 1.0) -> bool:
        return self.count > share.count * part or self.bytes > share.bytes * part


class Window:
    def __init__(self, wheel: TimingWheel, *, span_ms: int, max_count: int, max_bytes: int) -> None:
        self.wheel = wheel
        self.span_ms = span_ms
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.rows: dict[int, Row] = {}
        self.bytes = 0
        self._weights: dict[int, Weight] = {}  #: by the number of the lane; of lanes that have rows here
        self._trackers: list[set[int]] = []  #: see ``track_removed``
        self._removed: set[int] = set()  #: removed rows whose change may not be committed yet

    def place(self, lane: Lane, row: Row) -> None:
        """Place a committed row, unless it is beyond the horizon or in the window already."""
        if (row.due_ms, row.seq) > lane.horizon or row.id in self.rows:
            return
        self.rows[row.id] = row
        self.bytes += len(row.packed)
        load = self._weights.setdefault(lane.number, Weight())
        load.count += 1
        load.bytes += len(row.packed)
        if not self.wheel.schedule(row.id, row.due_ms):
            lane.push(row)

    def remove(self, row_id: int) -> None:
        """Remove a row that is being cancelled or moved; no slice begun before ``end_removal`` brings it back."""
        row = self.rows.pop(row_id, None)
        if row is not None:
            self.subtract(row.lane, [row])
            self.wheel.cancel(row_id)
        self._removed.add(row_id)
        for tracker in self._trackers:
            tracker.add(row_id)

    def is_being_removed(self, row_id: int) -> bool:
        return row_id in self._removed

    def end_removal(self, row_ids: Iterable[int]) -> None:
        """Note that the change of the rows is committed or rolled back: a later slice reads their new state."""
        self._removed.difference_update(row_ids)

    def track_removed(self) -> set[int]:
        """Return a set of the rows being removed, which grows until ``untrack_removed``: their copies may be stale."""
        tracker = set(self._removed)
        self._trackers.append(tracker)
        return tracker

    def untrack_removed(self, tracker: set[int]) -> None:
        self._trackers = [one for one in self._trackers if one is not tracker]

    def has(self, lane: Lane) -> bool:
        """Whether a row of the lane is in memory."""
        return lane.number in self._weights

    def has_more(self, lane: Lane, now_ms: int) -> bool:
        """Whether a row of the lane waits, in memory or, as far as memory shows, in the store."""
        if self.has(lane) or lane.has_open() or lane.horizon.due_ms <= now_ms:
            return True
        return lane.next_due_ms(self.rows) is not None

    def subtract(self, lane: int, rows: Sequence[Row]) -> None:
        """Subtract rows that are no longer in the window from its bytes and from the weight of their lane."""
        if not rows:
            return
        weight = sum([len(row.packed) for row in rows])
        self.bytes -= weight
        load = self._weights[lane]
        load.count -= len(rows)
        load.bytes -= weight
        if not load.count:
            del self._weights[lane]  # a closed lane is never opened again under its number

    def reap(self, lanes: Lanes, now_ms: int) -> None:
        """Take the rows that expired off the wheel and make them ready in their lanes."""
        rows: dict[Any, Row] = self.rows
        for timer in self.wheel.advance(now_ms):
            row = rows[timer.timer_id]
            lanes[row.lane].push(row)

    def evict(self, lanes: Lanes) -> None:
        """Evict the furthest rows of each lane that is over its share."""
        main, beside = self._share_of_main(lanes), self._share_beside(lanes)
        # At least one row stays, however large it is: it must remain publishable.
        over: dict[int, list[Row]] = {
            number: []
            for number, load in self._weights.items()
            if load.count > 1 and load.exceeds(main if number == MAIN else beside)
        }
        if over:
            # One pass, however many lanes there are: their shares shrink at the same time.
            for row in self.rows.values():
                if row.lane in over:
                    over[row.lane].append(row)
        for number, rows in over.items():
            load, share = self._weights[number], main if number == MAIN else beside
            for row in sorted(rows, key=lambda row: (-row.due_ms, -row.seq)):
                if load.count == 1 or not load.exceeds(share, KEEP):
                    break
                lanes[number].horizon = min(lanes[number].horizon, row.position.previous())
                del self.rows[row.id]
                self.subtract(number, [row])
                self.wheel.cancel(row.id)

    def _share_of_main(self, lanes: Lanes) -> Weight:
        part = 1.0 if lanes.are_alone else 1 - BESIDE
        return Weight(self.max_count * part, self.max_bytes * part)

    def _share_beside(self, lanes: Lanes) -> Weight:
        part = BESIDE / max(1, len(lanes.awake) - 1)
        return Weight(max(1.0, self.max_count * part), self.max_bytes * part)

    def wanted(self, lane: Lane, lanes: Lanes, now_ms: int) -> Position | None:
        """Return up to where more of the lane should be read now; None while it has enough rows in memory. Beside the
        main lane nearly all rows are due: such a lane is read to its end, so that it can become idle."""
        beside = lane.number != MAIN
        share = self._share_beside(lanes) if beside else self._share_of_main(lanes)
        load = self._weights.get(lane.number)
        if load is not None and load.exceeds(share, 0.5):
            return None
        if lane.horizon.due_ms >= now_ms + self.span_ms // 2 and (not beside or lane.horizon == END):
            return None
        return END if beside else Position(now_ms + self.span_ms, MAX_SEQ)

    def begin_prefetch(self, lane: Lane, after: Position, upto: Position) -> Prefetch | None:
        """Move the horizon and reserve the slice; None if the horizon is no longer at ``after``."""
        if lane.horizon != after:
            return None
        lane.horizon = upto
        return Prefetch(lane.reserve(after.next()), self.track_removed())

    def place_prefetched(self, lane: Lane, prefetch: Prefetch, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.id not in prefetch.removed:
                self.place(lane, row)

    def finish_prefetch(self, lane: Lane, prefetch: Prefetch) -> None:
        """Release the reservation of a slice whose rows are placed."""
        self.untrack_removed(prefetch.removed)
        lane.release(prefetch.token)
