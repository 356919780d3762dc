"""No empty ticks: the tests count the wake-ups of a caller that follows ``next_expiration_ms``."""

from __future__ import annotations

import heapq
import random

import pytest

from celery_wheel.timing import TimingWheel

YEAR_MS = 365 * 86_400_000
START_MS = 1_767_225_600_000


def spread_over_a_year(wheel: TimingWheel, count: int) -> list[int]:
    rng = random.Random(11)
    dues = sorted(START_MS + rng.randrange(1, YEAR_MS) for _ in range(count))
    for due in dues:
        wheel.schedule(due, due)
    return dues


@pytest.mark.parametrize(("tick", "size"), [(1, 20), (1, 2), (10, 64), (1000, 60), (1, 512)])
def test_ten_timers_in_a_year_wake_at_most_once_for_each_level_they_pass(tick: int, size: int) -> None:
    wheel = TimingWheel(tick, size, START_MS)
    dues = spread_over_a_year(wheel, 10)
    passes = sum(level.pending * (level.number + 1) for level in wheel.levels())
    left: list[object] = []
    wakeups = 0
    while (expiration_ms := wheel.next_expiration_ms()) is not None:
        before = [level.pending for level in wheel.levels()]
        left += [timer.timer_id for timer in wheel.advance(expiration_ms)]
        wakeups += 1
        assert [level.pending for level in wheel.levels()] != before, "an empty tick"
    assert left == dues
    assert wakeups <= passes


def test_one_advance_over_a_year_takes_as_many_steps_as_there_are_buckets_with_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0

    def counted(queue: list[int]) -> int:
        nonlocal steps
        steps += 1
        return heapq.heappop(queue)

    monkeypatch.setattr("celery_wheel.timing.wheel.heappop", counted)
    wheel = TimingWheel(1, 20, START_MS)
    dues = spread_over_a_year(wheel, 10)
    assert [timer.timer_id for timer in wheel.advance(dues[-1] - 1)] == dues[:-1]
    assert steps <= len(wheel.levels()) * 10

    steps = 0
    wheel.advance(START_MS + 1_000 * YEAR_MS)
    assert steps <= len(wheel.levels())


def test_a_million_timers_of_one_bucket_are_one_wake_up() -> None:
    wheel = TimingWheel(tick_ms=1000, wheel_size=60)
    for number in range(10_000):
        wheel.schedule(number, 59_001 + number % 999)
    assert wheel.next_expiration_ms() == 60_000
    assert len(wheel._queue) == 1
    assert len(wheel.advance(60_000)) == 10_000
    assert wheel.next_expiration_ms() is None


def test_cancelled_timers_wake_no_thread() -> None:
    wheel = TimingWheel(1, 20, START_MS)
    dues = spread_over_a_year(wheel, 1_000)
    for due in dues[:-1]:
        wheel.cancel(due)
    wakeups = 0
    while (expiration_ms := wheel.next_expiration_ms()) is not None:
        wheel.advance(expiration_ms)
        wakeups += 1
    assert wakeups <= len(wheel.levels())
