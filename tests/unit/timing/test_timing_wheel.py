"""The wheel: each call, the place of each timer by table, its worked example, and the wake-ups of its caller."""

import gc
import heapq
import itertools
import random
import weakref

import pytest

from celery_wheel.timing import Timer, TimingWheel


def ids(timers: list[Timer]) -> list[object]:
    return [timer.timer_id for timer in timers]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tick_ms": 0}, "tick_ms must be at least 1, got 0"),
        ({"tick_ms": -5}, "tick_ms must be at least 1, got -5"),
        ({"wheel_size": 1}, "wheel_size must be at least 2, got 1"),
    ],
)
def test_a_wheel_that_cannot_turn_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        TimingWheel(**arguments)


@pytest.mark.parametrize("name", ["tick_ms", "wheel_size", "start_ms"])
@pytest.mark.parametrize("value", [1.5, "20", None])
def test_arguments_of_a_wheel_are_integers(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be an integer, got {value!r}$"):
        TimingWheel(**{name: value})


def test_an_instant_that_is_not_an_integer_is_refused_and_changes_nothing() -> None:
    wheel = TimingWheel()
    wheel.schedule("a", 50, "payload")
    with pytest.raises(TypeError, match=r"^due_at_ms must be an integer, got 50\.5$"):
        wheel.schedule("a", 50.5)
    with pytest.raises(TypeError, match=r"^now_ms must be an integer, got None$"):
        wheel.advance(None)
    with pytest.raises(TypeError, match="unhashable"):
        wheel.schedule([], 50)
    assert wheel.get("a") == Timer(50, "a", "payload")
    assert len(wheel) == 1


def test_a_value_with_index_counts_as_an_integer() -> None:
    class Instant:
        def __index__(self) -> int:
            return 50

    wheel = TimingWheel()
    assert wheel.schedule("a", Instant()) is True
    (timer,) = wheel.advance(Instant())
    assert type(timer.due_at_ms) is int


def test_payloads_need_not_be_comparable_hashable_or_different() -> None:
    wheel = TimingWheel()
    for number in range(50):
        wheel.schedule(number, 1_000, {"no": "order"})
    assert ids(wheel.advance(1_000)) == list(range(50))


def test_schedule_and_cancel_without_end_do_not_grow_the_expiry_queue() -> None:
    wheel = TimingWheel(tick_ms=1, wheel_size=20)
    for number in range(10_000):
        wheel.schedule("same", 1 + number * 7 % 7_999)
        if number % 3 == 0:
            wheel.cancel("same")
    assert len(wheel._queue) <= len(wheel.levels()) * 19
    assert sum(len(level.opened) for level in wheel.levels()) == len(wheel._queue)


def test_levels_stay_when_they_are_empty() -> None:
    wheel = TimingWheel(tick_ms=1, wheel_size=20)
    wheel.schedule("a", 500)
    wheel.cancel("a")
    assert [level.number for level in wheel.levels()] == [0, 1, 2]
    wheel.advance(1_000_000)
    assert [level.current_time_ms for level in wheel.levels()] == [1_000_000, 1_000_000, 1_000_000]


def test_a_dropped_wheel_frees_its_payloads_without_the_garbage_collector() -> None:
    class Payload:
        pass

    payload = Payload()
    freed = weakref.ref(payload)
    wheel = TimingWheel()
    wheel.schedule("a", 5_000, payload)
    gc.disable()
    try:
        del payload, wheel
        assert freed() is None
    finally:
        gc.enable()


def test_reprs_name_level_bucket_and_due_time() -> None:
    wheel = TimingWheel(tick_ms=1, wheel_size=20)
    wheel.schedule("a", 350, 1)
    assert repr(wheel) == "TimingWheel(tick_ms=1, wheel_size=20, current_time_ms=0, pending=1, levels=2)"
    level = wheel.levels()[1]
    assert repr(level) == "Level(number=1, tick_ms=20, wheel_size=20, current_time_ms=0)"
    assert repr(level.buckets[0]) == "Bucket(index=17, expiration_ms=340, contents={'a': 350})"
    assert repr(wheel.get("a")) == "Timer(due_at_ms=350, timer_id='a', payload=1)"


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


#: A wheel that starts at 0: size, due at → level, bucket index, expiration; all instants in ticks.
FROM_0 = [
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
    for size, due_at, level, index, expiration in FROM_0
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


def test_a_timer_a_thousand_years_away_has_a_level() -> None:
    year_ms = 365 * 86_400_000
    wheel = TimingWheel(tick_ms=1, wheel_size=2, start_ms=1_767_225_600_000)
    wheel.schedule("far", 1_767_225_600_000 + 1_000 * year_ms)
    assert wheel.advance(1_767_225_600_000 + 1_000 * year_ms - 1) == []
    assert [timer.timer_id for timer in wheel.advance(1_767_225_600_000 + 1_000 * year_ms)] == ["far"]
