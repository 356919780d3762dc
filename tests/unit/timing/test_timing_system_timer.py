"""The timer with a clock and a lock, and its reaper. Tests move the clock, and wait for threads without sleeping."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from celery_wheel.timing import ManualClock, Reaper, SystemClock, SystemTimer, system_timer
from tests.kit.patience import patience
from tests.unit.timing.conftest import START, WatchedClock

DAY_MS = 86_400_000


class Advancing:
    """A thread in ``advance_clock``, and its result."""

    def __init__(self, timer: SystemTimer, timeout_ms: int | None) -> None:
        self.answers: list[int] = []
        self._thread = threading.Thread(
            target=lambda: self.answers.append(timer.advance_clock(timeout_ms)), daemon=True
        )
        self._thread.start()

    def answer(self) -> int:
        self._thread.join(timeout=patience(10))
        assert self.answers, "it still waits"
        return self.answers[0]


def test_a_callback_runs_when_its_instant_is_reached_and_not_before(clock: WatchedClock, timer: SystemTimer) -> None:
    ran: list[str] = []
    assert timer.add("a", START + 100, lambda: ran.append("a")) is True
    clock.advance(99)
    assert timer.advance_clock(0) == 0
    assert (ran, timer.size()) == ([], 1)
    clock.advance(1)
    assert timer.advance_clock(0) == 1
    assert (ran, timer.size()) == (["a"], 0)


def test_callbacks_run_in_order_of_due_time_and_adding(clock: WatchedClock, timer: SystemTimer) -> None:
    ran: list[str] = []
    for name, due in (("c", 300), ("a", 5), ("b1", 100), ("b2", 100), ("d", 299_999)):
        timer.add(name, START + due, lambda name=name: ran.append(name))
    clock.advance(DAY_MS)
    assert timer.advance_clock(0) == 5
    assert ran == ["a", "b1", "b2", "c", "d"]


def test_a_timer_that_is_already_due_runs_at_once_in_the_thread_that_adds_it(
    clock: WatchedClock, timer: SystemTimer
) -> None:
    ran: list[threading.Thread] = []
    clock.advance(500)
    for due in (START - 1, START, START + 499, START + 500):
        assert timer.add("a", due, lambda: ran.append(threading.current_thread())) is False
    assert ran == [threading.current_thread()] * 4
    assert timer.size() == 0


def test_adding_an_id_again_replaces_the_pending_timer(clock: WatchedClock, timer: SystemTimer) -> None:
    ran: list[str] = []
    timer.add("a", START + 100, lambda: ran.append("old"))
    timer.add("a", START + 200, lambda: ran.append("new"))
    timer.add("b", START + 100, lambda: ran.append("never"))
    timer.add("b", START, lambda: ran.append("at once"))
    clock.advance(1_000)
    assert timer.advance_clock(0) == 1
    assert ran == ["at once", "new"]


def test_a_cancelled_timer_does_not_run_and_one_that_ran_cannot_be_cancelled(
    clock: WatchedClock, timer: SystemTimer
) -> None:
    ran: list[str] = []
    timer.add("a", START + 100, lambda: ran.append("a"))
    timer.add("b", START + 100, lambda: ran.append("b"))
    cancelled = timer.cancel("a")
    assert cancelled is not None
    assert (cancelled.timer_id, cancelled.due_at_ms) == ("a", START + 100)
    assert timer.cancel("a") is None
    clock.advance(100)
    assert timer.advance_clock(0) == 1
    assert timer.cancel("b") is None
    assert ran == ["b"]


@pytest.mark.parametrize(("due_ms", "until_ms", "ran"), [(15, 15, 1), (900, 500, 0)])
def test_advance_clock_waits_for_the_next_bucket_or_the_end_of_its_time(
    clock: WatchedClock, timer: SystemTimer, due_ms: int, until_ms: int, ran: int
) -> None:
    timer.add("a", START + due_ms, list)
    advancing = Advancing(timer, 500)
    assert clock.wait_for_waiter() == until_ms
    clock.advance(until_ms)
    assert (advancing.answer(), timer.wakeups, timer.size()) == (ran, 1, 1 - ran)


def test_a_bucket_that_only_cascades_is_no_reason_to_return(clock: WatchedClock, timer: SystemTimer) -> None:
    timer.add("a", START + 450, list)
    advancing = Advancing(timer, None)
    for until_ms in (400, 440, 450):  # level 2, level 1, level 0
        assert clock.wait_for_waiter() == until_ms
        clock.advance(until_ms - clock.monotonic_ms())
    assert advancing.answer() == 1


def test_an_earlier_timer_wakes_the_waiting_thread_and_a_later_timer_does_not(
    clock: WatchedClock, timer: SystemTimer
) -> None:
    timer.add("middle", START + 15, list)
    advancing = Advancing(timer, None)
    assert clock.wait_for_waiter() == 15
    timer.add("late", START + 18, list)
    timer.add("early", START + 4, list)
    assert clock.wait_for_waiter() == 4
    clock.advance(4)
    assert advancing.answer() == 1
    assert clock.waits == [15, 4]


def test_the_first_timer_of_an_empty_wheel_wakes_the_waiting_thread(clock: WatchedClock, timer: SystemTimer) -> None:
    advancing = Advancing(timer, None)
    assert clock.wait_for_waiter() is None
    timer.add("a", START + 7, list)
    assert clock.wait_for_waiter() == 7
    clock.advance(7)
    assert advancing.answer() == 1


def test_a_step_forward_of_the_wall_clock_is_noticed_within_a_second(clock: WatchedClock, timer: SystemTimer) -> None:
    timer.add("a", START + 10 * DAY_MS, list)
    advancing = Advancing(timer, None)
    assert clock.wait_for_waiter() == 1_000
    clock.step(10 * DAY_MS)
    clock.advance(1_000)
    assert advancing.answer() == 1


def test_a_step_back_runs_nothing_again_and_nothing_early(
    clock: WatchedClock, timer: SystemTimer, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[tuple[str, int]] = []

    def add(name: str, due: int) -> bool:
        return timer.add(name, START + due, lambda: ran.append((name, clock.now_ms() - START)))

    add("before", 1_000)
    add("waits over the step", 6_000)
    clock.advance(5_000)
    assert timer.advance_clock(0) == 1

    clock.step(-4_500)  # the wall clock shows 500 once more; the wheel was at 5,000
    assert timer.advance_clock(0) == 0
    with caplog.at_level(logging.WARNING):
        assert add("in the time that comes twice", 1_000) is True
    assert add("due with it", 6_000) is True
    assert timer.advance_clock(0) == 0
    assert [record.action for record in caplog.records] == ["step_back"]

    clock.advance(500)
    assert timer.advance_clock(0) == 1
    clock.advance(5_000)
    assert timer.advance_clock(0) == 2
    assert ran == [
        ("before", 5_000),
        ("in the time that comes twice", 1_000),
        ("waits over the step", 6_000),
        ("due with it", 6_000),
    ]


def test_a_callback_that_raises_is_logged_and_the_others_run(
    clock: WatchedClock, timer: SystemTimer, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    timer.add("bad", START + 1, lambda: 1 // 0)
    timer.add("good", START + 2, lambda: ran.append("good"))
    clock.advance(2)
    with caplog.at_level(logging.ERROR):
        assert timer.advance_clock(0) == 2
        assert timer.add("bad at once", START, lambda: 1 // 0) is False
    assert ran == ["good"]
    assert [record.timer_id for record in caplog.records] == ["bad", "bad at once"]
    assert "ZeroDivisionError" in caplog.text


def test_callbacks_may_use_the_timer_that_runs_them(clock: WatchedClock, timer: SystemTimer) -> None:
    ran: list[str] = []

    def again() -> None:
        ran.append("a")
        timer.cancel("b")
        timer.add("a", START + 20, lambda: ran.append("again"))

    timer.add("a", START + 10, again)
    timer.add("b", START + 15, lambda: ran.append("b"))
    for _ in range(2):
        clock.advance(10)
        timer.advance_clock(0)
    assert ran == ["a", "again"]


def test_wake_makes_the_waiting_call_return_or_else_the_next_call(clock: WatchedClock, timer: SystemTimer) -> None:
    advancing = Advancing(timer, None)
    clock.wait_for_waiter()
    timer.wake()
    assert advancing.answer() == 0
    timer.wake()
    assert timer.advance_clock(None) == 0


def test_shutdown_ends_waiting_and_pending_timers_do_not_run(clock: WatchedClock, timer: SystemTimer) -> None:
    ran: list[str] = []
    timer.add("a", START + 500, lambda: ran.append("a"))
    advancing = Advancing(timer, None)
    clock.wait_for_waiter()
    timer.shutdown()
    timer.shutdown()
    assert advancing.answer() == 0
    assert timer.is_shut_down
    clock.advance(1_000)
    assert timer.advance_clock(None) == 0
    assert (ran, timer.size()) == ([], 1)
    with pytest.raises(RuntimeError, match="timer is shut down; 'b' was not added"):
        timer.add("b", START, list)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.add("a", 1.5, list), TypeError, r"due_at_ms must be an integer, got 1\.5"),
        (lambda t: t.add("a", START + 5, "no"), TypeError, "callback must be callable, got 'no'"),
        (lambda t: t.advance_clock(-1), ValueError, "timeout_ms must be at least 0, got -1"),
    ],
)
def test_invalid_arguments_are_refused(
    timer: SystemTimer, call: Callable[[SystemTimer], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        call(timer)
    assert timer.size() == 0


def test_with_the_clock_of_this_machine_it_waits_for_the_wall_clock() -> None:
    clock = SystemClock()
    timer = SystemTimer(clock)
    seen: list[int] = []
    due = clock.now_ms() + 3
    timer.add("a", due, lambda: seen.append(clock.now_ms()))
    assert timer.advance_clock(10_000) in (0, 1)  # 0 if this machine took 3 ms to get here and add ran it
    assert len(seen) == 1
    assert seen[0] >= due


class Crowd:
    """Eight threads add timers and cancel each other's, while two more threads run the due timers."""

    PER_THREAD = 500

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.timer = SystemTimer(self.clock, tick_ms=10, wheel_size=20)
        self.runs: list[tuple[int, int]] = []  # list.append is atomic
        self.cancelled: list[tuple[int, int]] = []
        self.begin = threading.Barrier(9)
        self.adding_is_over = threading.Event()

    def add_and_cancel(self, thread_number: int) -> None:
        rng = random.Random(thread_number)
        self.begin.wait()
        for number in range(self.PER_THREAD):
            key = (thread_number, number)
            due_at = self.clock.now_ms() + rng.randrange(-100, 20_000)
            self.timer.add(key, due_at, lambda key=key: self.runs.append(key))
            victim = (rng.randrange(8), rng.randrange(self.PER_THREAD))
            if rng.random() < 0.4 and self.timer.cancel(victim) is not None:
                self.cancelled.append(victim)

    def let_time_pass(self) -> None:
        self.begin.wait()
        while not self.adding_is_over.is_set():
            self.clock.advance(7)
            self.timer.advance_clock(0)


@pytest.mark.usefixtures("impatient_threads")
def test_eight_threads_add_and_cancel_and_each_timer_runs_once_or_was_cancelled() -> None:
    crowd = Crowd()
    threads = [threading.Thread(target=crowd.add_and_cancel, args=(number,), daemon=True) for number in range(8)]
    passing = threading.Thread(target=crowd.let_time_pass, daemon=True)
    waiting = Advancing(crowd.timer, None)
    for thread in (*threads, passing):
        thread.start()
    for thread in threads:
        thread.join(timeout=patience(60))
    crowd.adding_is_over.set()
    passing.join(timeout=patience(60))
    crowd.clock.advance(30_000)
    crowd.timer.advance_clock(0)
    crowd.timer.wake()
    waiting.answer()

    assert crowd.timer.size() == 0
    assert crowd.cancelled
    everything = Counter(crowd.runs) + Counter(crowd.cancelled)
    assert everything == Counter((thread, number) for thread in range(8) for number in range(Crowd.PER_THREAD))


@pytest.fixture
def reaper(timer: SystemTimer) -> Iterator[Reaper]:
    reaper = Reaper(timer)
    yield reaper
    reaper.stop()


def test_the_reaper_wakes_for_buckets_and_not_for_ticks(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper
) -> None:
    ran: list[int] = []
    for delay in (10, 310, 390):
        timer.add(delay, START + delay, lambda delay=delay: ran.append(delay))
    reaper.start()
    woken_at = []
    while (until_ms := clock.wait_for_waiter()) is not None:
        woken_at.append(until_ms)
        while clock.monotonic_ms() < until_ms:
            clock.advance(1)
    # START is where a lap of level 1 begins. 10 is on level 0; 310 and 390 are in the buckets 300 and 380 of level 1.
    assert woken_at == [10, 300, 310, 380, 390]
    assert ran == [10, 310, 390]
    assert timer.wakeups == 5


def test_an_empty_timer_wakes_no_thread(clock: WatchedClock, timer: SystemTimer, reaper: Reaper) -> None:
    reaper.start()
    assert clock.wait_for_waiter() is None
    clock.advance(365 * 86_400_000)
    assert timer.wakeups == 0


def test_the_reaper_runs_callbacks_in_its_own_thread_which_none_ends_by_its_failure(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper, caplog: pytest.LogCaptureFixture
) -> None:
    ran, names = threading.Event(), list[str]()
    timer.add("bad", START + 5, lambda: 1 // 0)
    timer.add("good", START + 6, lambda: (names.append(threading.current_thread().name), ran.set()))
    reaper.start()
    with caplog.at_level(logging.ERROR):
        clock.advance(5)
        clock.advance(1)
        assert ran.wait(patience(10))
    assert (reaper.running, names) == (True, ["celery-wheel-reaper"])
    assert "callback of timer bad failed" in caplog.text


def test_a_failing_timer_is_logged_and_tried_again(
    clock: WatchedClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenOnce(SystemTimer):
        calls = 0

        def advance_clock(self, timeout_ms: int | None) -> int:
            self.calls += 1
            if self.calls == 1:
                raise OSError("no clock")
            return super().advance_clock(timeout_ms)

    monkeypatch.setattr(system_timer, "RETRY_FIRST_S", 0.001)
    with caplog.at_level(logging.ERROR), Reaper(BrokenOnce(clock)) as reaper:
        clock.wait_for_waiter()
        assert reaper.running
    assert "no clock" in caplog.text
    assert not reaper.running


def test_stop_ends_the_thread_in_any_wait_and_timers_stay_pending(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper
) -> None:
    timer.add("a", START + 500_000, list)
    reaper.start()
    clock.wait_for_waiter()
    reaper.stop()
    reaper.stop()
    assert not reaper.running
    assert timer.size() == 1


def test_stop_before_start_does_nothing_and_it_can_be_started_again(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper
) -> None:
    reaper.stop()
    for _ in range(3):
        with reaper:
            assert reaper.running
        assert not reaper.running


def test_a_running_reaper_is_not_started_twice(reaper: Reaper) -> None:
    reaper.start()
    with pytest.raises(RuntimeError, match=r"^reaper celery-wheel-reaper runs already"):
        reaper.start()


def test_the_shutdown_of_its_timer_ends_it(clock: WatchedClock, timer: SystemTimer, reaper: Reaper) -> None:
    reaper.start()
    clock.wait_for_waiter()
    timer.shutdown()
    assert reaper._thread is not None
    reaper._thread.join(timeout=patience(10))
    assert not reaper.running


def test_a_callback_may_stop_its_own_reaper(clock: WatchedClock, timer: SystemTimer, reaper: Reaper) -> None:
    stopped = threading.Event()
    timer.add("a", START + 5, lambda: (reaper.stop(), stopped.set()))
    reaper.start()
    clock.advance(5)
    assert stopped.wait(patience(10))
