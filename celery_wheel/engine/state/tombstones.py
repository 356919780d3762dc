"""Cancels of messages that have not come: tombstones of task ids, and revoked stamps.

100,000 tombstones cost 500 KB a shard: 40 bits an id at most. The filter says "perhaps" for about 1 in 1,000 ids
without a tombstone, and then the store is read. Bits are never cleared: the filter is filled anew from the store when
it holds more ids than its capacity, twice those at the last filling. Stamps, as {"campaign": {"spring", "autumn"}}, are
of a process, as in a worker, and end with it: a message with any stamp in common is cancelled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any

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


#: Stamps remembered at most; a worker remembers all.
MOST = 10_000

#: Why a task was cancelled, for people.
BY_STAMP = "revoked by a stamped header"


class RevokedStamps:
    """The revoked stamps; false while none was revoked. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revoked: dict[tuple[str, str], None] = {}  #: (header, stamp as JSON), the oldest first

    def __bool__(self) -> bool:
        return bool(self._revoked)

    def add(self, headers: Mapping[str, Any]) -> None:
        """Revoke stamps, given as header → a stamp or a list of stamps."""
        with self._lock:
            revoked = dict(self._revoked)
            for header, stamps in headers.items():
                for place in _places(header, stamps):
                    revoked.pop(place, None)
                    revoked[place] = None
            for place in list(revoked)[: max(0, len(revoked) - MOST)]:
                del revoked[place]
            self._revoked = revoked

    def match(self, headers: bytes) -> bool:
        """Whether a message with these headers, a JSON object, was revoked."""
        if b'"stamps"' not in headers:  # spares most other messages the JSON
            return False
        stamps = json.loads(headers).get("stamps")
        if not isinstance(stamps, dict):
            return False
        revoked = self._revoked
        return any(place in revoked for header, values in stamps.items() for place in _places(header, values))


def _places(header: str, stamps: Any) -> Iterable[tuple[str, str]]:
    """Return (header, stamp as JSON) for each stamp; a stamp is any JSON value but null."""
    several = stamps if isinstance(stamps, list | tuple | set | frozenset) else [stamps]
    return [(header, json.dumps(stamp, default=str)) for stamp in several if stamp is not None]
