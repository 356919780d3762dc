"""Watch lists: the operations that wait for each key, in shards with a lock each.

::

    hash("order:42") % 64 = 17 ──► shard 17   lock   "order:42" → [watch a, watch b]        2 entries
                                                     "order:99" → [watch b]                 1 entry
    hash("flight:7") % 64 = 3  ──► shard 3    lock   "flight:7" → [watch b]                 1 entry

A *watch* is one operation under all its keys; it has an entry in the list of each key. A list is a dict without values:
it keeps the order of watching, and an entry is removed in O(1).

Promises:
  - No lock is held while code of the caller runs, except ``__hash__`` and ``__eq__`` of keys; no lock within another.
  - A key without entries is removed. ``len`` counts the entries exactly, in O(shards).

Source: ``WatcherList`` and ``Watchers`` in Kafka's DelayedOperationPurgatory, whose purge walks all lists.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator

from celery_wheel.timing.delayed_operation import DelayedOperation


class OperationWatch:
    """One operation and the keys under which it is watched. Equal only to itself, also where operations are equal.

    Attributes:
        operation: the operation that waits.
        keys: distinct keys, at least one.
        settled: whether the purgatory has accounted for the completion.
    """

    __slots__ = ("keys", "operation", "settled")

    def __init__(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys must be a collection of keys, got {keys!r}; one key alone is [{keys!r}]")
        self.operation = operation
        self.keys = tuple(dict.fromkeys(keys))
        self.settled = False
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

    Args:
        shards: number of locks among which the keys are distributed, at least 1.
    """

    def __init__(self, shards: int) -> None:
        self._shards = [_WatchShard() for _ in range(shards)]

    def add(self, watch: OperationWatch) -> None:
        """Append a watch to the list of each of its keys."""
        for key in watch.keys:
            shard = self._shard(key)
            with shard.lock:
                watches = shard.lists.get(key)
                if watches is None:
                    shard.lists[key] = watches = {}
                watches[watch] = None
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
