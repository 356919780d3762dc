"""Clocks, waits after failures and their lines of log; the package imports the standard library only."""

import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import celery_wheel
from celery_wheel.errors import BrokerError, StoreError
from celery_wheel.timing import Backoff, ManualClock, RetryLog, SystemClock
from celery_wheel.timing.retry import LOG_INTERVAL_S
from tests.kit.patience import patience
from tests.unit.timing.conftest import WatchedClock


class RecordingCondition(threading.Condition):
    """Records the timeouts of its waits, in seconds, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        return False


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(timeout=patience(10))
    return not thread.is_alive()


@pytest.fixture
def no_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.timing.clock._PHASE_NS", 0)


#: Prints how often the difference of the two times is another than mostly, wherever both are of one millisecond.
COMPARE = """
from collections import Counter
from celery_wheel.timing import SystemClock
one, found = SystemClock(), Counter()
for _ in range(20_000):
    monotonic_ms, now_ms = one.monotonic_ms(), one.now_ms()
    if one.monotonic_ms() == monotonic_ms:
        found[now_ms - monotonic_ms] += 1
print(found.total() - max(found.values()))
"""


def test_both_times_of_the_system_clock_begin_their_milliseconds_together() -> None:
    """One that is the other plus whole milliseconds is neither ahead of it nor a part of a millisecond behind it. A new
    process, since a step of the wall clock parts them."""
    command = [sys.executable, "-c", COMPARE]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience(60))
    assert int(answer.stdout) < 20


@pytest.mark.usefixtures("no_phase")
def test_the_system_clock_rounds_both_times_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_225_600_123_999_999)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 5_999_999)
    assert SystemClock().now_ms() == 1_767_225_600_123
    assert SystemClock().monotonic_ms() == 5


def test_the_system_clock_is_this_machines() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now_ms() <= time.time_ns() // 1_000_000


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this platform has no CLOCK_BOOTTIME")
@pytest.mark.usefixtures("no_phase")
def test_the_system_clock_counts_the_time_in_which_the_machine_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_MONOTONIC: 5_000_000_000, time.CLOCK_BOOTTIME: 3_605_000_000_000}
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    assert SystemClock().monotonic_ms() == 3_605_000
    condition = RecordingCondition()
    SystemClock().wait_until(condition, 3_605_000)
    assert condition.timeouts == [], "it was waited for while the machine was suspended"


@pytest.mark.usefixtures("no_phase")
def test_the_system_clock_waits_for_the_rest_to_the_nanosecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 5_250_000)
    condition = RecordingCondition()
    SystemClock().wait_until(condition, 1_005)
    assert condition.timeouts == [0.99975]


def test_the_system_clock_does_not_wait_for_an_instant_that_has_passed() -> None:
    condition = RecordingCondition()
    SystemClock().wait_until(condition, SystemClock().monotonic_ms())
    SystemClock().wait_until(condition, -5)
    assert condition.timeouts == []


def test_the_system_clock_comes_back_within_a_second_where_there_is_an_instant_to_wait_for() -> None:
    """The wait of a condition does not count the time in which the machine was suspended."""
    condition = RecordingCondition()
    SystemClock().wait_until(condition, None)
    SystemClock().wait_until(condition, 10**400)
    assert condition.timeouts == [None, 1.0]


def test_a_manual_clock_begins_in_2026_by_default() -> None:
    assert time.gmtime(ManualClock().now_ms() // 1_000)[:6] == (2026, 1, 1, 0, 0, 0)


def test_a_manual_clock_stands_still_but_for_advance_and_a_step_which_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(start_ms=1_000)
    assert [(clock.now_ms(), clock.monotonic_ms()) for _ in range(3)] == [(1_000, 0)] * 3
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)
    clock.step(-600)
    assert (clock.now_ms(), clock.monotonic_ms()) == (650, 250)
    clock.step(5_000)
    clock.advance(0)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5_650, 250)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match=r"^ms must be at least 0, got -1$"):
        ManualClock().advance(-1)


@pytest.mark.parametrize("move", [ManualClock.advance, ManualClock.step, ManualClock.__init__])
def test_a_manual_clock_moves_by_whole_milliseconds(move: Callable[[ManualClock, float], None]) -> None:
    with pytest.raises(TypeError, match=r"must be an integer, got 0\.5$"):
        move(ManualClock(), 0.5)


def test_a_waiter_is_woken_by_the_advance_that_reaches_its_instant() -> None:
    clock = WatchedClock()
    condition = threading.Condition()
    seen: list[int] = []

    def wait() -> None:
        with condition:
            clock.wait_until(condition, 100)
            seen.append(clock.monotonic_ms())

    waiter = in_thread(wait)
    assert clock.wait_for_waiter() == 100
    clock.advance(99)
    clock.step(1_000_000)
    clock.advance(1)
    assert ended(waiter)
    assert seen == [100]


def test_an_instant_that_was_reached_before_the_wait_began_is_not_waited_for() -> None:
    clock = ManualClock()
    clock.advance(100)
    condition = threading.Condition()
    with condition:
        clock.wait_until(condition, 100)
    assert clock.monotonic_ms() == 100


@pytest.mark.parametrize("until", [None, 100])
def test_a_waiter_is_woken_by_a_notification(until: int | None) -> None:
    clock = WatchedClock()
    condition = threading.Condition()

    def wait() -> None:
        with condition:
            clock.wait_until(condition, until)

    waiter = in_thread(wait)
    clock.wait_for_waiter()
    with condition:
        condition.notify_all()
    assert ended(waiter)
    clock.advance(1_000)


def test_a_clock_moved_by_many_threads_adds_up() -> None:
    clock = ManualClock(start_ms=0)
    threads = [in_thread(lambda: [clock.advance(1) for _ in range(500)]) for _ in range(8)]
    assert all(ended(thread) for thread in threads)
    assert (clock.now_ms(), clock.monotonic_ms()) == (4_000, 4_000)


def test_the_wait_doubles_up_to_its_bound_and_begins_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 5.0)
    assert [backoff.failed() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.succeeded()
    assert backoff.failed() == 0.5


@pytest.mark.slow
def test_ten_million_failures_are_as_one() -> None:
    backoff = Backoff(0.1, 2.0, random.Random(1))
    for _ in range(5):
        backoff.failed()
    assert {1 <= backoff.failed() <= 2 for _ in range(10_000_000)} == {True}
    backoff.succeeded()
    assert 0.05 <= backoff.failed() <= 0.1


@pytest.mark.parametrize(("first_s", "most_s"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_a_backoff_needs_a_wait_and_a_bound(first_s: float, most_s: float) -> None:
    with pytest.raises(ValueError, match="first_s must be above 0"):
        Backoff(first_s, most_s)


def test_a_cause_is_logged_once_a_minute_with_a_count_of_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = RetryLog(logging.getLogger("test"), lambda: now_s[0])
    with caplog.at_level(logging.WARNING):
        for second in range(150):
            now_s[0] = float(second)
            log.write(logging.WARNING, "lost", "no answer (%s)", "refused", extra={"action": "lost"})
            if second == 70:
                log.write(logging.ERROR, "other", "another cause", extra={"action": "other"})
    assert [one.getMessage() for one in caplog.records] == [
        "no answer (refused)",
        "no answer (refused) (59 more times since it was last logged)",
        "another cause",
        "no answer (refused) (59 more times since it was last logged)",
    ]


def test_errors_of_a_class_are_one_cause_unless_they_name_shards(caplog: pytest.LogCaptureFixture) -> None:
    log = RetryLog(logging.getLogger("test"), lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        for shard in range(3):
            extra = {"action": "waits", "shard": shard}
            log.write_error(StoreError("the store is away"), extra=extra)
            log.write_error(BrokerError("the broker is away"), extra=extra)
            log.write_error(StoreError(f"shard {shard} is refused"), extra=extra)
    assert [one.getMessage() for one in caplog.records] == [
        "the store is away",
        "the broker is away",
        "shard 0 is refused",
        "shard 1 is refused",
        "shard 2 is refused",
    ]


def test_a_cause_that_is_over_is_forgotten() -> None:
    now_s = [0.0]
    log = RetryLog(logging.getLogger("test"), lambda: now_s[0])
    for number in range(1_000):
        now_s[0] += LOG_INTERVAL_S
        log.write(logging.DEBUG, f"cause {number}", "gone", extra={"action": "gone"})
    assert len(log._logged) == 1


ROOT = Path(celery_wheel.__file__).parents[1]
LOOK = """
import sys
before = set(sys.modules)
import celery_wheel.timing
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(roots - set(sys.stdlib_module_names) - {"celery_wheel"}))
print(sorted(name for name in sys.modules if name.startswith("celery_wheel.") and "timing" not in name))
"""


def test_importing_the_timing_package_imports_nothing_but_the_standard_library() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=patience(60)
    )
    assert answer.stdout.split("\n")[:2] == ["[]", "[]"], answer.stdout


def test_the_wheel_has_no_clock_and_no_thread() -> None:
    script = (
        "import sys, types\n"
        "package = types.ModuleType('celery_wheel.timing')\n"
        "import celery_wheel\n"
        "package.__path__ = [celery_wheel.__path__[0] + '/timing']\n"
        "sys.modules['celery_wheel.timing'] = package\n"
        "import celery_wheel.timing.wheel\n"
        "print(sorted({'threading', 'asyncio', 'logging', 'datetime'} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, timeout=patience(60), cwd=ROOT
    )
    assert answer.stdout.strip() == "[]"
