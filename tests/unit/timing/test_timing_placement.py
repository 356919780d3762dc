"""The place of a timer by table: level, bucket index and expiration, for wheel sizes 2 ... 512 and ticks 1 ... 1,000.

The rows of the table start at 0 and can be checked by eye: the last instant that level 0 reaches and the first that it
does not, and the same of level 1. The others begin in the middle of the laps of several levels, and are read off levels
that are laid out as lists of bucket boundaries (``laid_out``), not computed by the wheel's formulas.
"""

from __future__ import annotations

import itertools
import random

import pytest

from celery_wheel.timing import TimingWheel

#: A wheel that starts at 0: size, due at → level, bucket index, expiration; all instants in ticks.
AT_0 = [
    (2, 1, 0, 1, 1),
    (2, 2, 1, 1, 2),
    (2, 3, 1, 1, 2),
    (2, 4, 2, 1, 4),
    (3, 1, 0, 1, 1),
    (3, 2, 0, 2, 2),
    (3, 3, 1, 1, 3),
    (3, 8, 1, 2, 6),
    (3, 9, 2, 1, 9),
    (20, 1, 0, 1, 1),
    (20, 19, 0, 19, 19),
    (20, 20, 1, 1, 20),
    (20, 399, 1, 19, 380),
    (20, 400, 2, 1, 400),
    (60, 1, 0, 1, 1),
    (60, 59, 0, 59, 59),
    (60, 60, 1, 1, 60),
    (60, 3599, 1, 59, 3540),
    (60, 3600, 2, 1, 3600),
    (64, 1, 0, 1, 1),
    (64, 63, 0, 63, 63),
    (64, 64, 1, 1, 64),
    (64, 4095, 1, 63, 4032),
    (64, 4096, 2, 1, 4096),
    (512, 1, 0, 1, 1),
    (512, 511, 0, 511, 511),
    (512, 512, 1, 1, 512),
    (512, 262_143, 1, 511, 261_632),
    (512, 262_144, 2, 1, 262_144),
]
PLACES = [
    (tick, size, tick * due_at, level, index, tick * expiration)
    for size, due_at, level, index, expiration in AT_0
    for tick in (1, 10, 1000)
]


def place_of(wheel: TimingWheel, timer_id: object) -> tuple[int, int, int]:
    """Return level, bucket index and expiration of the only bucket that holds a timer."""
    (place,) = (
        (level.number, bucket.index, bucket.expiration_ms)
        for level in wheel.levels()
        for bucket in level.buckets
        if timer_id in bucket.timer_ids()
    )
    return place


def laid_out(tick: int, size: int, now: int, due_at: int) -> tuple[int, int, int]:
    """Return the same by one lap of each level as a list of boundaries: the timer lies between two of them."""
    due = next(instant for instant in range(due_at, due_at + tick) if instant % tick == 0)
    hand = next(instant for instant in range(now, now - tick, -1) if instant % tick == 0)
    level = 0
    step = tick
    while True:
        while hand % step:
            hand -= tick
        lap = [hand + nth * step for nth in range(size + 1)]
        for begin, end in itertools.pairwise(lap):
            if begin <= due < end:
                # Counting from the beginning of time: 0, 1 ... size - 1, 0, 1 ...
                return level, len(range(0, begin, step)) % size, begin
        level += 1
        step = lap[-1] - lap[0]


@pytest.mark.parametrize(("tick", "size", "due_at", "level", "index", "expiration"), PLACES)
def test_a_timer_goes_to_the_level_and_bucket_of_the_table(
    tick: int, size: int, due_at: int, level: int, index: int, expiration: int
) -> None:
    wheel = TimingWheel(tick_ms=tick, wheel_size=size)

    assert wheel.schedule("timer", due_at) is True

    assert place_of(wheel, "timer") == (level, index, expiration)
    assert wheel.next_expiration_ms() == expiration
    assert len(wheel.levels()) == level + 1


@pytest.mark.parametrize("size", [2, 3, 20, 60, 64, 512])
@pytest.mark.parametrize("tick", [1, 7, 10, 1000])
def test_random_instants_lie_where_the_laid_out_levels_have_them(tick: int, size: int) -> None:
    """A wheel that was advanced places a timer like a wheel that began there."""
    rng = random.Random(f"{tick} {size}")
    for _ in range(40):
        now = rng.randrange(tick * size * 4)
        due_at = now + tick + rng.randrange(tick * size ** rng.choice([1, 2] if size > 20 else [1, 2, 3, 4]))
        begun, advanced = TimingWheel(tick, size, now), TimingWheel(tick, size)
        advanced.schedule("far away", 10 * due_at + 10 * tick)
        for part in (7, 3, 2, 1):
            advanced.advance(now // part)
        for wheel in (begun, advanced):
            assert wheel.schedule("timer", due_at) is True
            assert place_of(wheel, "timer") == laid_out(tick, size, now, due_at)


def test_a_due_time_is_rounded_up_with_the_finest_tick_on_every_level() -> None:
    # 399,991 rounds up to 400,000: one level and one bucket further than 399,990, and out of level 1's reach.
    wheel = TimingWheel(tick_ms=1000, wheel_size=20)
    wheel.schedule("below", 399_000)
    wheel.schedule("above", 399_001)
    assert place_of(wheel, "below") == (1, 19, 380_000)
    assert place_of(wheel, "above") == (2, 1, 400_000)


def test_levels_are_made_one_at_a_time_and_each_begins_at_a_multiple_of_its_tick() -> None:
    wheel = TimingWheel(tick_ms=10, wheel_size=3, start_ms=12_345)
    wheel.schedule("far", 12_345 + 700)
    assert [(level.number, level.tick_ms, level.interval_ms, level.current_time_ms) for level in wheel.levels()] == [
        (0, 10, 30, 12_340),
        (1, 30, 90, 12_330),
        (2, 90, 270, 12_330),
        (3, 270, 810, 12_150),
        (4, 810, 2430, 12_150),
    ]


def test_instants_before_the_epoch_lie_on_the_same_grid() -> None:
    wheel = TimingWheel(tick_ms=10, wheel_size=20, start_ms=-1_005)
    wheel.schedule("timer", -701)
    assert wheel.levels()[0].current_time_ms == -1_010
    assert place_of(wheel, "timer") == (1, 16, -800)
    assert [timer.timer_id for timer in wheel.advance(-700)] == ["timer"]


def test_a_timer_a_thousand_years_away_has_a_level() -> None:
    year_ms = 365 * 86_400_000
    wheel = TimingWheel(tick_ms=1, wheel_size=2, start_ms=1_767_225_600_000)
    wheel.schedule("far", 1_767_225_600_000 + 1_000 * year_ms)
    assert wheel.advance(1_767_225_600_000 + 1_000 * year_ms - 1) == []
    assert [timer.timer_id for timer in wheel.advance(1_767_225_600_000 + 1_000 * year_ms)] == ["far"]
