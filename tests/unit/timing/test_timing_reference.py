"""The wheel against a literal transcription of its specification: equal after every random operation.

The reference wheel has arrays of buckets, and visits every bucket in every step, one timer at a time: no expiry queue,
no bisection, no shortcut.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest

from celery_wheel.timing import TimingWheel
from celery_wheel.timing.wheel import Contents


@dataclass
class Waiting:
    timer_id: Hashable
    due_at_ms: int
    due_ms: int
    order: int


@dataclass
class Slot:
    expiration_ms: int = -1
    timers: list[Waiting] = field(default_factory=list)


class Tier:
    def __init__(self, tick_ms: int, wheel_size: int, current_time_ms: int) -> None:
        self.tick_ms = tick_ms
        self.interval_ms = tick_ms * wheel_size
        self.current_time_ms = current_time_ms - current_time_ms % tick_ms
        self.slots = [Slot() for _ in range(wheel_size)]


class ReferenceWheel:
    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        self.wheel_size = wheel_size
        self.tiers = [Tier(tick_ms, wheel_size, start_ms)]
        self.orders = 0

    def schedule(self, timer_id: Hashable, due_at_ms: int) -> bool:
        self.cancel(timer_id)
        tick_ms = self.tiers[0].tick_ms
        quotient, rest = divmod(due_at_ms, tick_ms)
        due_ms = (quotient + 1 if rest else quotient) * tick_ms
        self.orders += 1
        return self.place(Waiting(timer_id, due_at_ms, due_ms, self.orders))

    def place(self, timer: Waiting) -> bool:
        if timer.due_ms <= self.tiers[0].current_time_ms:
            return False
        number = 0
        while not timer.due_ms < self.tiers[number].current_time_ms + self.tiers[number].interval_ms:
            number += 1
            if number == len(self.tiers):
                below = self.tiers[-1]
                self.tiers.append(Tier(below.interval_ms, self.wheel_size, below.current_time_ms))
        tier = self.tiers[number]
        slot = tier.slots[(timer.due_ms // tier.tick_ms) % self.wheel_size]
        expiration_ms = (timer.due_ms // tier.tick_ms) * tier.tick_ms
        assert not slot.timers or slot.expiration_ms == expiration_ms, "two laps in one bucket"
        slot.expiration_ms = expiration_ms
        slot.timers.append(timer)
        return True

    def cancel(self, timer_id: Hashable) -> bool:
        for slot in self.filled():
            for timer in slot.timers:
                if timer.timer_id == timer_id:
                    slot.timers.remove(timer)
                    return True
        return False

    def filled(self) -> list[Slot]:
        return [slot for tier in self.tiers for slot in tier.slots if slot.timers]

    def advance(self, now_ms: int) -> list[tuple[int, Hashable]]:
        target_ms = now_ms - now_ms % self.tiers[0].tick_ms
        if target_ms <= self.tiers[0].current_time_ms:
            return []
        left: list[Waiting] = []
        while any(slot.expiration_ms <= target_ms for slot in self.filled()):
            smallest_ms = min(slot.expiration_ms for slot in self.filled())
            self.turn_to(smallest_ms)
            detached: list[Waiting] = []
            for slot in self.filled():
                if slot.expiration_ms == smallest_ms:
                    detached += slot.timers
                    slot.timers = []
            left += [timer for timer in detached if not self.place(timer)]
        self.turn_to(target_ms)
        left.sort(key=lambda timer: (timer.due_at_ms, timer.order))
        return [(timer.due_at_ms, timer.timer_id) for timer in left]

    def turn_to(self, now_ms: int) -> None:
        for tier in self.tiers:
            if not now_ms >= tier.current_time_ms + tier.tick_ms:
                break
            tier.current_time_ms = now_ms - now_ms % tier.tick_ms

    def next_expiration_ms(self) -> int | None:
        return min((slot.expiration_ms for slot in self.filled()), default=None)

    def picture(self) -> list[object]:
        found: list[object] = []
        for number, tier in enumerate(self.tiers):
            filled = [(index, slot) for index, slot in enumerate(tier.slots) if slot.timers]
            slots = [(index, slot.expiration_ms, {timer.timer_id for timer in slot.timers}) for index, slot in filled]
            count = sum(len(slot.timers) for slot in tier.slots)
            found.append((number, tier.tick_ms, tier.interval_ms, tier.current_time_ms, count, slots))
        return found


def picture(wheel: TimingWheel) -> list[object]:
    found: list[object] = []
    for level in wheel.levels():
        buckets = [(one.index, one.expiration_ms, set(one.timer_ids())) for one in level.buckets]
        found.append((level.number, level.tick_ms, level.interval_ms, level.current_time_ms, level.pending, buckets))
    return found


def compare(wheel: TimingWheel, tick: int, size: int, start: int) -> None:
    rng = random.Random(f"{tick} {size} {start}")
    reference = ReferenceWheel(tick, size, start)
    now = due_at = start
    for step in range(500):
        reach = tick * size ** rng.choice([1, 1, 2, 2, 3])
        kind = rng.random()
        if kind < 0.6:
            timer_id = rng.randrange(150)
            # Every other timer has the due time of the timer before it, so that the order of scheduling counts.
            due_at = due_at if rng.random() < 0.5 else now + rng.randrange(-tick, reach)
            assert wheel.schedule(timer_id, due_at) == reference.schedule(timer_id, due_at), step
        elif kind < 0.75:
            timer_id = rng.randrange(150)
            assert (wheel.cancel(timer_id) is not None) == reference.cancel(timer_id), step
        else:
            next_ms = wheel.next_expiration_ms()
            follows = next_ms is not None and rng.random() < 0.4
            now = next_ms if follows else now + rng.randrange(-tick, max(tick, reach // 8))
            left = [(timer.due_at_ms, timer.timer_id) for timer in wheel.advance(now)]
            assert left == reference.advance(now), step
            now = max(now, wheel.current_time_ms)
        assert picture(wheel) == reference.picture(), step
        assert wheel.next_expiration_ms() == reference.next_expiration_ms(), step


@pytest.mark.parametrize("size", [2, 3, 20, 60, 64])
@pytest.mark.parametrize("tick", [1, 10, 1000])
@pytest.mark.parametrize("start", [0, 1_767_225_601_234, -987_654])
def test_every_operation_agrees_with_the_reference_wheel(tick: int, size: int, start: int) -> None:
    compare(TimingWheel(tick, size, start), tick, size, start)


class CascadeGoesLast(TimingWheel):
    """The timers of a coarse bucket go behind those that were scheduled later, on the level below."""

    __slots__ = ()

    def _spread(self, contents: Contents, level: int, target_ms: int, due: Contents) -> None:
        before = {expiration_ms: dict(later) for expiration_ms, later in self._opened[level].items()}
        super()._spread(contents, level, target_ms, due)
        for expiration_ms, later in before.items():
            self._opened[level][expiration_ms] = later | self._opened[level][expiration_ms]


@pytest.mark.parametrize("tick", [1, 10, 1000])
def test_the_comparison_fails_when_the_order_of_scheduling_is_lost(tick: int) -> None:
    with pytest.raises(AssertionError):
        compare(CascadeGoesLast(tick, 3), tick, 3, 0)
