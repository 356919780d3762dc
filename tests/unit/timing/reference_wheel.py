"""A slow reference wheel: arrays of buckets, and every bucket is visited in every step.

No expiry queue, no bisection, no shortcut, one timer at a time. The real wheel must agree with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


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
        return [
            (
                number,
                tier.tick_ms,
                tier.interval_ms,
                tier.current_time_ms,
                sum(len(slot.timers) for slot in tier.slots),
                [
                    (index, slot.expiration_ms, len(slot.timers), {timer.timer_id for timer in slot.timers})
                    for index, slot in enumerate(tier.slots)
                    if slot.timers
                ],
            )
            for number, tier in enumerate(self.tiers)
        ]
