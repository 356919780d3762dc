"""A timer on a clock that reports waits, operations that record the calls of their hooks, and impatient threads."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from celery_wheel.timing import DelayedOperation, ManualClock, SystemTimer
from tests.kit.patience import patience

START = 1_767_225_600_000  # a multiple of 8,000: laps of levels 0, 1 and 2 of a wheel of 20 begin here


class WaitingOperation(DelayedOperation):
    def __init__(
        self,
        delay_ms: int = 1_000,
        *,
        then: Callable[[], object] | None = None,
        after_the_first_read: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(delay_ms)
        self.ready = False
        self.called: list[str] = []
        self.thread: threading.Thread | None = None
        self._then = then
        self._after_the_first_read = after_the_first_read

    def try_complete(self) -> bool:
        ready = self.ready
        # Another thread may run between this read and the next step of the purgatory.
        first, self._after_the_first_read = self._after_the_first_read, None
        if first is not None:
            first()
        return ready

    def on_complete(self) -> None:
        self.called.append("complete")
        self.thread = threading.current_thread()
        if self._then is not None:
            self._then()

    def on_expiration(self) -> None:
        self.called.append("expiration")


class WatchedClock(ManualClock):
    """A manual clock that reports when a thread begins to wait on it."""

    def __init__(self, start_ms: int = START) -> None:
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


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock(START)


@pytest.fixture
def timer(clock: WatchedClock) -> SystemTimer:
    return SystemTimer(clock, tick_ms=1, wheel_size=20)


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads switch every few instructions, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
