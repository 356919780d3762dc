"""The purgatory: operations wait until they are ready, or for their time-out.

::

    try_complete_else_watch(operation, keys)          check_and_complete(key)               the time-out
       1 try_complete ──► True: done                     copy of the key's list                SystemTimer ◄── Reaper
       2 add to the timer                                try_complete of each in it            force_complete
       3 add to the list of each key                     remove the completed from the list    on_expiration
       4 try_complete once more ◄── finds a change between 1 and 3

The lists are in shards with a lock each, by the key's hash; a *watch* is one operation under all its keys. Completed by
any event, an operation leaves the timer at once; its entries in the lists are stale until they are purged.

Promises:
  - Exactly once, among any number of threads that check, force and expire: see ``delayed_operation``.
  - No wake-up is lost: an operation that is made ready before a check of a key under which it is watched, or is being
    watched, is completed by that check, or by the thread that runs its ``try_complete`` at that moment.
  - No thread waits for another's hook. No lock is held while code of the caller runs, except ``__hash__`` and
    ``__eq__`` of keys; no lock within another.
  - At most ``purge_interval`` entries are stale, once the calls that complete their operations have returned.

Not promised: completion by the time ``check_and_complete`` returns, as another thread may be about to complete the
operation; time-outs by the monotonic clock: a step of the wall clock brings them early or late; durability.

Source: ``DelayedOperationPurgatory`` of Kafka's org.apache.kafka.server.purgatory; its purge walks all watch lists.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Hashable, Iterable, Iterator

from celery_wheel.timing.arguments import integer
from celery_wheel.timing.clock import SystemClock
from celery_wheel.timing.delayed_operation import DelayedOperation
from celery_wheel.timing.system_timer import Reaper, SystemTimer

logger = logging.getLogger(__name__)


class Purgatory:
    """Operations by the keys that may complete them. All methods may be called from any thread, hooks included.

    Args:
        name: for the log, and for the thread.
        timer: expires the operations, by its own clock. The caller shuts it down, after the purgatory. None makes a
            timer with the clock of this machine.
        shards: number of locks among which the watch lists are distributed, at least 1.
        purge_interval: number of stale entries that may remain in the watch lists, at least 0.
        reaper: whether the purgatory runs a thread that advances the timer. False where a test advances it, or the
            Reaper of a shared timer.
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
        self._lock = threading.Lock()  # for the next four attributes
        self._delayed = 0
        self._stale: list[OperationWatch] = []
        self._stale_entries = 0
        self._shut_down = False
        self._owns_timer = timer is None
        self._timer = SystemTimer(SystemClock()) if timer is None else timer
        self._reaper = Reaper(self._timer, f"celery-wheel-purgatory-{name}") if reaper else None
        if self._reaper is not None:
            self._reaper.start()

    @property
    def watched(self) -> int:
        """Number of entries in the watch lists, one under each key of an operation; stale entries count too."""
        return len(self._lists)

    @property
    def delayed(self) -> int:
        """Number of operations that are watched and not completed."""
        return self._delayed

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """Complete an operation if it is ready; else let it wait for a check of its keys or for its time-out.

        Returns True if this call completed it; False if it waits, or if another thread or the time-out was quicker.
        Raises RuntimeError where the purgatory or its timer is shut down, or the operation was watched before.

        Args:
            keys: keys of the events that may make it ready, at least one.
        """
        watch = OperationWatch(operation, keys)
        if operation._attempt():
            return True
        if operation.completed:
            return False
        self._register(operation)
        try:
            due_at_ms = self._timer.clock.now_ms() + operation.delay_ms
            self._timer.add(watch, due_at_ms, functools.partial(self._expire, operation))
        except RuntimeError:
            self._settle(watch)
            operation._watched = False  # another purgatory may watch it
            raise
        self._lists.add(watch)
        # Set only now: a purge before the last entry was made would leave that entry for ever.
        operation._settle = functools.partial(self._settle, watch)
        if operation.completed:
            self._settle(watch)
        if self._shut_down:
            # ``shutdown`` sets the flag before it walks the lists: either it finds this entry, or the flag is set here.
            self._timer.cancel(watch)
        return operation._attempt()

    def check_and_complete(self, key: Hashable) -> int:
        """Complete the operations that wait for a key and are ready, in the order of watching.

        Returns the number of those that this call completed, and not another thread meanwhile.
        """
        found = self._lists.of(key)
        if not found:
            return 0
        completed = sum(watch.operation._attempt() for watch in found)
        if done := [watch for watch in found if watch.operation.completed]:
            self._lists.remove(key, done)
        return completed

    def shutdown(self) -> None:
        """Stop watching and expiring operations; pending operations are not completed (``delayed`` counts them)."""
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

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _register(self, operation: DelayedOperation) -> None:
        with self._lock:
            if self._shut_down:
                raise RuntimeError(f"purgatory {self._name} is shut down; {operation!r} does not wait; make a new one")
            if operation._watched:
                raise RuntimeError(f"{operation!r} is watched already, here or elsewhere; make a new operation")
            operation._watched = True
            self._delayed += 1

    def _expire(self, operation: DelayedOperation) -> None:
        # The timer may have removed it before the shutdown: with the timer whose hook shut down.
        if not self._shut_down:
            operation._complete(expired=True)

    def _settle(self, watch: OperationWatch) -> None:
        """Account for a completed operation, once: it no longer counts as delayed, and its entries are stale."""
        with self._lock:
            if watch.settled:
                return
            watch.settled = True
            self._delayed -= 1
            self._stale.append(watch)
            self._stale_entries += len(watch.keys)
            purge: list[OperationWatch] = []
            if self._stale_entries > self._purge_interval:
                purge, self._stale, self._stale_entries = self._stale, [], 0
        # Break the reference cycle of operation and watch, so that both are freed at once.
        watch.operation._settle = None
        self._timer.cancel(watch)
        self._lists.purge(purge)


class OperationWatch:
    """One operation and the keys under which it is watched. Equal only to itself, also where operations are equal."""

    __slots__ = ("keys", "operation", "settled")

    def __init__(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys must be a collection of keys, got {keys!r}; one key alone is [{keys!r}]")
        self.operation = operation
        self.keys = tuple(dict.fromkeys(keys))
        self.settled = False  #: whether the purgatory has accounted for the completion
        if not self.keys:
            raise ValueError(f"keys must hold at least one key, got none; no check would ever find {operation!r}")

    def __repr__(self) -> str:
        return f"Watch({self.operation!r}, keys={self.keys!r})"


class _WatchShard:
    __slots__ = ("entries", "lists", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lists: dict[Hashable, dict[OperationWatch, None]] = {}
        self.entries = 0


class WatchLists:
    """The watches of a purgatory by key. All methods may be called from any thread.

    A list is a dict without values: it keeps the order of watching, and an entry is removed in O(1). A key without
    entries is removed. ``len`` counts the entries exactly, in O(shards).
    """

    def __init__(self, shards: int) -> None:
        self._shards = [_WatchShard() for _ in range(shards)]

    def add(self, watch: OperationWatch) -> None:
        for key in watch.keys:
            shard = self._shard(key)
            with shard.lock:
                shard.lists.setdefault(key, {})[watch] = None
                shard.entries += 1

    def of(self, key: Hashable) -> list[OperationWatch]:
        """Return a copy of a key's list, in the order of watching."""
        shard = self._shard(key)
        with shard.lock:
            return list(shard.lists.get(key, ()))

    def remove(self, key: Hashable, watches: list[OperationWatch]) -> None:
        """Remove watches from a key's list; watches that are not in it are ignored."""
        shard = self._shard(key)
        with shard.lock:
            left = shard.lists.get(key)
            if left is None:
                return
            before = len(left)
            for watch in watches:
                left.pop(watch, None)
            shard.entries -= before - len(left)
            if not left:
                del shard.lists[key]
            elif len(left) < len(watches):
                # A dict that has shrunk keeps the room of all that were in it, and walks it with every look.
                shard.lists[key] = dict(left)

    def purge(self, watches: list[OperationWatch]) -> None:
        """Take watches out of the lists of all their keys."""
        by_key: dict[Hashable, list[OperationWatch]] = {}
        for watch in watches:
            for key in watch.keys:
                by_key.setdefault(key, []).append(watch)
        for key, concerned in by_key.items():
            self.remove(key, concerned)

    def __len__(self) -> int:
        return sum(shard.entries for shard in self._shards)

    def __iter__(self) -> Iterator[OperationWatch]:
        """Yield every entry, as of the read of each shard: a watch once for each of its keys."""
        for shard in self._shards:
            with shard.lock:
                watches = [watch for watched in shard.lists.values() for watch in watched]
            yield from watches

    def _shard(self, key: Hashable) -> _WatchShard:
        return self._shards[hash(key) % len(self._shards)]
