"""An operation for the purgatory's tests: a test makes it ready, and it records the calls of its hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery_wheel.timing import DelayedOperation


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
