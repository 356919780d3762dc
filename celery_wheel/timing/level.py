"""Views of one level of the wheel and of its buckets.

Level n+1's tick is level n's interval. With tick 1 and size 20, at time 347::

    level   tick_ms  interval_ms  current_time_ms   accepts timers due in     its buckets hold
      0           1           20              347         348 ...        366   one instant
      1          20          400              340         367 ...        739   20 ms: 17 was 340 ... 359, it is empty
      2         400        8,000                0         740 ...      7,999   400 ms: 1 is 400 ... 799

The expiration of a bucket is its timers' due time, rounded down to the level's tick; no expiration is used again. Its
index on the wheel is ``expiration // tick_ms``, modulo the size. Only *open* buckets are kept, by expiration. A bucket
is open from its first timer until the wheel pops its expiration from the expiry queue, also while it is empty because
its timers were cancelled: the queue has exactly one entry for each open bucket.

Promises:
  - At most ``wheel_size - 1`` buckets are open, so that within a level index and expiration are one to one:
    every open expiration lies in (current_time_ms, current_time_ms + interval_ms).
  - ``pending`` is exact at every moment: it is the length of the buckets, not a counter.

Not promised:
  - A copy: a Level or Bucket is a view of the wheel. Read it before the wheel changes.
  - Constant time: ``Level.pending`` and ``Level.buckets`` walk the open buckets, O(wheel_size).

Source: Varghese & Lauck 1987, scheme 7; ``TimerTaskList`` of Kafka's org.apache.kafka.server.util.timer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

Contents: TypeAlias = dict[Hashable, int]
"""Due times of a bucket's timers by id. Timers of one due time are in the order of scheduling."""


class Bucket:
    """A view of one non-empty bucket.

    Attributes:
        index: place on the wheel, 0 to ``wheel_size - 1``.
        expiration_ms: the instant at which the bucket begins and is popped from the wheel.
    """

    __slots__ = ("_contents", "expiration_ms", "index")

    def __init__(self, index: int, expiration_ms: int, contents: Contents) -> None:
        self.index = index
        self.expiration_ms = expiration_ms
        self._contents = contents

    @property
    def pending(self) -> int:
        """Number of timers in the bucket."""
        return len(self._contents)

    def timer_ids(self) -> list[Hashable]:
        """Return the ids of its timers. Timers of one due time are in the order of scheduling."""
        return list(self._contents)

    def __repr__(self) -> str:
        return f"Bucket(index={self.index}, expiration_ms={self.expiration_ms}, pending={self.pending})"


class Level:
    """A view of one level of the wheel.

    Attributes:
        number: 0 is the finest.
        tick_ms: duration of one bucket.
        interval_ms: duration of one lap: ``tick_ms * wheel_size``, the next level's tick.
        current_time_ms: the wheel's time, rounded down to a multiple of ``tick_ms``.
    """

    __slots__ = ("current_time_ms", "interval_ms", "number", "opened", "tick_ms", "wheel_size")

    def __init__(self, number: int, tick_ms: int, wheel_size: int, now_ms: int, opened: dict[int, Contents]) -> None:
        self.number = number
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.interval_ms = tick_ms * wheel_size
        self.current_time_ms = now_ms - now_ms % tick_ms
        # The wheel's own: expiration → contents. Bucket objects are made when ``buckets`` is read.
        self.opened = opened

    @property
    def pending(self) -> int:
        """Number of timers in the level."""
        return sum(map(len, self.opened.values()))

    @property
    def buckets(self) -> list[Bucket]:
        """The non-empty buckets in order of index."""
        found = [
            Bucket(expiration_ms // self.tick_ms % self.wheel_size, expiration_ms, contents)
            for expiration_ms, contents in self.opened.items()
            if contents
        ]
        return sorted(found, key=lambda bucket: bucket.index)

    def __repr__(self) -> str:
        return (
            f"Level(number={self.number}, tick_ms={self.tick_ms}, interval_ms={self.interval_ms}, "
            f"current_time_ms={self.current_time_ms}, pending={self.pending})"
        )
