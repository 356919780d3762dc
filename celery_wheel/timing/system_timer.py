"""The wheel with a clock and a lock: runs callbacks at their time, for any number of threads, in a thread of a Reaper.

Due times are by the wall clock, waits by the monotonic clock: until the next bucket, or for a second, and then both
clocks are read again. The reaper wakes for buckets, not for ticks.

Promises:
  - A timer runs once, or ``cancel`` returned it, or ``shutdown`` came first; never two of these.
  - Never early by the wall clock; at most a tick and the waking of a thread late, after a step of the wall clock or a
    suspension of the machine a second.
  - A step back runs no callback twice. A timer that is added then waits until the wall clock reaches its due time, even
    where the wheel was past it: the wheel is rebuilt at the earlier time, O(n), once for each step back.
  - One ``advance_clock`` runs its callbacks in order of (due time, order of adding). A callback that raises an
    Exception is logged, and the rest run. Another BaseException propagates after them, but ends no reaper.
  - ``Reaper.stop`` wakes the thread from any wait. It waits for a running callback and does not interrupt it.

Source: ``SystemTimer`` of Kafka's org.apache.kafka.server.util.timer, which adds a delay to a monotonic clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator

from celery_wheel.timing.arguments import integer
from celery_wheel.timing.clock import TimerClock
from celery_wheel.timing.retry import Backoff, RetryLog
from celery_wheel.timing.wheel import Timer, TimingWheel

logger = logging.getLogger(__name__)

RECHECK_MS = 1_000
"""Longest wait while a timer is pending: a step of the wall clock is noticed within this time."""

Callback = Callable[[], object]


class SystemTimer:
    """Runs callbacks at their time, in calls of ``advance_clock``, usually by a Reaper.

    All methods may be called from any thread, callbacks included.
    """

    def __init__(self, clock: TimerClock, tick_ms: int = 1, wheel_size: int = 20) -> None:
        self.clock = clock
        self._wheel = TimingWheel(tick_ms, wheel_size, clock.now_ms())
        self._changed = threading.Condition()
        self._waiters = 0
        self._awaited_ms: int | None = None  # the bucket that the waiters wait for; None: there was none
        self._woken = False
        self.is_shut_down = False
        self.wakeups = 0  #: how often an ``advance_clock`` returned from waiting, for any reason

    def add(self, timer_id: Hashable, due_at_ms: int, callback: Callback) -> bool:
        """Run ``callback`` when the wall clock reaches an instant, in UTC epoch milliseconds.

        A pending timer of that id is replaced. Returns True if the timer is pending; False if it was already due and
        was run at once. Raises RuntimeError where the timer is shut down: no timer was added or run.
        """
        due_at_ms = integer("due_at_ms", due_at_ms)
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        with self._changed:
            if self.is_shut_down:
                raise RuntimeError(f"timer is shut down; {timer_id!r} was not added and will not run; make a new timer")
            now_ms = self.clock.now_ms()
            if now_ms < due_at_ms:
                self._place(timer_id, due_at_ms, callback, now_ms)
                return True
            self._wheel.cancel(timer_id)
        self._run(timer_id, callback)
        return False

    def cancel(self, timer_id: Hashable) -> Timer | None:
        """Remove a timer and return it: it will not run. None if no timer of that id is pending."""
        with self._changed:
            return self._wheel.cancel(timer_id)

    def advance_clock(self, timeout_ms: int | None) -> int:
        """Wait until timers are due, and run them; None waits without limit.

        Returns the number of timers that were run: 0 after the timeout, a ``wake`` or ``shutdown``.
        """
        until_ms = None
        if timeout_ms is not None:
            until_ms = self.clock.monotonic_ms() + integer("timeout_ms", timeout_ms, at_least=0)
        with self._changed:
            due = self._wait_for_due(until_ms)
        self._run_each(iter(due))
        return len(due)

    def size(self) -> int:
        """Return the number of pending timers."""
        with self._changed:
            return len(self._wheel)

    def wake(self) -> None:
        """Make the ``advance_clock`` that waits return; if none waits, the next that would."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def shutdown(self) -> None:
        """Make every ``advance_clock`` return; pending timers do not run (``size`` counts them)."""
        with self._changed:
            self.is_shut_down = True
            self._changed.notify_all()

    def _place(self, timer_id: Hashable, due_at_ms: int, callback: Callback, now_ms: int) -> None:
        if not self._wheel.schedule(timer_id, due_at_ms, callback):
            # Due by the wheel and not by the wall clock: the wall clock was stepped back since the wheel moved.
            self._rebuild_wheel(now_ms)
            self._wheel.schedule(timer_id, due_at_ms, callback)
        next_ms = self._wheel.next_expiration_ms()
        if self._waiters and (self._awaited_ms is None or (next_ms is not None and next_ms < self._awaited_ms)):
            self._changed.notify_all()

    def _rebuild_wheel(self, now_ms: int) -> None:
        """Replace the wheel by a wheel at an earlier time; pending timers keep their order."""
        old = self._wheel
        self._wheel = TimingWheel(old.tick_ms, old.wheel_size, now_ms)
        for timer in old.timers():
            self._wheel.schedule(timer.timer_id, timer.due_at_ms, timer.payload)
        logger.warning(
            "wall clock was stepped back by %d ms; %d pending timers run by the new time",
            old.current_time_ms - now_ms,
            len(self._wheel),
            extra={"action": "step_back", "step_ms": old.current_time_ms - now_ms, "pending": len(self._wheel)},
        )

    def _wait_for_due(self, until_ms: int | None) -> list[Timer]:
        while not self.is_shut_down:
            # The monotonic clock first: a clock that moves in between makes the wait too short, never too long.
            monotonic_ms = self.clock.monotonic_ms()
            now_ms = self.clock.now_ms()
            due = self._wheel.advance(now_ms)
            if due or self._woken or (until_ms is not None and monotonic_ms >= until_ms):
                self._woken = False
                return due
            self._awaited_ms = self._wheel.next_expiration_ms()
            wake_ms = until_ms
            if self._awaited_ms is not None:
                bucket_ms = monotonic_ms + min(self._awaited_ms - now_ms, RECHECK_MS)
                wake_ms = bucket_ms if until_ms is None else min(bucket_ms, until_ms)
            self._waiters += 1
            try:
                self.clock.wait_until(self._changed, wake_ms)
            finally:
                self._waiters -= 1
                self.wakeups += 1
        return []

    def _run_each(self, due: Iterator[Timer]) -> None:
        for timer in due:
            try:
                self._run(timer.timer_id, timer.payload)
            except BaseException:
                # The other timers are out of the wheel: no other call would run them.
                self._run_each(due)
                raise

    def _run(self, timer_id: Hashable, callback: Callback) -> None:
        try:
            callback()
        except BaseException as error:
            extra = {"action": "run", "timer_id": timer_id}
            logger.exception(
                "callback of timer %s failed; it is not tried again; other timers go on", timer_id, extra=extra
            )
            if not isinstance(error, Exception):
                raise


RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0  # a timer that always fails at once must not occupy a whole processor


class Reaper:
    """Runs one timer in a daemon thread of its own, from ``start`` (or ``with``) until ``stop``.

    The maker of the timer shuts it down.
    """

    def __init__(self, timer: SystemTimer, name: str = "celery-wheel-reaper") -> None:
        self._timer = timer
        self._name = name
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. Raises RuntimeError where it runs already."""
        if self.running:
            raise RuntimeError(f"reaper {self._name} runs already; stop it before starting it again")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; pending timers stay in the timer. Does nothing if no thread runs."""
        self._stopping.set()
        if self.running:
            self._timer.wake()
        # A callback may stop the reaper that runs it; a thread cannot join itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Reaper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        backoff, log = Backoff(RETRY_FIRST_S, RETRY_MOST_S), RetryLog(logger, time.monotonic)
        while not self._stopping.is_set() and not self._timer.is_shut_down:
            try:
                self._timer.advance_clock(None)
                backoff.succeeded()
            except Exception:
                log.write(
                    logging.ERROR,
                    "reap",
                    "reaper %s could not advance its timer; it tries again",
                    self._name,
                    exc_info=True,
                    extra={"action": "reap", "reaper": self._name},
                )
                self._stopping.wait(backoff.failed())
            except BaseException:
                # Python ends a thread by SystemExit silently, and no later callback would run.
                logger.exception(
                    "a callback tried to end the thread of reaper %s; it goes on; call stop to end it",
                    self._name,
                    extra={"action": "reap", "reaper": self._name},
                )
