"""The tombstone filter: a Bloom filter of the task ids that have a tombstone; the tombstones are in the store.

::

    cancel of an unknown id ─► a tombstone row in every shard that gets the command, for a day
                               └ its bits in the filter: 40 bits an id at most, whatever the id's length
    a message arrives ─► may its id have a tombstone?   no: accept the message  ·  perhaps: read the store

100,000 tombstones cost 500 KB a shard. The filter says "perhaps" for about 1 in 1,000 ids without a tombstone, which
costs one read of the store. Bits are never cleared one by one: the filter is filled anew from the store when it holds
more ids than its capacity, which is twice the ids at the last filling and at least FEWEST, and when a scheduler adopts
the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b

#: Bits in the filter for each id of its capacity, and how many bits an id sets.
BITS, PROBES = 20, 4

#: Capacity in ids of the smallest filter, which has 2.5 kB.
FEWEST = 1_000


class TombstoneFilter:
    """Answers "certainly not" or "perhaps". The caller holds the state's lock."""

    def __init__(self, task_ids: Collection[str] = ()) -> None:
        self._capacity = max(FEWEST, 2 * len(task_ids))
        self._size = self._capacity * BITS
        self._bits = bytearray(self._size // 8 + 1)
        self._count = 0
        self._meanwhile: list[str] | None = None
        self.add(task_ids)

    def __len__(self) -> int:
        """Return how many ids were added; an id that was added twice counts twice."""
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the filter should be filled anew, since it answers "perhaps" too often."""
        return self._count > self._capacity

    def add(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self._count += 1
            if self._meanwhile is not None:
                self._meanwhile.append(task_id)
            for place in self._places(task_id):
                self._bits[place >> 3] |= 1 << (place & 7)

    def begin_refill(self) -> None:
        """Remember the ids added from now on: the store is being read for the next filter, and may not show them."""
        self._meanwhile = []

    def added_meanwhile(self) -> list[str]:
        return self._meanwhile or []

    def candidates(self, task_ids: Iterable[str]) -> list[str]:
        """Return the ids that may have a tombstone; the other ids certainly have none."""
        if not self._count:
            return []
        bits = self._bits
        return [one for one in task_ids if all(bits[at >> 3] & 1 << (at & 7) for at in self._places(one))]

    def _places(self, task_id: str) -> list[int]:
        digest = blake2b(task_id.encode(), digest_size=8 * PROBES).digest()
        return [int.from_bytes(digest[n : n + 8]) % self._size for n in range(0, 8 * PROBES, 8)]
