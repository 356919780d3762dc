"""The hierarchical timing wheel: integers only, without a clock, a thread or a callback.

Tick 1, size 20, start 0. A timer goes to the lowest level that reaches it; a level's tick is the interval below::

    level 0   tick   1 ms   0 1 2 3 ... 19                           reaches to 20 ms
    level 1   tick  20 ms   0 20 40 ... 340 ... 380                  reaches to 400 ms       made by the first timer
    level 2   tick 400 ms   0 400 800 ... 7600                       reaches to 8,000 ms       that needs it

The worked example, a timer due at 450 scheduled at 0::

    at   0   450 → level 2, bucket 1 (400)
    at 400   450 has 50 left: it cascades → level 1, bucket 2 (440)
    at 440   450 cascades → level 0, bucket 10 (450); at 450 it expires

The expiration of a bucket is its timers' due time, rounded down to the level's tick; its index is ``expiration //
tick_ms``, modulo the size. A bucket is *open* from its first timer until the wheel pops its expiration from the expiry
queue, a heap, also while it is empty: the queue has exactly one entry for each open bucket.

Promises:
  - Never early: a due time is rounded up to the tick, ``advance`` rounds its "now" down. At most one tick late.
  - ``schedule``, ``cancel``, move and ``get`` are O(1) in the number of timers (opening a bucket, once a lap, is
    O(log buckets) and choosing the level O(log levels)). Counts are exact at every moment.
  - ``advance`` costs time for the timers that expire or cascade, not for the time that passes. It returns timers in
    order of (due_at_ms, order of scheduling); an earlier instant does nothing.

The caller holds a lock. The order of scheduling is nowhere written down. Timers of one due time lie on a coarser level
the earlier they were scheduled, because the reach of a level only grows. So what cascades into a bucket goes before
what the bucket holds, buckets of one expiration are emptied from the coarsest down, and a stable sort does the rest. No
lap can be mistaken for another: the open expirations of a level are less than a lap apart.

Source: Varghese & Lauck 1987, scheme 7; ``TimingWheel`` of Kafka's org.apache.kafka.server.util.timer, whose rule
"due now" is one tick looser (it rounds down and may be a tick early).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from celery_wheel.timing.arguments import integer

_by_due_time = itemgetter(0)


class Timer(NamedTuple):
    """One timer as the wheel returns it, a value: it does not change when the wheel does."""

    due_at_ms: int  #: exactly as it was scheduled, not rounded to a tick
    timer_id: Hashable  #: unique within its wheel
    payload: Any


Contents: TypeAlias = dict[Hashable, int]
"""Due times of a bucket's timers by id. Timers of one due time are in the order of scheduling."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A view of one non-empty bucket."""

    index: int  #: place on the wheel, 0 to ``wheel_size - 1``
    expiration_ms: int  #: the instant at which the bucket begins and is popped from the wheel
    contents: Contents

    @property
    def pending(self) -> int:
        return len(self.contents)

    def timer_ids(self) -> list[Hashable]:
        return list(self.contents)


@dataclass(frozen=True, slots=True)
class Level:
    """A view of one level of the wheel."""

    number: int  #: 0 is the finest
    tick_ms: int  #: duration of one bucket
    wheel_size: int
    current_time_ms: int  #: the wheel's time, rounded down to a multiple of ``tick_ms``
    opened: dict[int, Contents] = field(repr=False)

    @property
    def interval_ms(self) -> int:
        """The duration of one lap, which is the next level's tick."""
        return self.tick_ms * self.wheel_size

    @property
    def pending(self) -> int:
        return sum(map(len, self.opened.values()))

    @property
    def buckets(self) -> list[Bucket]:
        """The non-empty buckets in order of index."""
        places = ((at_ms // self.tick_ms % self.wheel_size, at_ms) for at_ms, timers in self.opened.items() if timers)
        return [Bucket(index, at_ms, self.opened[at_ms]) for index, at_ms in sorted(places)]


class TimingWheel:
    """Timers by id in buckets by time.

    Args:
        tick_ms: the finest step, at least 1 ms.
        wheel_size: buckets a level, at least 2.
        start_ms: first current time; rounded down to the tick.
    """

    __slots__ = (
        "_dues",
        "_lasts",
        "_now_ms",
        "_opened",
        "_payloads",
        "_queue",
        "_tick_ms",
        "_ticks",
        "_turned_ms",
        "_wheel_size",
    )

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        self._tick_ms = integer("tick_ms", tick_ms, at_least=1)
        self._wheel_size = integer("wheel_size", wheel_size, at_least=2)
        start_ms = integer("start_ms", start_ms)
        self._now_ms = self._turned_ms = start_ms - start_ms % self._tick_ms
        # The due time of every timer by id, in the order of scheduling.
        self._dues: dict[Hashable, int] = {}
        self._payloads: dict[Hashable, Any] = {}
        # The expiration of every open bucket, once for each level that has one.
        self._queue: list[int] = []
        # For each level its tick, its open buckets by expiration, and the last instant that it reaches, which increases
        # with the level, so bisection finds the level of an instant.
        self._ticks: list[int] = []
        self._opened: list[dict[int, Contents]] = []
        self._lasts: list[int] = []
        self._add_level(self._tick_ms)

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
        return self._now_ms

    def schedule(self, timer_id: Hashable, due_at_ms: int, payload: Any = None) -> bool:
        """Place a timer; a timer of that id in the wheel is moved and gets a new place in the order, and the payload.

        Returns False if the timer is already due. Then it is not placed, and a timer of that id is removed. A TypeError
        (``due_at_ms`` is not an integer, or ``timer_id`` not hashable) leaves the wheel unchanged.
        """
        if type(due_at_ms) is not int:
            due_at_ms = integer("due_at_ms", due_at_ms)
        if timer_id in self._dues:
            self.cancel(timer_id)
        if due_at_ms <= self._now_ms:
            return False
        if self._turned_ms != self._now_ms:
            self._turn()
        level = bisect_left(self._lasts, due_at_ms)
        if level == len(self._lasts):
            while self._lasts[-1] < due_at_ms:
                self._add_level(self._ticks[-1] * self._wheel_size)
            level = len(self._lasts) - 1
        # Up to the finest tick, and from there down to the level's: its tick is a multiple of the finest.
        expiration_ms = due_at_ms + self._tick_ms - 1
        expiration_ms -= expiration_ms % self._ticks[level]
        opened = self._opened[level]
        contents = opened.get(expiration_ms)
        if contents is None:
            # Once a lap, however many timers follow: only opening a bucket makes an entry in the expiry queue.
            opened[expiration_ms] = {timer_id: due_at_ms}
            heappush(self._queue, expiration_ms)
        else:
            contents[timer_id] = due_at_ms
        if payload is not None:
            self._payloads[timer_id] = payload
        self._dues[timer_id] = due_at_ms
        return True

    def cancel(self, timer_id: Hashable) -> Timer | None:
        """Remove a timer and return it; None if the wheel does not have it."""
        due_at_ms = self._dues.pop(timer_id, None)
        if due_at_ms is None:
            return None
        contents = self._contents_of(timer_id, due_at_ms)
        del contents[timer_id]
        if not contents:
            # The bucket stays open, but a dict that held a million timers would keep their 40 MB until it closes.
            contents.clear()
        return Timer(due_at_ms, timer_id, self._payloads.pop(timer_id, None))

    def get(self, timer_id: Hashable) -> Timer | None:
        """Return the timer of this id; None if the wheel does not have it."""
        due_at_ms = self._dues.get(timer_id)
        if due_at_ms is None:
            return None
        return Timer(due_at_ms, timer_id, self._payloads.get(timer_id))

    def advance(self, now_ms: int) -> list[Timer]:
        """Move time to ``now_ms``, rounded down to the tick, and remove the timers that are due.

        Returns them in order of (due_at_ms, order of scheduling). An instant less than a tick past the current time
        changes nothing.
        """
        if type(now_ms) is not int:
            now_ms = integer("now_ms", now_ms)
        target_ms = now_ms - now_ms % self._tick_ms
        if target_ms <= self._now_ms:
            return []
        expired: list[Timer] = []
        queue, finest, dues, payloads = self._queue, self._opened[0], self._dues, self._payloads
        new = tuple.__new__  # half the time of calling Timer
        lap_ms = self._tick_ms * self._wheel_size
        while queue and queue[0] <= target_ms:
            expiration_ms = heappop(queue)
            # Coarse buckets begin only where a lap of level 0 does.
            due = finest.pop(expiration_ms, None) if expiration_ms % lap_ms else self._cascade(expiration_ms, target_ms)
            if due:
                for timer_id, due_at_ms in due.items():
                    del dues[timer_id]
                    payload = payloads.pop(timer_id, None) if payloads else None
                    expired.append(new(Timer, (due_at_ms, timer_id, payload)))
        self._now_ms = target_ms
        if len(expired) > 1:
            expired.sort(key=_by_due_time)
        return expired

    def next_expiration_ms(self) -> int | None:
        """Return when the earliest non-empty bucket begins, the next useful instant for ``advance``; None if empty.

        The next timer may expire later: a coarse bucket only cascades when it begins. O(1) amortised: each emptied
        bucket is dropped once.
        """
        queue = self._queue
        while queue:
            expiration_ms = queue[0]
            for opened in self._opened:
                if opened.get(expiration_ms):
                    return expiration_ms
            heappop(queue)
            for opened in self._opened:
                opened.pop(expiration_ms, None)
        return None

    def timers(self) -> Iterator[Timer]:
        """Yield all timers in the order of scheduling; the wheel must not be changed meanwhile."""
        for timer_id, due_at_ms in self._dues.items():
            yield Timer(due_at_ms, timer_id, self._payloads.get(timer_id))

    def levels(self) -> list[Level]:
        """Return the levels, finest first: views, to be read before the wheel changes."""
        return [
            Level(number, tick_ms, self._wheel_size, self._now_ms - self._now_ms % tick_ms, opened)
            for number, (tick_ms, opened) in enumerate(zip(self._ticks, self._opened, strict=True))
        ]

    def __len__(self) -> int:
        return len(self._dues)

    def __contains__(self, timer_id: Hashable) -> bool:
        return timer_id in self._dues

    def __repr__(self) -> str:
        return (
            f"TimingWheel(tick_ms={self._tick_ms}, wheel_size={self._wheel_size}, "
            f"current_time_ms={self.current_time_ms}, pending={len(self)}, levels={len(self._ticks)})"
        )

    def _contents_of(self, timer_id: Hashable, due_at_ms: int) -> Contents:
        """Return the contents of a timer's bucket: on the lowest level that reaches it, or a coarser one."""
        if self._turned_ms != self._now_ms:
            self._turn()
        level = bisect_left(self._lasts, due_at_ms)
        padded_ms = due_at_ms + self._tick_ms - 1
        while True:
            contents = self._opened[level].get(padded_ms - padded_ms % self._ticks[level])
            if contents is not None and timer_id in contents:
                return contents
            level += 1

    def _cascade(self, expiration_ms: int, target_ms: int) -> Contents:
        """Empty the buckets that begin at an instant, from the coarsest down, each into the level below.

        Returns their timers that are due by the target, which skip the levels in between.
        """
        due: Contents = {}
        for level in range(len(self._ticks) - 1, -1, -1):
            contents = self._opened[level].pop(expiration_ms, None)
            if not contents:
                continue
            if expiration_ms + self._ticks[level] - self._tick_ms <= target_ms:
                # The whole bucket is due by the target (on level 0 always): no due time needs to be compared.
                due.update(contents)
            else:
                self._spread(contents, level - 1, target_ms, due)
        return due

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        """Spread the timers of a bucket of the next level over a level, except those that are due by the target."""
        padding_ms, tick_ms = self._tick_ms - 1, self._ticks[level]
        spread: defaultdict[int, Contents] = defaultdict(dict)
        for timer_id, due_at_ms in contents.items():
            if due_at_ms <= target_ms:
                due[timer_id] = due_at_ms
            else:
                expiration_ms = due_at_ms + padding_ms
                spread[expiration_ms - expiration_ms % tick_ms][timer_id] = due_at_ms
        opened = self._opened[level]
        for expiration_ms, earlier in spread.items():
            later = opened.get(expiration_ms)
            if later is None:
                heappush(self._queue, expiration_ms)
            else:
                # The level did not reach these instants when the timers that cascade were scheduled, so they go first.
                earlier.update(later)
        opened.update(spread)

    def _turn(self) -> None:
        """Turn the levels to the current time, from the finest up to the first whose tick is not over."""
        self._turned_ms = self._now_ms
        for level, tick_ms in enumerate(self._ticks):
            last_ms = self._last_ms(tick_ms)
            if last_ms == self._lasts[level]:
                break
            self._lasts[level] = last_ms

    def _last_ms(self, tick_ms: int) -> int:
        """Return the last instant, a multiple of the finest tick, that a level of this tick reaches."""
        return self._now_ms - self._now_ms % tick_ms + tick_ms * self._wheel_size - self._tick_ms

    def _add_level(self, tick_ms: int) -> None:
        self._ticks.append(tick_ms)
        self._opened.append({})
        self._lasts.append(self._last_ms(tick_ms))
