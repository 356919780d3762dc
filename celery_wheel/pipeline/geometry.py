"""What a wheel of some tick and size does to a timer, by arithmetic: no wheel is turned. Integers and the wheel only.

A timer is made at ``created`` and due at ``due``. In ticks, c = floor(created / tick) and e = ceil(due / tick), as the
wheel rounds. With W buckets a level, level k has buckets of W^k ticks, and the wheel's rule "lowest level that reaches
it" says: past level k goes what has ``e // W^k - c // W^k >= W``. A bucket of level k begins at a multiple of W^k, and
what it holds is then placed by what is left, digit by digit of e in base W: a level whose digit is 0 is passed over. So

    cascades = how many k there are with  e // W^k - c // W^k >= W  and  e // W^k % W != 0

Tick 1, W 20, c 0, e 450::

    k 0   450 - 0 >= 20   digit 10   one cascade    level 1 → level 0, at 440
    k 1    22 - 0 >= 20   digit  2   one cascade    level 2 → level 1, at 400
    k 2     1 - 0 <  20   it stays: level 2 is where it is placed first

The first condition holds up to some k and for none after it. The count depends on nothing but c and e: timers do not
move each other. What leaves in the same tick as it was made (e <= c) is never placed, and cascades nowhere.

``turned`` asks the wheel itself, with all timers of a sample in one wheel; the job and the tests hold both equal.

Non-promises: a wheel that is turned in larger steps than from bucket to bucket takes out at once what is due by then,
and cascades less. ``levels`` is what the longest delay can need, wherever the wheel stands: a wheel may have one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celery_wheel.timing import TimingWheel


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A tick, and how many of them a level has."""

    tick_ms: int
    wheel_size: int

    def __str__(self) -> str:
        return f"{self.tick_ms} ms x {self.wheel_size}"

    def levels(self, longest_ms: int) -> int:
        """How many levels a delay can need: both ends may stand badly, which is a bucket more."""
        ticks, number = -(-longest_ms // self.tick_ms) + 1, 0
        while -(-ticks // self.wheel_size**number) >= self.wheel_size:
            number += 1
        return number + 1

    def buckets(self, longest_ms: int) -> int:
        """How many can be open at most."""
        return self.levels(longest_ms) * (self.wheel_size - 1)


@dataclass(frozen=True, slots=True)
class Sums:
    """Over some timers: how often they are placed lower, and how much later than asked they leave."""

    placed: int
    cascades: int
    rounding_ms: int


def cascades(created_ms: int, due_ms: int, shape: Shape) -> int:
    """How often one timer is placed anew before it leaves."""
    size = shape.wheel_size
    created, due = created_ms // shape.tick_ms, -(-due_ms // shape.tick_ms)
    count = 0
    while due - created >= size:
        count += due % size != 0
        created, due = created // size, due // size
    return count


def rounding_ms(due_ms: int, shape: Shape) -> int:
    return -due_ms % shape.tick_ms


def sums(pairs: Iterable[tuple[int, int]], shape: Shape) -> Sums:
    """By the closed form, of (created, due) in milliseconds."""
    placed = cascaded = rounded = 0
    for created_ms, due_ms in pairs:
        if -(-due_ms // shape.tick_ms) > created_ms // shape.tick_ms:
            placed += 1
            cascaded += cascades(created_ms, due_ms, shape)
            rounded += rounding_ms(due_ms, shape)
    return Sums(placed, cascaded, rounded)


def turned(pairs: Sequence[tuple[int, int]], shape: Shape) -> tuple[Sums, int]:
    """By a wheel that holds them all and is turned from bucket to bucket; and how many levels it came to have."""
    ordered = sorted(pairs)
    wheel = TimingWheel(shape.tick_ms, shape.wheel_size, start_ms=ordered[0][0] if ordered else 0)
    placed = cascaded = rounded = 0
    for timer_id, (created_ms, due_ms) in enumerate(ordered):
        more = _turn(wheel, created_ms)
        cascaded, rounded = cascaded + more[0], rounded + more[1]
        placed += wheel.schedule(timer_id, due_ms)
    more = _turn(wheel, None)
    return Sums(placed, cascaded + more[0], rounded + more[1]), len(wheel.levels())


def _turn(wheel: TimingWheel, until_ms: int | None) -> tuple[int, int]:
    """Turn it up to an instant, or until it is empty: how many were placed anew, and how much later timers left."""
    cascaded = rounded = 0
    while (at_ms := wheel.next_expiration_ms()) is not None and (until_ms is None or at_ms <= until_ms):
        beginning = {
            timer_id
            for level in wheel.levels()
            if level.number and at_ms % level.tick_ms == 0
            for bucket in level.buckets
            if bucket.expiration_ms == at_ms
            for timer_id in bucket.timer_ids()
        }
        left = wheel.advance(at_ms)
        cascaded += len(beginning - {timer.timer_id for timer in left})
        rounded += sum(at_ms - timer.due_at_ms for timer in left)
    if until_ms is not None:
        wheel.advance(until_ms)
    return cascaded, rounded
