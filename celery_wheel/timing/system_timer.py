"""The wheel with a clock and a lock: callbacks that run at their time, from any number of threads.

::

    add, cancel ──► lock ── wheel ── lock ◄── advance_clock: waits on the condition until the next bucket begins,
    any thread                                │              the timeout is over, or an earlier timer was added
                                              └─► callbacks, without the lock: in line, or on the executor

    due times   wall clock        450 is due when clock.now_ms() >= 450
    waits       monotonic clock   min(next bucket, timeout, 1,000 ms), then both clocks are read anew

Promises:
  - A timer runs once, or ``cancel`` returned it, or ``shutdown`` came first; never two of these.
  - Never early by the wall clock; at most a tick and the waking of a thread late. A wall clock that is stepped, or a
    machine that was suspended, is noticed within a second.
  - A step back never runs anything again. What is added then waits until the wall clock gets there, even where the
    wheel had been before: the wheel is laid out anew at the earlier time, O(n), once for each step back.
  - One ``advance_clock`` runs (or submits) its callbacks in order of (due time, order of adding). One that raises is
    logged and the rest run. What is no Exception, as a KeyboardInterrupt, is let through when the rest have run.

Not promised:
  - Order between what ``add`` runs because it is already due and what waits, or between threads that advance.
  - Durability: what waits is lost with the process.

Source: ``SystemTimer`` of Kafka's org.apache.kafka.server.util.timer. Kafka's adds a delay to a monotonic clock; here
due times are instants of the wall clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor

from celery_wheel.timing.arguments import integer
from celery_wheel.timing.clock import Clock
from celery_wheel.timing.timer import Timer
from celery_wheel.timing.wheel import TimingWheel

logger = logging.getLogger(__name__)

RECHECK_MS = 1_000
"""The longest wait while a timer is waiting: by how much a step of the wall clock can go unnoticed."""

Callback = Callable[[], object]


class SystemTimer:
    """Runs callbacks at their time. All methods may be called from any thread, callbacks included.

    Nothing happens by itself: somebody calls ``advance_clock``, usually a :class:`~celery_wheel.timing.reaper.Reaper`.

    Args:
        clock: where both times come from.
        tick_ms: the finest step, at least 1 ms.
        wheel_size: buckets a level, at least 2.
        executor: runs the callbacks; without one the thread that advances does. It stays the caller's to shut down.
    """

    def __init__(self, clock: Clock, tick_ms: int = 1, wheel_size: int = 20, executor: Executor | None = None) -> None:
        self._clock = clock
        self._executor = executor
        self._wheel = TimingWheel(tick_ms, wheel_size, clock.now_ms())
        self._changed = threading.Condition()
        self._waiters = 0
        self._awaited_ms: int | None = None  # the bucket that the waiters wait for; None: there was none
        self._woken = False
        self._shut_down = False
        self._wakeups = 0

    @property
    def clock(self) -> Clock:
        """What it goes by: for due times that are a delay from now."""
        return self._clock

    @property
    def wakeups(self) -> int:
        """How often an ``advance_clock`` came back from waiting, for whatever reason."""
        return self._wakeups

    @property
    def is_shut_down(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._shut_down

    def add(self, timer_id: Hashable, due_at_ms: int, callback: Callback) -> bool:
        """Run ``callback`` when the wall clock has reached an instant; one of that id that waits is replaced.

        Args:
            timer_id: unique within the timer.
            due_at_ms: UTC epoch milliseconds.
            callback: called without arguments; what it returns is ignored.

        Returns:
            True if it waits; False if it was already due and was run at once (here, or on the executor).

        Raises:
            RuntimeError: the timer is shut down; nothing was added or run.
        """
        due_at_ms = integer("due_at_ms", due_at_ms)
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        with self._changed:
            if self._shut_down:
                raise RuntimeError(f"timer is shut down; {timer_id!r} was not added and will not run; make a new timer")
            now_ms = self._clock.now_ms()
            if now_ms < due_at_ms:
                self._place(timer_id, due_at_ms, callback, now_ms)
                return True
            self._wheel.cancel(timer_id)
        self._run(timer_id, callback)
        return False

    def cancel(self, timer_id: Hashable) -> Timer | None:
        """Take a timer out; it will not run. None if it is not waiting: it was taken to be run, or is not known."""
        with self._changed:
            return self._wheel.cancel(timer_id)

    def advance_clock(self, timeout_ms: int | None) -> int:
        """Wait until timers are due, and run them.

        Args:
            timeout_ms: how long to wait at most, at least 0; None waits until there is something to run.

        Returns:
            How many timers were run, or submitted; 0 after the timeout, a ``wake`` or ``shutdown``.
        """
        until_ms = None
        if timeout_ms is not None:
            until_ms = self._clock.monotonic_ms() + integer("timeout_ms", timeout_ms, at_least=0)
        with self._changed:
            due = self._wait_for_due(until_ms)
        self._run_each(iter(due))
        return len(due)

    def size(self) -> int:
        """Return how many timers wait."""
        with self._changed:
            return len(self._wheel)

    def wake(self) -> None:
        """Make the ``advance_clock`` that waits return, or else the next one that is about to wait."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def shutdown(self) -> None:
        """End it: every ``advance_clock`` returns, and what waits will not run (``size`` says how many)."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()

    def _place(self, timer_id: Hashable, due_at_ms: int, callback: Callback, now_ms: int) -> None:
        if not self._wheel.schedule(timer_id, due_at_ms, callback):
            # Not due by the wall clock, but by the wheel: the wall clock was stepped back since the wheel moved.
            self._lay_out_anew(now_ms)
            self._wheel.schedule(timer_id, due_at_ms, callback)
        next_ms = self._wheel.next_expiration_ms()
        if self._waiters and (self._awaited_ms is None or (next_ms is not None and next_ms < self._awaited_ms)):
            self._changed.notify_all()

    def _lay_out_anew(self, now_ms: int) -> None:
        """Bring the wheel to an earlier time; what waits keeps its order."""
        old = self._wheel
        self._wheel = TimingWheel(old.tick_ms, old.wheel_size, now_ms)
        for timer in old.timers():
            self._wheel.schedule(timer.timer_id, timer.due_at_ms, timer.payload)
        logger.warning(
            "wall clock was stepped back by %d ms; %d timers wait for their time by the new clock",
            old.current_time_ms - now_ms,
            len(self._wheel),
            extra={"action": "step_back", "step_ms": old.current_time_ms - now_ms, "pending": len(self._wheel)},
        )

    def _wait_for_due(self, until_ms: int | None) -> list[Timer]:
        while not self._shut_down:
            # In this order: a clock that moves in between makes the wait too short, never too long.
            monotonic_ms = self._clock.monotonic_ms()
            now_ms = self._clock.now_ms()
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
                self._clock.wait_until(self._changed, wake_ms)
            finally:
                self._waiters -= 1
                self._wakeups += 1
        return []

    def _run_each(self, due: Iterator[Timer]) -> None:
        for timer in due:
            try:
                self._run(timer.timer_id, timer.payload)
            except BaseException:
                # The others are out of the wheel: nobody else would run them.
                self._run_each(due)
                raise

    def _run(self, timer_id: Hashable, callback: Callback) -> None:
        if self._executor is None:
            self._call(timer_id, callback)
            return
        try:
            self._executor.submit(self._call, timer_id, callback)
        except RuntimeError:
            logger.exception(
                "executor takes no more work; timer %s was not run; shut the timer down before its executor",
                timer_id,
                extra={"action": "run", "timer_id": timer_id},
            )

    def _call(self, timer_id: Hashable, callback: Callback) -> None:
        try:
            callback()
        except BaseException as error:
            logger.exception(
                "callback of timer %s failed; it is not tried again, other timers go on",
                timer_id,
                extra={"action": "run", "timer_id": timer_id},
            )
            if not isinstance(error, Exception):
                raise
