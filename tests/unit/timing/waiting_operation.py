"""An operation for the purgatory's tests: ready when it is told so, and it remembers what was called."""

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
        after_the_first_look: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(delay_ms)
        self.ready = False
        self.called: list[str] = []
        self.thread: threading.Thread | None = None
        self._then = then
        self._after_the_first_look = after_the_first_look

    def try_complete(self) -> bool:
        ready = self.ready
        # What another thread might do between this look and what the purgatory does next.
        first, self._after_the_first_look = self._after_the_first_look, None
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
