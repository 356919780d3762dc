"""Which operations wait for which key: lists by key, in shards, each behind a lock of its own.

::

    hash("order:42") % 64 = 17 ──► shard 17   lock   "order:42" → [watch a, watch b]        2 entries
                                                     "order:99" → [watch b]                 1 entry
    hash("flight:7") % 64 = 3  ──► shard 3    lock   "flight:7" → [watch b]                 1 entry

A *watch* is one operation under all its keys; it has an entry in the list of each. A list is a dict without values:
it keeps the order of watching, and an entry leaves it in O(1), however many others there are.

Promises:
  - No lock is held while anybody else's code runs, but the ``__hash__`` and ``__eq__`` of keys; none within another.
  - A key whose list is empty is gone. ``len`` counts the entries exactly, in O(shards).

Source: ``WatcherList`` and ``Watchers`` in Kafka's DelayedOperationPurgatory, whose purge walks all lists.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator

from celery_wheel.timing.delayed_operation import DelayedOperation


class Watch:
    """One operation and the keys it is watched under. Equal to itself only, whatever the operation says of itself.

    Attributes:
        operation: what waits.
        keys: without repetitions, at least one.
        settled: whether the purgatory has noted that the operation is completed.
    """

    __slots__ = ("keys", "operation", "settled")

    def __init__(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys must be a collection of keys, got {keys!r}; one key alone is [{keys!r}]")
        self.operation = operation
        self.keys = tuple(dict.fromkeys(keys))
        self.settled = False
        if not self.keys:
            raise ValueError(f"keys must hold at least one key, got none; nothing would ever check {operation!r}")

    def __repr__(self) -> str:
        return f"Watch({self.operation!r}, keys={self.keys!r})"


class _Shard:
    __slots__ = ("entries", "lists", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lists: dict[Hashable, dict[Watch, None]] = {}
        self.entries = 0


class WatchLists:
    """The watches of a purgatory by key. All methods may be called from any thread.

    Args:
        shards: among how many locks the keys are shared out, at least 1.
    """

    def __init__(self, shards: int) -> None:
        self._shards = [_Shard() for _ in range(shards)]

    def add(self, watch: Watch) -> None:
        """Enter a watch under each of its keys, at the end."""
        for key in watch.keys:
            shard = self._shard(key)
            with shard.lock:
                watches = shard.lists.get(key)
                if watches is None:
                    shard.lists[key] = watches = {}
                watches[watch] = None
                shard.entries += 1

    def of(self, key: Hashable) -> list[Watch]:
        """Return a copy of a key's list, in the order of watching."""
        shard = self._shard(key)
        with shard.lock:
            return list(shard.lists.get(key, ()))

    def remove(self, key: Hashable, watches: list[Watch]) -> None:
        """Take watches out of a key's list; those that are not in it do not matter."""
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

    def purge(self, watches: list[Watch]) -> None:
        """Take watches out of the lists of all their keys."""
        by_key: dict[Hashable, list[Watch]] = {}
        for watch in watches:
            for key in watch.keys:
                by_key.setdefault(key, []).append(watch)
        for key, concerned in by_key.items():
            self.remove(key, concerned)

    def __len__(self) -> int:
        return sum(shard.entries for shard in self._shards)

    def __iter__(self) -> Iterator[Watch]:
        """Yield every entry there was as each shard was looked at: a watch once for each of its keys."""
        for shard in self._shards:
            with shard.lock:
                watches = [watch for watched in shard.lists.values() for watch in watched]
            yield from watches

    def _shard(self, key: Hashable) -> _Shard:
        return self._shards[hash(key) % len(self._shards)]
