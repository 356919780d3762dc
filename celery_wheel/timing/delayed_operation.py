"""An operation that waits for something, and at most so long: it completes exactly once, whoever comes first.

::

    Purgatory.check_and_complete ──► try_complete() says True ──┐
    the time-out, by the Reaper ────────────────────────────────┼──► one of them wins ──► on_complete()
    anybody ──► force_complete() ───────────────────────────────┘         │
                                                                          └─ the time-out won ──► on_expiration()

Promises:
  - ``on_complete`` runs once, in the thread that won; ``completed`` is True from before it. ``on_expiration`` runs
    only after it, and only when the time-out won.
  - What an ``on_complete`` completes in turn has its own run when that one is over, by the same thread: a chain of a
    million operations, each of which completes the next, is a loop and not a million calls deep.
  - ``try_complete`` is never run by two threads at once, and nobody waits for it: whoever comes while it runs leaves
    word, and the thread that runs it runs it again. So a check that began before a change is never the last one.
  - Hooks run without any lock of this package: they may check keys, watch operations, shut the purgatory down.
  - A hook that raises is logged with its operation and ends there: one that could not say whether it is ready is
    not ready, one that could not complete is completed and is not tried again.
  - What is no Exception (KeyboardInterrupt, SystemExit, the time-out of a green thread) is let through, after the last
    hooks of whatever else this thread has completed. It ends the hooks of the one operation alone.

Not promised:
  - That ``try_complete`` is not running while another thread completes the operation by force or by time-out.
  - A ``try_complete`` that checks a key under which its own operation is watched: it would ask itself for ever.
  - That word is heeded which was left while a ``try_complete`` ran that was then ended by what is no Exception: the
    next check finds the operation, or its time-out does.

Source: ``DelayedOperation`` of Kafka's org.apache.kafka.server.purgatory. There the threads wait for each other's
checks, which is why Kafka's manual asks them to hold no lock; leaving word is what it did from KAFKA-6653 on.
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
    """What this thread has completed and not finished, each with whether it was by time-out; None: it is at none."""

    queue: deque[tuple[DelayedOperation, bool]] | None = None


_finishing = _Finishing()


class DelayedOperation(ABC):
    """The base of what waits in a purgatory: say when it is ready, and what is to be done then.

    Args:
        delay_ms: how long it waits at most, from the moment it is watched; at least 0.
    """

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = integer("delay_ms", delay_ms, at_least=0)
        self._completion = threading.Lock()  # taken once, by the winner, and never given back
        self._winner = 0
        self._checking = threading.Lock()  # held while try_complete runs; nobody ever waits for it
        self._again = False
        # The purgatory's: whether it was ever watched, and what it wants to be told when this completes.
        self._watched = False
        self._settle: Callable[[], None] | None = None

    @property
    def delay_ms(self) -> int:
        """How long it waits at most."""
        return self._delay_ms

    @property
    def completed(self) -> bool:
        """Whether somebody has won; ``on_complete`` has begun, or is about to."""
        return self._completion.locked()

    @abstractmethod
    def try_complete(self) -> bool:
        """Say whether the operation can complete now. It is completed if so; calling ``force_complete`` is fine too."""

    @abstractmethod
    def on_complete(self) -> None:
        """Do what was waited for. Runs once, and never in the middle of another operation's ``on_complete``."""

    def on_expiration(self) -> None:  # noqa: B027 - few operations do anything more when it was the time-out
        """Runs after ``on_complete``, if the time-out is why."""

    def force_complete(self) -> bool:
        """Complete it now, ready or not.

        Returns:
            True if this call did; False if it was completed already.
        """
        return self._complete(expired=False)

    def _expire(self) -> None:
        """Complete it because its time is over."""
        self._complete(expired=True)

    def _complete(self, *, expired: bool) -> bool:
        if not self._completion.acquire(blocking=False):
            return False
        self._winner = threading.get_ident()
        # Read after the completion is taken, set by the purgatory before it looks whether it is: one of us sees it.
        try:
            if (settle := self._settle) is not None:
                settle()
        finally:
            # It counts as completed: were the purge to fail by the __eq__ of a key, nobody else would run this.
            self._finish(expired)
        return True

    def _finish(self, expired: bool) -> None:
        """Run the last hooks, or have them run by the call further up this thread's stack that is at another's."""
        if _finishing.queue is not None:
            _finishing.queue.append((self, expired))
            return
        _finishing.queue = queue = deque([(self, expired)])
        try:
            _run_last_hooks(queue)
        finally:
            _finishing.queue = None

    def _attempt(self) -> bool:
        """Run ``try_complete``, or have the thread run it again that is at it; True if this call completed it."""
        if self.completed:
            return False
        self._again = True
        while self._again and not self.completed:
            if not self._checking.acquire(blocking=False):
                # Whoever is at it either has yet to begin, or looks at _again after it has let go.
                return False
            try:
                self._again = False
                if self._run("try_complete", "it is taken as not ready and goes on waiting"):
                    self.force_complete()
            finally:
                self._checking.release()
        # Not what force_complete said: try_complete may have called it itself.
        return self._winner == threading.get_ident()

    def _run(self, hook: str, consequence: str) -> bool:
        try:
            return bool(getattr(self, hook)())
        except Exception:
            logger.exception(
                "%s of %r failed; %s; other operations go on",
                hook,
                self,
                consequence,
                extra={"action": "purgatory", "hook": hook},
            )
            return False

    def __repr__(self) -> str:
        state = "completed" if self.completed else "waiting"
        return f"<{type(self).__name__} {state}, delay_ms={self._delay_ms}>"


def _run_last_hooks(queue: deque[tuple[DelayedOperation, bool]]) -> None:
    """Run those of what is in the queue, and of what is added to it meanwhile."""
    while queue:
        operation, by_time_out = queue.popleft()
        try:
            operation._run("on_complete", "it counts as completed and is not tried again")
            if by_time_out:
                operation._run("on_expiration", "it is completed all the same")
        except BaseException:
            # The others count as completed, too: nobody else would run theirs.
            _run_last_hooks(queue)
            raise
