"""The reaper: a thread that runs a timer and wakes for buckets, not for ticks.

::

    Reaper ──► timer.advance_clock(None) ──► waits ... a bucket begins ──► runs due callbacks ──┐
       ▲                                                                                        │
       └────────────────────────────────────────────────────────────────────────────────────────┘

Promises:
  - The timer logs a failing callback and counts it as run; the reaper logs any other failure of the timer and tries
    again after a second. Only ``stop`` and the timer's ``shutdown`` end the thread; a callback that raises SystemExit
    does not.
  - ``stop`` wakes the thread from any wait. It waits for a running callback and does not interrupt it.

Not promised: two reapers on one timer. Callbacks run one after another.

Source: ``ExpiredOperationReaper`` of Kafka's DelayedOperationPurgatory, which wakes every 200 ms instead.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from celery_wheel.timing.retry import Backoff, RetryLog
from celery_wheel.timing.system_timer import SystemTimer

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0  # a timer that always fails at once must not occupy a whole processor


class Reaper:
    """Runs one timer in a daemon thread of its own, from ``start`` (or ``with``) until ``stop``.

    Args:
        timer: the timer to advance; its maker shuts it down.
        name: name of the thread.
    """

    def __init__(self, timer: SystemTimer, name: str = "celery-wheel-reaper") -> None:
        self._timer = timer
        self._name = name
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def wakeups(self) -> int:
        """Number of times the timer woke: for a bucket, a re-check of the clock, or an earlier timer."""
        return self._timer.wakeups

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the thread runs already.
        """
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
