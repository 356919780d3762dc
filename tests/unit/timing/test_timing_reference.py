"""The wheel against a literal transcription of its specification: equal after every random operation."""

from __future__ import annotations

import random

import pytest

from celery_wheel.timing import TimingWheel
from celery_wheel.timing.wheel import Contents
from tests.unit.timing.reference_wheel import ReferenceWheel


def picture(wheel: TimingWheel) -> list[object]:
    return [
        (
            level.number,
            level.tick_ms,
            level.interval_ms,
            level.current_time_ms,
            level.pending,
            [(b.index, b.expiration_ms, b.pending, set(b.timer_ids())) for b in level.buckets],
        )
        for level in wheel.levels()
    ]


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
            now = (
                next_ms
                if next_ms is not None and rng.random() < 0.4
                else now + rng.randrange(-tick, max(tick, reach // 8))
            )
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
