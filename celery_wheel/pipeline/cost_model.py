"""The work that a timing wheel has with a timer, as a closed form over integers.

In ticks, a timer has c = floor(created / tick) and e = ceil(due / tick), as the wheel rounds. With W buckets a level,
level k has buckets of W^k ticks. A timer goes above level k where ``e // W^k - c // W^k >= W``; on its way down its
place is the digit k of e in base W, and a level whose digit is 0 is skipped. With e <= c it is never placed. So

    cascades = the number of k with  e // W^k - c // W^k >= W  and  e // W^k % W != 0

    tick 1, W 20, c 0, e 450    k 0   450 >= 20   digit 10   one cascade: level 1 → level 0, at 440
                                k 1    22 >= 20   digit  2   one cascade: level 2 → level 1, at 400
                                k 2     1 <  20              the timer is first placed on level 2

Non-promise: a wheel that advances over several buckets at once expires their timers directly, with fewer cascades.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celery_wheel.timing import TimingWheel


@dataclass(frozen=True, slots=True, order=True)
class WheelShape:
    tick_ms: int
    wheel_size: int

    def __str__(self) -> str:
        return f"{self.tick_ms} ms x {self.wheel_size}"

    def levels(self, longest_ms: int) -> int:
        """Return the most levels that a delay can need: one more where both of its ends lie within a bucket."""
        ticks, number = -(-longest_ms // self.tick_ms) + 1, 0
        while -(-ticks // self.wheel_size**number) >= self.wheel_size:
            number += 1
        return number + 1

    def buckets(self, longest_ms: int) -> int:
        """Return the greatest number of buckets that can be non-empty at once."""
        return self.levels(longest_ms) * (self.wheel_size - 1)


@dataclass(frozen=True, slots=True)
class WheelCost:
    placed: int
    cascades: int
    rounding_ms: int


def count_cascades(created_ms: int, due_ms: int, shape: WheelShape) -> int:
    size = shape.wheel_size
    created, due = created_ms // shape.tick_ms, -(-due_ms // shape.tick_ms)
    count = 0
    while due - created >= size:
        count += due % size != 0
        created, due = created // size, due // size
    return count


def compute_cost(pairs: Iterable[tuple[int, int]], shape: WheelShape) -> WheelCost:
    """Return the cost of timers (created, due), in milliseconds, by the closed form."""
    placed = cascades = rounding_ms = 0
    for created_ms, due_ms in pairs:
        if -(-due_ms // shape.tick_ms) > created_ms // shape.tick_ms:
            placed += 1
            cascades += count_cascades(created_ms, due_ms, shape)
            rounding_ms += -due_ms % shape.tick_ms
    return WheelCost(placed, cascades, rounding_ms)


def simulate_cost(pairs: Sequence[tuple[int, int]], shape: WheelShape) -> tuple[WheelCost, int]:
    """Return (cost, levels) of a wheel that holds all the timers and advances from bucket to bucket."""
    ordered = sorted(pairs)
    wheel = TimingWheel(shape.tick_ms, shape.wheel_size, start_ms=ordered[0][0] if ordered else 0)
    placed, advances = 0, []
    for timer_id, (created_ms, due_ms) in enumerate(ordered):
        advances.append(_advance(wheel, created_ms))
        placed += wheel.schedule(timer_id, due_ms)
    advances.append(_advance(wheel, None))
    cascades, rounding_ms = map(sum, zip(*advances, strict=True))
    return WheelCost(placed, cascades, rounding_ms), len(wheel.levels())


def _advance(wheel: TimingWheel, until_ms: int | None) -> tuple[int, int]:
    """Advance to an instant, or until the wheel is empty; returns (cascades, rounding in ms) on the way."""
    cascades = rounding_ms = 0
    while (at_ms := wheel.next_expiration_ms()) is not None and (until_ms is None or at_ms <= until_ms):
        coarse = {
            timer_id
            for level in wheel.levels()
            if level.number and at_ms % level.tick_ms == 0
            for bucket in level.buckets
            if bucket.expiration_ms == at_ms
            for timer_id in bucket.timer_ids()
        }
        expired = wheel.advance(at_ms)
        cascades += len(coarse - {timer.timer_id for timer in expired})
        rounding_ms += sum(at_ms - timer.due_at_ms for timer in expired)
    if until_ms is not None:
        wheel.advance(until_ms)
    return cascades, rounding_ms
