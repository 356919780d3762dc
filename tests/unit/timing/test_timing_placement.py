"""The place of a timer by table: level, bucket index and expiration, for wheel sizes 2 ... 512 and ticks 1 ... 1,000.

The rows that start at 0 can be checked by eye: the last instant that level 0 reaches and the first that it does not,
the same of level 1, and one further out. The others begin in the middle of the laps of several levels. All were read
off levels that are laid out as lists of bucket boundaries (``laid_out``), and not computed by the wheel's formulas.
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
    *(
        (tick, size, 0, tick * due_at, level, index, tick * expiration)
        for size, due_at, level, index, expiration in AT_0
        for tick in (1, 10, 1000)
    ),
    # tick, size, now, due at → level, bucket index, expiration
    (1, 2, 0, 18, 4, 1, 16),
    (1, 2, 6, 7, 0, 1, 7),
    (1, 2, 14, 18, 2, 0, 16),
    (1, 2, 4, 6, 1, 1, 6),
    (10, 2, 0, 171, 4, 1, 160),
    (10, 2, 18, 40, 2, 1, 40),
    (10, 2, 16, 70, 2, 1, 40),
    (10, 2, 150, 188, 2, 0, 160),
    (1000, 2, 0, 17_001, 4, 1, 16_000),
    (1000, 2, 813, 5003, 2, 1, 4000),
    (1000, 2, 14_066, 15_202, 1, 0, 16_000),
    (1000, 2, 8859, 14_122, 2, 1, 12_000),
    (1, 3, 0, 35, 3, 1, 27),
    (1, 3, 12, 19, 1, 0, 18),
    (1, 3, 7, 17, 2, 1, 9),
    (1, 3, 14, 22, 2, 2, 18),
    (10, 3, 0, 346, 3, 1, 270),
    (10, 3, 161, 228, 1, 1, 210),
    (10, 3, 154, 290, 2, 0, 270),
    (10, 3, 125, 291, 2, 0, 270),
    (1000, 3, 0, 34_501, 3, 1, 27_000),
    (1000, 3, 32_448, 38_261, 2, 1, 36_000),
    (1000, 3, 4798, 6039, 1, 2, 6000),
    (1000, 3, 22_417, 23_728, 0, 0, 24_000),
    (1, 20, 0, 1251, 2, 3, 1200),
    (1, 20, 1369, 1674, 1, 3, 1660),
    (1, 20, 697, 5165, 2, 12, 4800),
    (1, 20, 935, 1002, 1, 10, 1000),
    (10, 20, 0, 12_501, 2, 3, 12_000),
    (10, 20, 11_421, 23_373, 2, 5, 20_000),
    (10, 20, 11_494, 91_246, 3, 1, 80_000),
    (10, 20, 13_467, 68_033, 2, 17, 68_000),
    (1000, 20, 0, 1_250_001, 2, 3, 1_200_000),
    (1000, 20, 727_723, 729_462, 0, 10, 730_000),
    (1000, 20, 1_281_192, 1_286_028, 0, 7, 1_287_000),
    (1000, 20, 602_789, 752_610, 1, 17, 740_000),
    (1, 60, 0, 10_951, 2, 3, 10_800),
    (1, 60, 14_278, 14_668, 1, 4, 14_640),
    (1, 60, 6581, 7779, 1, 9, 7740),
    (1, 60, 14_156, 15_356, 1, 15, 15_300),
    (10, 60, 0, 109_501, 2, 3, 108_000),
    (10, 60, 99_731, 99_977, 0, 38, 99_980),
    (10, 60, 39_662, 55_553, 1, 32, 55_200),
    (10, 60, 47_801, 48_080, 0, 8, 48_080),
    (1000, 60, 0, 10_950_001, 2, 3, 10_800_000),
    (1000, 60, 7_028_756, 7_064_790, 0, 45, 7_065_000),
    (1000, 60, 11_584_562, 13_806_689, 1, 50, 13_800_000),
    (1000, 60, 13_085_717, 16_000_255, 1, 26, 15_960_000),
    (1, 64, 0, 12_449, 2, 3, 12_288),
    (1, 64, 6537, 73_747, 2, 18, 73_728),
    (1, 64, 6561, 6565, 0, 37, 6565),
    (1, 64, 7220, 55_887, 2, 13, 53_248),
    (10, 64, 0, 124_481, 2, 3, 122_880),
    (10, 64, 13_783, 13_897, 0, 46, 13_900),
    (10, 64, 140_672, 140_785, 0, 63, 140_790),
    (10, 64, 18_433, 18_655, 0, 10, 18_660),
    (1000, 64, 0, 12_448_001, 2, 3, 12_288_000),
    (1000, 64, 10_643_627, 61_365_462, 2, 14, 57_344_000),
    (1000, 64, 6_109_649, 6_688_886, 1, 40, 6_656_000),
    (1000, 64, 7_818_006, 7_850_489, 0, 43, 7_851_000),
    (1, 512, 0, 787_713, 2, 3, 786_432),
    (1, 512, 151_119, 3_287_500, 2, 12, 3_145_728),
    (1, 512, 277_618, 1_894_007, 2, 7, 1_835_008),
    (1, 512, 24_218, 274_025, 1, 23, 273_920),
    (10, 512, 0, 7_877_121, 2, 3, 7_864_320),
    (10, 512, 2_459_583, 2_578_127, 1, 503, 2_575_360),
    (10, 512, 1_526_904, 1_529_053, 0, 330, 1_529_060),
    (10, 512, 5_967_592, 44_932_986, 2, 17, 44_564_480),
    (1000, 512, 0, 787_712_001, 2, 3, 786_432_000),
    (1000, 512, 353_975_089, 354_309_767, 0, 6, 354_310_000),
    (1000, 512, 555_810_351, 556_069_710, 0, 38, 556_070_000),
    (1000, 512, 848_378_594, 2_223_668_020, 2, 8, 2_097_152_000),
]

WORKED_EXAMPLE = [(350, 1, 17, 340), (450, 2, 1, 400), (446, 2, 1, 400), (455, 2, 1, 400), (473, 2, 1, 400)]


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


@pytest.mark.parametrize(("tick", "size", "now", "due_at", "level", "index", "expiration"), PLACES)
def test_a_timer_goes_to_the_level_and_bucket_of_the_table(
    tick: int, size: int, now: int, due_at: int, level: int, index: int, expiration: int
) -> None:
    wheel = TimingWheel(tick_ms=tick, wheel_size=size, start_ms=now)

    assert wheel.schedule("timer", due_at) is True

    assert place_of(wheel, "timer") == (level, index, expiration)
    assert wheel.next_expiration_ms() == expiration
    assert len(wheel.levels()) == level + 1


@pytest.mark.parametrize(("tick", "size", "now", "due_at", "level", "index", "expiration"), PLACES)
def test_a_wheel_that_was_advanced_places_like_one_that_began_there(
    tick: int, size: int, now: int, due_at: int, level: int, index: int, expiration: int
) -> None:
    wheel = TimingWheel(tick_ms=tick, wheel_size=size)
    wheel.schedule("far away", 10 * due_at + 10 * tick)
    for part in (7, 3, 2, 1):
        wheel.advance(now // part)

    wheel.schedule("timer", due_at)

    assert place_of(wheel, "timer") == (level, index, expiration)


@pytest.mark.parametrize("size", [2, 3, 20, 60, 64, 512])
@pytest.mark.parametrize("tick", [1, 7, 10, 1000])
def test_random_instants_lie_where_the_laid_out_levels_have_them(tick: int, size: int) -> None:
    rng = random.Random(f"{tick} {size}")
    for _ in range(40):
        now = rng.randrange(tick * size * 4)
        due_at = now + tick + rng.randrange(tick * size ** rng.choice([1, 2]))
        wheel = TimingWheel(tick, size, now)
        wheel.schedule("timer", due_at)
        assert place_of(wheel, "timer") == laid_out(tick, size, now, due_at)


@pytest.mark.parametrize(("due_at", "level", "index", "expiration"), WORKED_EXAMPLE)
def test_the_timers_of_the_worked_example_lie_in_the_documented_buckets(
    due_at: int, level: int, index: int, expiration: int
) -> None:
    wheel = TimingWheel(tick_ms=1, wheel_size=20, start_ms=0)
    wheel.schedule(due_at, due_at)
    assert place_of(wheel, due_at) == (level, index, expiration)


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
