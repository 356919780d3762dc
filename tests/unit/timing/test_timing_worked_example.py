"""The worked example, tick by tick: tick 1, size 20, start 0, timers due at 350, 446, 450, 455 and 473."""

from __future__ import annotations

from celery_wheel.timing import TimingWheel

# (level, bucket index, expiration, ids) after the instant at which it became so.
AT_0 = [(1, 17, 340, [350]), (2, 1, 400, [450, 446, 455, 473])]
AT_340 = [(0, 10, 350, [350]), (2, 1, 400, [450, 446, 455, 473])]
AT_350 = [(2, 1, 400, [450, 446, 455, 473])]
AT_400 = [(1, 2, 440, [450, 446, 455]), (1, 3, 460, [473])]
AT_440 = [(0, 6, 446, [446]), (0, 10, 450, [450]), (0, 15, 455, [455]), (1, 3, 460, [473])]
AT_446 = AT_440[1:]
AT_460 = [(0, 13, 473, [473])]

PICTURES = {0: AT_0, 340: AT_340, 350: AT_350, 400: AT_400, 440: AT_440, 446: AT_446}
PICTURES |= {450: AT_440[2:], 455: AT_440[3:], 460: AT_460, 473: []}
LEAVES_AT = {350, 446, 450, 455, 473}


def example() -> TimingWheel:
    wheel = TimingWheel(tick_ms=1, wheel_size=20, start_ms=0)
    for due_at_ms in (350, 450, 446, 455, 473):
        assert wheel.schedule(due_at_ms, due_at_ms)
    return wheel


def buckets(wheel: TimingWheel) -> list[object]:
    return [
        (level.number, bucket.index, bucket.expiration_ms, bucket.timer_ids())
        for level in wheel.levels()
        for bucket in level.buckets
    ]


def test_each_tick_of_the_worked_example_has_the_documented_buckets() -> None:
    wheel = example()
    expected: list[object] = list(AT_0)
    assert buckets(wheel) == expected
    for now in range(1, 500):
        left = [timer.timer_id for timer in wheel.advance(now)]
        expected = list(PICTURES.get(now, expected))
        assert left == ([now] if now in LEAVES_AT else []), now
        assert buckets(wheel) == expected, now
        assert [level.current_time_ms for level in wheel.levels()] == [now, now // 20 * 20, now // 400 * 400]
    assert len(wheel) == 0
    assert len(wheel.levels()) == 3


def test_following_the_next_expiration_visits_only_the_instants_at_which_something_happens() -> None:
    wheel = example()
    visited = []
    while (expiration_ms := wheel.next_expiration_ms()) is not None:
        visited.append(expiration_ms)
        wheel.advance(expiration_ms)
    assert visited == [340, 350, 400, 440, 446, 450, 455, 460, 473]


def test_one_long_advance_takes_the_whole_example_in_order() -> None:
    assert [timer.timer_id for timer in example().advance(10_000)] == [350, 446, 450, 455, 473]


def test_an_advance_into_the_middle_of_the_example_equals_single_ticks() -> None:
    wheel = example()
    assert [timer.timer_id for timer in wheel.advance(447)] == [350, 446]
    assert buckets(wheel) == AT_446
