"""Clocks: only this module of the package reads the time.

Two times that must not be mixed, both in integer milliseconds, rounded down: "now" is never ahead of the real instant::

    now_ms()         wall clock, UTC epoch    the unit of due times; may be stepped, forward and back
    monotonic_ms()   from some origin         the unit of waits; never goes back, and counts the time in which the
                                              machine was suspended

The system's two begin their milliseconds together: one that is carried on by the other is not a part of one behind.

A wait is for an instant, not from a reading, which is up to a millisecond old. ``wait_until`` is a method of the clock
so that a :class:`ManualClock` needs no sleeping; it may return early: the caller reads the clock and waits again.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from celery_wheel.timing.arguments import integer

_NS_PER_MS = 1_000_000
# A wait does not count the time in which the machine was suspended: none overruns by more than this.
_LONGEST_WAIT_NS = 1_000_000_000

#: ``time.monotonic`` stands still on a suspended machine; on Linux CLOCK_BOOTTIME does not, on macOS CLOCK_MONOTONIC.
_PASSING: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: How long after a millisecond of the wall clock, which is read first, one of ``_PASSING`` begins: never too short.
_PHASE_NS = min(-time.time_ns() + time.clock_gettime_ns(_PASSING) for _ in range(9)) % _NS_PER_MS


def _passing_ns() -> int:
    return time.clock_gettime_ns(_PASSING) - _PHASE_NS


class Clock(Protocol):
    """The clock that engines need."""

    def now_ms(self) -> int:
        """Return the wall clock: UTC epoch milliseconds, rounded down."""

    def monotonic_ms(self) -> int:
        """Return milliseconds from an arbitrary origin, rounded down; never goes back."""

    def seconds_until(self, monotonic_ms: int) -> float:
        """Return the time until ``monotonic_ms()`` reaches an instant; 0 where it has."""


class TimerClock(Clock, Protocol):
    """The clock that timers need."""

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Wait until ``condition`` is notified or ``monotonic_ms()`` reaches an instant; may return early.

        Args:
            condition: held by the caller; released while it waits.
            monotonic_until_ms: None waits for the notification only.
        """


class SystemClock:
    """The wall clock and the monotonic clock of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> int:
        return _passing_ns() // _NS_PER_MS

    def seconds_until(self, monotonic_ms: int) -> float:
        """Return at most a second."""
        return max(0, min(monotonic_ms * _NS_PER_MS - _passing_ns(), _LONGEST_WAIT_NS)) / 1e9

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Wait at most a second."""
        if monotonic_until_ms is None:
            condition.wait()
        elif wait_s := self.seconds_until(monotonic_until_ms):
            condition.wait(wait_s)


class ManualClock:
    """A clock that moves only by ``advance`` and ``step``: for tests, also an application's. Thread-safe.

    A thread that waits on it waits until another thread moves the clock or notifies the condition.

    Args:
        start_ms: first time of the wall clock, UTC epoch milliseconds; 2026-01-01 00:00:00 by default.
            The monotonic clock starts at 0, so that a test fails where the two are mixed.
    """

    def __init__(self, start_ms: int = 1_767_225_600_000) -> None:
        self._lock = threading.Lock()
        self._now_ms = integer("start_ms", start_ms)
        self._monotonic_ms = 0
        self._waiting: list[tuple[int, threading.Condition]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the sum of all advances."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Move both clocks forward by 0 ms or more, and wake the threads that wait for an instant that is reached."""
        ms = integer("ms", ms, at_least=0)
        with self._lock:
            self._now_ms += ms
            self._monotonic_ms += ms
            reached = {condition for until_ms, condition in self._waiting if until_ms <= self._monotonic_ms}
        # Without this clock's lock: a waiter holds its condition when it acquires the lock.
        for condition in reached:
            with condition:
                condition.notify_all()

    def step(self, ms: int) -> None:
        """Set the wall clock forward, or back if ``ms`` is negative. No time passes and no thread wakes."""
        ms = integer("ms", ms)
        with self._lock:
            self._now_ms += ms

    def seconds_until(self, monotonic_ms: int) -> float:
        return max(0, monotonic_ms - self._monotonic_ms) / 1_000

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        if monotonic_until_ms is None:
            condition.wait()
            return
        waiting = (monotonic_until_ms, condition)
        with self._lock:
            # Compare and register under one lock: an advance either comes before the comparison or finds the entry.
            if monotonic_until_ms <= self._monotonic_ms:
                return
            self._waiting.append(waiting)
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiting.remove(waiting)
