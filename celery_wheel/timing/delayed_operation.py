"""An operation with a time-out that completes exactly once, by the first of three events.

The events: ``try_complete`` is True in a check, the time-out, and ``force_complete``.

Promises:
  - ``on_complete`` runs once, in the thread that won; ``completed`` is True before it begins. ``on_expiration`` runs
    only after it, and only when the time-out won.
  - An operation that another ``on_complete`` completes has its own run when that one has ended, by the same thread: a
    chain of a million operations is a loop and not a million calls deep.
  - ``try_complete`` never runs in two threads at once, and no thread waits for it: a thread that comes while it runs
    requests a recheck, and the thread that runs it runs it again. So the last check begins after the last change.
  - Hooks run without any lock of this package. A hook that raises an Exception is logged: a failed ``try_complete``
    counts as not ready, a failed ``on_complete`` as completed. Another BaseException ends the hooks of its own
    operation only, and propagates after the last hooks of the others that this thread has completed.

Not promised: a ``try_complete`` that checks a key under which its own operation is watched would call itself for ever.

Source: ``DelayedOperation`` of Kafka's org.apache.kafka.server.purgatory, which used such rechecks from KAFKA-6653 on.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from celery_wheel.timing.arguments import integer

logger = logging.getLogger(__name__)


class _Finishing(threading.local):
    """Operations that this thread has completed and not finished, with whether by time-out; None while none is."""

    queue: deque[tuple[DelayedOperation, bool]] | None = None


_finishing = _Finishing()


class DelayedOperation(ABC):
    """Base class of the operations in a purgatory: a subclass defines when it is ready, and what it then does.

    Args:
        delay_ms: time-out, from the moment at which the operation is watched; at least 0.
    """

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = integer("delay_ms", delay_ms, at_least=0)
        self._completion = threading.Lock()  # acquired once, by the winner, and never released
        self._winner = 0
        self._checking = threading.Lock()  # held while try_complete runs; no thread waits for it
        self._recheck = False
        # For the purgatory: whether the operation was ever watched, and the callback for its completion.
        self._watched = False
        self._settle: Callable[[], None] | None = None

    @property
    def completed(self) -> bool:
        """Whether an event has won; ``on_complete`` has begun or is about to begin."""
        return self._completion.locked()

    @abstractmethod
    def try_complete(self) -> bool:
        """Return whether the operation is ready: it is then completed. The method may also call ``force_complete``."""

    @abstractmethod
    def on_complete(self) -> None:
        """Do the work of the operation. Runs once, and never within another operation's ``on_complete``."""

    def on_expiration(self) -> None:  # noqa: B027 - few operations do anything more after a time-out
        """Run after ``on_complete`` where the time-out has won."""

    def force_complete(self) -> bool:
        """Complete the operation now, ready or not; returns whether this call completed it."""
        return self._complete(expired=False)

    def _complete(self, *, expired: bool) -> bool:
        if not self._completion.acquire(blocking=False):
            return False
        self._winner = threading.get_ident()
        # Read after the completion is acquired, and set by the purgatory before it tests ``completed``: none is missed.
        try:
            if (settle := self._settle) is not None:
                settle()
        finally:
            # The operation counts as completed: if the purge fails by the __eq__ of a key, no other thread runs this.
            self._finish(expired)
        return True

    def _finish(self, expired: bool) -> None:
        """Run the last hooks, or queue them for the call further up this thread's stack that runs another's."""
        if _finishing.queue is not None:
            _finishing.queue.append((self, expired))
            return
        _finishing.queue = queue = deque([(self, expired)])
        try:
            _run_last_hooks(queue)
        finally:
            _finishing.queue = None

    def _attempt(self) -> bool:
        """Run ``try_complete``, or request a recheck of the thread that runs it; True if this call completed it."""
        if self.completed:
            return False
        self._recheck = True
        while self._recheck and not self.completed:
            if not self._checking.acquire(blocking=False):
                # The thread that runs it either has yet to begin, or reads _recheck after it has released the lock.
                return False
            try:
                self._recheck = False
                if self._run("try_complete", "the operation counts as not ready and goes on waiting"):
                    self.force_complete()
            finally:
                self._checking.release()
        # The result of force_complete does not answer this: try_complete may have called it itself.
        return self._winner == threading.get_ident()

    def _run(self, hook: str, consequence: str) -> bool:
        try:
            return bool(getattr(self, hook)())
        except Exception:
            message = "%s of %r failed; %s; other operations go on"
            logger.exception(message, hook, self, consequence, extra={"action": "purgatory", "hook": hook})
            return False

    def __repr__(self) -> str:
        state = "completed" if self.completed else "waiting"
        return f"<{type(self).__name__} {state}, delay_ms={self.delay_ms}>"


def _run_last_hooks(queue: deque[tuple[DelayedOperation, bool]]) -> None:
    """Run the hooks of the operations in the queue, also of those that the hooks add."""
    while queue:
        operation, by_time_out = queue.popleft()
        try:
            operation._run("on_complete", "the operation counts as completed and is not tried again")
            if by_time_out:
                operation._run("on_expiration", "the operation is completed")
        except BaseException:
            # The other operations count as completed, too: no other thread runs their hooks.
            _run_last_hooks(queue)
            raise
