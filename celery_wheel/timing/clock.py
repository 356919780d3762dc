"""The only module of this package that knows what time it is.

Two times that must not be mixed, both in integer milliseconds::

    now_ms()         wall clock, UTC epoch    what due times are in. It may be stepped, forward and back
    monotonic_ms()   from some origin         what waits are measured in. It only goes forward, at the pace of time, and
                                              counts the time in which the machine was suspended

    wait_until(condition, 1500)               sleep on a condition until monotonic_ms() is 1500, or it is notified

Both are rounded down, so that "now" is never ahead of the real instant: half of the wheel's "never early".

``wait_until`` is part of the clock because waiting is reading a clock all the time. So a :class:`ManualClock` needs no
sleeping: the thread that moves it notifies whoever waited for the instant that was reached. It is given an instant
and not a duration because the clock may be moved between reading it and waiting; an instant that has passed is not
waited for, a duration would be waited for in vain.

Not promised: that ``wait_until`` does not come back early. The caller looks at the clock and waits again.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from celery_wheel.timing.arguments import integer

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
# A condition's own wait does not count the time in which the machine was suspended: no wait overruns by more than this.
_LONGEST_WAIT_NS = _NS_PER_S

#: ``time.monotonic`` stands still on a suspended machine; on Linux CLOCK_BOOTTIME does not, on macOS CLOCK_MONOTONIC.
_PASSING: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _passing_ns() -> int:
    return time.clock_gettime_ns(_PASSING)


class Clock(Protocol):
    """What the timers need of a clock."""

    def now_ms(self) -> int:
        """Return the wall clock: UTC epoch milliseconds, rounded down."""

    def monotonic_ms(self) -> int:
        """Return milliseconds from an arbitrary origin, rounded down; never goes back."""

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Wait until ``condition`` is notified or ``monotonic_ms()`` reaches an instant; it may come back early.

        Args:
            condition: held by the caller; released while it waits.
            monotonic_until_ms: None waits for the notification alone.
        """


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the wall clock: UTC epoch milliseconds, rounded down."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """Return the milliseconds since boot, suspended or not, rounded down."""
        return _passing_ns() // _NS_PER_MS

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Wait on ``condition``, at most until ``monotonic_ms()`` reaches an instant, and at most a second."""
        if monotonic_until_ms is None:
            condition.wait()
            return
        remaining_ns = monotonic_until_ms * _NS_PER_MS - _passing_ns()
        if remaining_ns > 0:
            condition.wait(min(remaining_ns, _LONGEST_WAIT_NS) / _NS_PER_S)


class ManualClock:
    """A clock that stands still until it is told to move. For tests, yours included. Thread-safe.

    A thread that waits on it waits for good until another one moves it; no real time passes in between.

    Args:
        start_ms: what the wall clock shows at first, UTC epoch milliseconds; 2026-01-01 00:00:00 if not given.
            The monotonic clock starts at 0, so that mixing up the two does not go unnoticed.
    """

    def __init__(self, start_ms: int = 1_767_225_600_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = integer("start_ms", start_ms)
        self._monotonic_ms = 0
        self._waiting: list[tuple[int, threading.Condition]] = []

    def now_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return by how much the clock was advanced in all."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass: both clocks move on, and whoever waited for an instant that is now reached is woken.

        Args:
            ms: how much, at least 0.
        """
        ms = integer("ms", ms, at_least=0)
        with self._lock:
            self._now_ms += ms
            self._monotonic_ms += ms
            reached = {condition for until_ms, condition in self._waiting if until_ms <= self._monotonic_ms}
        # Without our own lock: a waiter holds its condition when it asks for ours.
        for condition in reached:
            with condition:
                condition.notify_all()

    def step(self, ms: int) -> None:
        """Set the wall clock forward, or back if ``ms`` is negative. No time passes and nobody is woken by it."""
        ms = integer("ms", ms)
        with self._lock:
            self._now_ms += ms

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Wait on ``condition`` until it is notified, by its owner or because the clock reached an instant."""
        if monotonic_until_ms is None:
            condition.wait()
            return
        waiting = (monotonic_until_ms, condition)
        with self._lock:
            # Looking and signing up in one: whoever moves the clock after this sees us, before this is seen by us.
            if monotonic_until_ms <= self._monotonic_ms:
                return
            self._waiting.append(waiting)
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiting.remove(waiting)
