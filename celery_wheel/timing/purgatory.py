"""Where operations wait: "do it as soon as it can be done, and at the latest then".

::

    try_complete_else_watch(operation, keys)          check_and_complete(key)          the time-out
       1 try_complete ──► True: done                     copy of the key's list           SystemTimer ◄── Reaper
       2 into the timer                                  try_complete of each in it       force_complete
       3 into the list of each key                       the completed leave the list     on_expiration
       4 try_complete once more ◄── what happened between 1 and 3 is seen here
       │
       └──► completed, by whomever: out of the timer at once; its entries leave when 1,000 entries are left behind

The worked example: a page waits until two more departures are known, 30,000 ms at most::

    at 0        try_complete_else_watch(page, ["JFK", "LGA"]) → False    watched 2, delayed 1
    at 4,000    a departure from JFK; check_and_complete("JFK") → 0      it is one: not enough
    at 9,000    a departure from LGA; check_and_complete("LGA") → 1      on_complete. watched 1, delayed 0
    at 9,000    the entry under "JFK" is left behind, until the next check of "JFK" or the purge
    at 30,000   nothing: the timer was cancelled. Else it would be: on_complete, then on_expiration

Promises:
  - Exactly once, among any number of threads that check, force and expire: see ``delayed_operation``.
  - No wake-up is lost. Whoever makes an operation ready and then checks a key under which it is watched, or is being
    watched, gets it completed: by this call, or by the thread that is at the operation at this moment.
  - No thread waits for another's hook, and none of the locks here is held while a hook runs.
  - Of completed operations at most ``purge_interval`` entries are left behind, once the calls that complete them are
    over. A purge costs what it removes, not what waits; it falls to the thread whose completion goes beyond the bound.

Not promised:
  - That an operation is completed when ``check_and_complete`` comes back: another thread may be about to do it. Nor,
    where it is called by a hook, that the ``on_complete`` of what it completed has run: that comes after the hook.
  - Time-outs go by the wall clock, to which the timer is bound: a step forward brings them early, one back late. They
    come up to 1 ms short of ``delay_ms``, because the wall clock's "now" is rounded down.
  - Durability, and other processes: what waits is lost with this one.

Source: ``DelayedOperationPurgatory`` of Kafka's org.apache.kafka.server.purgatory, with the second look of its
``safeTryCompleteOrElse``. Kafka's purge walks all watch lists every 1,000 completions, in the reaper's thread.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Hashable, Iterable
from types import TracebackType

from celery_wheel.timing.arguments import integer
from celery_wheel.timing.clock import SystemClock
from celery_wheel.timing.delayed_operation import DelayedOperation
from celery_wheel.timing.reaper import Reaper
from celery_wheel.timing.system_timer import SystemTimer
from celery_wheel.timing.watch_lists import Watch, WatchLists

logger = logging.getLogger(__name__)


class Purgatory:
    """Operations by the keys that may complete them. All methods may be called from any thread, hooks included.

    Args:
        name: for the log, and for the thread.
        timer: expires the operations, by its own clock. It stays the caller's to shut down, after the purgatory.
            None makes one with the clock of this machine.
        shards: among how many locks the watch lists are shared out, at least 1.
        purge_interval: how many entries of completed operations may be left in the watch lists, at least 0.
        reaper: whether the purgatory runs a thread that advances the timer. False where somebody else does: a test
            that drives it by hand, or the one Reaper of a timer that is shared.
    """

    def __init__(
        self,
        name: str,
        timer: SystemTimer | None = None,
        shards: int = 64,
        purge_interval: int = 1_000,
        *,
        reaper: bool = True,
    ) -> None:
        self._name = name
        self._lists = WatchLists(integer("shards", shards, at_least=1))
        self._purge_interval = integer("purge_interval", purge_interval, at_least=0)
        self._lock = threading.Lock()  # for what follows
        self._delayed = 0
        self._left_behind: list[Watch] = []
        self._entries_left_behind = 0
        self._shut_down = False
        self._owns_timer = timer is None
        self._timer = SystemTimer(SystemClock()) if timer is None else timer
        self._reaper = Reaper(self._timer, f"celery-wheel-purgatory-{name}") if reaper else None
        if self._reaper is not None:
            self._reaper.start()

    @property
    def watched(self) -> int:
        """How many entries the watch lists have; an operation has one under each of its keys, for a while also after
        it is completed."""
        return len(self._lists)

    @property
    def delayed(self) -> int:
        """How many operations are watched and not completed."""
        return self._delayed

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """Complete an operation if it is ready; else have it wait for a check of its keys, or for its time-out.

        Args:
            operation: one that was never watched.
            keys: whatever may make it ready, at least one.

        Returns:
            True if this call completed it; False if it waits, or if another thread or the time-out was quicker.

        Raises:
            RuntimeError: the purgatory or its timer is shut down, or the operation was watched before; it does not
                wait here.
        """
        watch = Watch(operation, keys)
        if operation._attempt():
            return True
        if operation.completed:
            return False
        self._take_in(operation)
        try:
            due_at_ms = self._timer.clock.now_ms() + operation.delay_ms
            self._timer.add(watch, due_at_ms, functools.partial(self._expire, operation))
        except RuntimeError:
            self._settle(watch)
            operation._watched = False  # it waits nowhere and may be watched elsewhere
            raise
        self._lists.add(watch)
        # Only now may it be told to settle: a purge before the last entry was made would leave that one for ever.
        operation._settle = functools.partial(self._settle, watch)
        if operation.completed:
            self._settle(watch)
        if self._shut_down:
            # Whoever shuts down says so first and then walks the lists: one of us sees the other.
            self._timer.cancel(watch)
        return operation._attempt()

    def check_and_complete(self, key: Hashable) -> int:
        """Complete what waits for a key and is ready, in the order of watching.

        Returns:
            How many operations this call completed; those that another thread completes meanwhile are not counted.
        """
        found = self._lists.of(key)
        if not found:
            return 0
        completed = sum(watch.operation._attempt() for watch in found)
        if done := [watch for watch in found if watch.operation.completed]:
            self._lists.remove(key, done)
        return completed

    def shutdown(self) -> None:
        """End it: nothing is watched or expires any more. What waits is not completed (``delayed`` says how much)."""
        with self._lock:
            self._shut_down = True
        if self._owns_timer:
            self._timer.shutdown()
        if self._reaper is not None:
            self._reaper.stop()
        for watch in self._lists:
            self._timer.cancel(watch)
        logger.info(
            "purgatory %s is shut down; %d operations wait in it and will not expire",
            self._name,
            self._delayed,
            extra={"action": "shutdown", "purgatory": self._name, "delayed": self._delayed},
        )

    def __enter__(self) -> Purgatory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _take_in(self, operation: DelayedOperation) -> None:
        with self._lock:
            if self._shut_down:
                raise RuntimeError(f"purgatory {self._name} is shut down; {operation!r} does not wait; make a new one")
            if operation._watched:
                raise RuntimeError(f"{operation!r} is watched already, here or elsewhere; make a new operation")
            operation._watched = True
            self._delayed += 1

    def _expire(self, operation: DelayedOperation) -> None:
        # The timer may have taken it before the shutdown: with the one whose hook shut down, or on an executor.
        if not self._shut_down:
            operation._expire()

    def _settle(self, watch: Watch) -> None:
        """Note that an operation is completed; the first time it is told."""
        with self._lock:
            if watch.settled:
                return
            watch.settled = True
            self._delayed -= 1
            self._left_behind.append(watch)
            self._entries_left_behind += len(watch.keys)
            purge: list[Watch] = []
            if self._entries_left_behind > self._purge_interval:
                purge, self._left_behind, self._entries_left_behind = self._left_behind, [], 0
        # The operation knows its watch through this, and its watch the operation: without it they go at once.
        watch.operation._settle = None
        self._timer.cancel(watch)
        self._lists.purge(purge)
