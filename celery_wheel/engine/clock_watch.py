"""Watching the wall clock: due times are instants of it, so a clock that lies makes tasks leave early or late.

::

    wall clock against the monotonic clock      a forward step over max_step: dispatch stops …
    wall clock against a second clock           … until they agree within max_skew; and a holder whose
                                                clock differs by more neither takes nor keeps a shard

Promises: a forward step is seen before the next round of dispatch takes a chunk: each round asks first.
Non-promise: where there is no second clock, a forward step stays halted until the process is restarted, and
a clock that is wrong from the start is not found out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_wheel.timing import Clock

MAX_ROUND_TRIP_MS = 1_000

logger = logging.getLogger(__name__)


class ClockWatch:
    def __init__(self, clock: Clock, *, max_skew_ms: int, max_step_ms: int) -> None:
        self._clock = clock
        self._max_skew_ms = max_skew_ms
        self._max_step_ms = max_step_ms
        self._base_ms = clock.now_ms() - clock.monotonic_ms()
        self.halted = False
        self.steps = 0
        self.skew_ms: int | None = None

    def may_dispatch(self) -> bool:
        """False after a forward step, until a second clock has agreed."""
        base_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        step_ms, self._base_ms = base_ms - self._base_ms, base_ms
        if step_ms > self._max_step_ms:
            self.steps += 1
            self.halted = True
            logger.error(
                "the wall clock was stepped forward by %d ms; nothing is dispatched until a second clock agrees; "
                "check this host's time service",
                step_ms,
                extra={"action": "clock_step", "step_ms": step_ms},
            )
        return not self.halted

    def compare(self, second_clock_ms: Callable[[], int | None]) -> bool:
        """Ask a second clock; False when this host's clock is not fit to hold a shard."""
        asked_ms, steps = self._clock.monotonic_ms(), self.steps
        second_ms = second_clock_ms()
        # An answer that was long under way, or that this process was long in reading, says nothing.
        if second_ms is None or self._clock.monotonic_ms() - asked_ms > MAX_ROUND_TRIP_MS:
            return True
        self.skew_ms = self._clock.now_ms() - second_ms
        if abs(self.skew_ms) > self._max_skew_ms:
            logger.error(
                "this host's clock differs by %d ms from that of the broker or the store; it holds no shard while that "
                "is so; check the time service of both hosts",
                self.skew_ms,
                extra={"action": "clock_skew", "skew_ms": self.skew_ms},
            )
            return False
        if self.halted and self.steps == steps:
            self.halted = False
            logger.warning("the clocks agree again; dispatch goes on", extra={"action": "clock_agreed"})
        return True
