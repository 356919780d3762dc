"""The hierarchical timing wheel: integers only, without a clock, a thread or a callback.

Tick 1, size 20, start 0. A timer goes to the lowest level that reaches it; a level's tick is the interval below::

    level 0   tick   1 ms   0 1 2 3 ... 19                           reaches to 20 ms
    level 1   tick  20 ms   0 20 40 ... 340 ... 380                  reaches to 400 ms       made by the first timer
    level 2   tick 400 ms   0 400 800 ... 7600                       reaches to 8,000 ms       that needs it
                                │
    expiry queue: a heap of (expiration, level), one for each open bucket. Time goes from entry to entry.

The worked example, timers due at 350 and 450 scheduled at 0::

    at   0   350 → level 1, bucket 17 (340)     450 → level 2, bucket 1 (400)
    at 340   350 cascades → level 0, bucket 10 (350)
    at 350   350 expires
    at 400   450 has 50 left: it cascades → level 1, bucket 2 (440)
    at 440   450 cascades → level 0, bucket 10 (450)
    at 450   450 expires

Promises:
  - Never early: a due time is rounded up to the tick, ``advance`` rounds its "now" down. At most one tick late.
  - ``schedule``, ``cancel``, move and ``get`` are O(1) in the number of timers (opening a bucket, once a lap, is
    O(log buckets) and choosing the level O(log levels), both in C). Counts are exact at every moment.
  - ``advance`` costs time for the timers that expire or cascade, not for the time that passes: a year without timers
    is one step.
  - One ``advance`` returns timers in order of (due_at_ms, order of scheduling).
  - The expiry queue holds at most ``levels * (wheel_size - 1)`` entries, however often buckets are emptied and filled.

Not promised:
  - Thread safety: the caller holds a lock (:class:`~celery_wheel.timing.system_timer.SystemTimer` does).
  - Time going back: ``advance`` to an earlier instant does nothing.
  - Order between one ``advance`` and the next for timers scheduled in between.

No lap can be mistaken for another: all current times are level 0's, rounded down to the level's tick. A level accepts
only timers at least one of its ticks past its current time and less than an interval, and a bucket that expires is
popped before the current time passes it. So the open expirations of a level are less than a lap apart.

Source: Varghese & Lauck 1987, scheme 7; ``TimingWheel`` of Kafka's org.apache.kafka.server.util.timer, whose rule
"due now" is one tick looser (it rounds down and may be a tick early).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Any

from celery_wheel.timing.arguments import integer
from celery_wheel.timing.level import Contents, Level
from celery_wheel.timing.timer import Record, Timer


class TimingWheel:
    """Timers by id in buckets by time.

    Args:
        tick_ms: the finest step, at least 1 ms.
        wheel_size: buckets a level, at least 2.
        start_ms: first current time; rounded down to the tick.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: ``tick_ms`` or ``wheel_size`` is too small.
    """

    __slots__ = ("_index", "_levels", "_order", "_queue", "_reaches", "_tick_ms", "_wheel_size")

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        self._tick_ms = integer("tick_ms", tick_ms, at_least=1)
        self._wheel_size = integer("wheel_size", wheel_size, at_least=2)
        self._order = 0
        # The contents of the bucket that holds a timer, by the timer's id.
        self._index: dict[Hashable, Contents] = {}
        # (expiration, level number) of every open bucket.
        self._queue: list[tuple[int, int]] = []
        self._levels: list[Level] = []
        # For each level the first instant beyond it. It increases with the level, so bisection finds the level.
        self._reaches: list[int] = []
        self._add_level(self._tick_ms, integer("start_ms", start_ms))

    @property
    def tick_ms(self) -> int:
        """Duration of the finest step."""
        return self._tick_ms

    @property
    def wheel_size(self) -> int:
        """Number of buckets a level."""
        return self._wheel_size

    @property
    def current_time_ms(self) -> int:
        """The instant up to which every timer has expired: level 0's current time."""
        return self._levels[0].current_time_ms

    def schedule(self, timer_id: Hashable, due_at_ms: int, payload: Any = None) -> bool:
        """Place a timer; a timer of that id in the wheel is moved and gets a new place in the order.

        Args:
            timer_id: unique within the wheel.
            due_at_ms: the instant before which the timer must not expire; any integer.
            payload: returned with the timer. Moving replaces it too.

        Returns:
            False if the timer is already due. Then it is not placed, and a timer of that id is removed.

        Raises:
            TypeError: ``due_at_ms`` is not an integer, or ``timer_id`` not hashable; the wheel is unchanged.
        """
        if type(due_at_ms) is not int:
            due_at_ms = integer("due_at_ms", due_at_ms)
        if timer_id in self._index:
            self.cancel(timer_id)
        due_ms = due_at_ms + -due_at_ms % self._tick_ms
        if due_ms <= self._levels[0].current_time_ms:
            return False
        self._order = order = self._order + 1
        self._place((due_at_ms, order, timer_id, payload), due_ms)
        return True

    def cancel(self, timer_id: Hashable) -> Timer | None:
        """Remove a timer and return it; None if the wheel does not have it."""
        contents = self._index.pop(timer_id, None)
        if contents is None:
            return None
        record = contents.pop(timer_id)
        if not contents:
            # The bucket stays open, but a dict that held a million timers would keep their 40 MB until it closes.
            contents.clear()
        return Timer._make(record)

    def get(self, timer_id: Hashable) -> Timer | None:
        """Return the timer of this id; None if the wheel does not have it."""
        contents = self._index.get(timer_id)
        return None if contents is None else Timer._make(contents[timer_id])

    def advance(self, now_ms: int) -> list[Timer]:
        """Move time to ``now_ms``, rounded down to the tick, and remove the timers that are due.

        Args:
            now_ms: an instant; the call does nothing if it is less than a tick past the current time.

        Returns:
            The expired timers, in order of (due_at_ms, order of scheduling).

        Raises:
            TypeError: ``now_ms`` is not an integer; the wheel is unchanged.
        """
        if type(now_ms) is not int:
            now_ms = integer("now_ms", now_ms)
        target_ms = now_ms - now_ms % self._tick_ms
        if target_ms <= self._levels[0].current_time_ms:
            return []
        expired: list[Record] = []
        queue = self._queue
        while queue and queue[0][0] <= target_ms:
            expiration_ms, number = heappop(queue)
            level = self._levels[number]
            contents = level.opened.pop(expiration_ms // level.tick_ms)
            if not contents:
                continue
            if expiration_ms + level.tick_ms - self._tick_ms <= target_ms:
                # The whole bucket is due by the target (on level 0 always): no due time needs to be compared.
                expired += contents.values()
                for timer_id in contents:
                    del self._index[timer_id]
            else:
                self._turn_to(expiration_ms)
                self._cascade(contents, target_ms, expired)
        self._turn_to(target_ms)
        expired.sort()
        return list(map(Timer._make, expired))

    def next_expiration_ms(self) -> int | None:
        """Return when the earliest non-empty bucket begins, the next useful instant for ``advance``; None if empty.

        The next timer may expire later: a coarse bucket only cascades when it begins. O(1) amortised: each emptied
        bucket is dropped once.
        """
        queue = self._queue
        while queue:
            expiration_ms, number = queue[0]
            level = self._levels[number]
            if level.opened[expiration_ms // level.tick_ms]:
                return expiration_ms
            del level.opened[expiration_ms // level.tick_ms]
            heappop(queue)
        return None

    def timers(self) -> Iterator[Timer]:
        """Yield all timers in the order of scheduling; the wheel must not be changed meanwhile."""
        # A move removes an id from the index and inserts it anew, a cascade does not: the index has the order needed.
        for timer_id, contents in self._index.items():
            yield Timer._make(contents[timer_id])

    def levels(self) -> list[Level]:
        """Return the levels, finest first: live views, to be read before the wheel changes."""
        return list(self._levels)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, timer_id: Hashable) -> bool:
        return timer_id in self._index

    def __repr__(self) -> str:
        return (
            f"TimingWheel(tick_ms={self._tick_ms}, wheel_size={self._wheel_size}, "
            f"current_time_ms={self.current_time_ms}, pending={len(self)}, levels={len(self._levels)})"
        )

    def _place(self, record: Record, due_ms: int) -> None:
        """Put a record that is not yet due into the bucket of the lowest level that reaches it."""
        number = bisect_right(self._reaches, due_ms)
        if number == len(self._levels):
            number = self._add_levels(due_ms)
        level = self._levels[number]
        bucket = due_ms // level.tick_ms
        contents = level.opened.get(bucket)
        if contents is None:
            # Once a lap, however many timers follow: only this makes an entry in the expiry queue.
            level.opened[bucket] = contents = {}
            heappush(self._queue, (bucket * level.tick_ms, number))
        timer_id = record[2]
        contents[timer_id] = record
        self._index[timer_id] = contents

    def _cascade(self, contents: Contents, target_ms: int, expired: list[Record]) -> None:
        """Empty a bucket that has begun: timers due by ``target_ms`` expire, the other timers cascade.

        A timer that is due by the target expires in this ``advance``, so it skips the levels in between; the sort at
        the end gives it its place. The other timers are placed as of this bucket's beginning.
        """
        tick_ms = self._tick_ms
        for timer_id, record in contents.items():
            due_ms = record[0] + -record[0] % tick_ms
            if due_ms <= target_ms:
                del self._index[timer_id]
                expired.append(record)
            else:
                self._place(record, due_ms)

    def _turn_to(self, now_ms: int) -> None:
        """Turn the levels to an instant, from the finest up to the first whose tick is not over."""
        for level in self._levels:
            if now_ms < level.current_time_ms + level.tick_ms:
                break
            level.current_time_ms = now_ms - now_ms % level.tick_ms
            self._reaches[level.number] = level.current_time_ms + level.interval_ms

    def _add_levels(self, due_ms: int) -> int:
        """Add coarser levels, one at a time, until one reaches ``due_ms``; return its number."""
        while self._reaches[-1] <= due_ms:
            below = self._levels[-1]
            self._add_level(below.interval_ms, below.current_time_ms)
        return len(self._levels) - 1

    def _add_level(self, tick_ms: int, start_ms: int) -> None:
        level = Level(len(self._levels), tick_ms, self._wheel_size, start_ms)
        self._levels.append(level)
        self._reaches.append(level.current_time_ms + level.interval_ms)
