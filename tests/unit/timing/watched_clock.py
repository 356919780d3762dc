"""A manual clock that reports when a thread begins to wait on it."""

from __future__ import annotations

import threading

from celery_wheel.timing import ManualClock
from tests.kit.patience import patience


class WatchedClock(ManualClock):
    def __init__(self, start_ms: int = 1_767_225_600_000) -> None:
        super().__init__(start_ms)
        self.waits: list[int | None] = []
        self._begun = threading.Semaphore(0)

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        self.waits.append(monotonic_until_ms)
        self._begun.release()
        super().wait_until(condition, monotonic_until_ms)

    def wait_for_waiter(self) -> int | None:
        """Wait until one more wait has begun; return its end."""
        assert self._begun.acquire(timeout=patience(10)), "nobody waits"
        return self.waits[-1]
