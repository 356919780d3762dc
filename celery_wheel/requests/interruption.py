"""The interruption of a call by another thread: its wait for answers ends, and its request is withdrawn.

A call finds its interruption in a context variable, so nothing between the two need pass it on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from celery_wheel.errors import RequestInterrupted

_current: ContextVar[Interruption | None] = ContextVar("celery_wheel_interruption", default=None)


class Interruption:
    """The interruption of one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] = []
        self._is_over = self._has_begun = False

    def enter(self) -> None:
        """Make this the interruption of the calls in this context."""
        _current.set(self)

    def begin(self) -> None:
        """Note that the call begins. Raises RequestInterrupted where it was interrupted before: it sends nothing."""
        with self._lock:
            self.check()
            self._has_begun = True

    def interrupt(self) -> bool:
        """End the wait of the call, or keep it from beginning; returns whether it has begun."""
        with self._lock:
            self._is_over = True
            wakes = list(self._wakes)
        for wake in wakes:
            wake()
        return self._has_begun

    def check(self) -> None:
        if self._is_over:
            raise RequestInterrupted("the task that awaited this request was cancelled")

    def watch(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._wakes.append(wake)
            is_over = self._is_over
        if is_over:
            wake()

    def unwatch(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._wakes.remove(wake)


def check_interruption() -> None:
    """Raise RequestInterrupted where the call of this context is interrupted."""
    if (found := _current.get()) is not None:
        found.check()


@contextmanager
def interruptible(wake: Callable[[], object]) -> Iterator[None]:
    """Within it, an interruption calls ``wake``, in its own thread."""
    found = _current.get()
    if found is None:
        yield
        return
    found.watch(wake)
    try:
        yield
    finally:
        found.unwatch(wake)
