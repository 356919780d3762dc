"""The reaper: a thread that waits for the next bucket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from celery_wheel.timing import Reaper, SystemTimer
from celery_wheel.timing import system_timer as reaper_module
from tests.kit.patience import patience
from tests.unit.timing.recorders import START, WatchedClock


@pytest.fixture
def reaper(timer: SystemTimer) -> Iterator[Reaper]:
    reaper = Reaper(timer)
    yield reaper
    reaper.stop()


def test_the_reaper_runs_what_falls_due_in_its_own_thread(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper
) -> None:
    names: list[str] = []
    ran = threading.Event()
    timer.add("a", START + 5, lambda: (names.append(threading.current_thread().name), ran.set()))
    reaper.start()
    clock.advance(5)
    assert ran.wait(patience(10))
    assert names == ["celery-wheel-reaper"]


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


def test_a_failing_callback_does_not_end_the_reaper(
    clock: WatchedClock, timer: SystemTimer, reaper: Reaper, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    timer.add("bad", START + 5, lambda: 1 // 0)
    timer.add("good", START + 6, ran.set)
    reaper.start()
    with caplog.at_level(logging.ERROR):
        clock.advance(5)
        clock.advance(1)
        assert ran.wait(patience(10))
    assert reaper.running
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

    monkeypatch.setattr(reaper_module, "RETRY_FIRST_S", 0.001)
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
