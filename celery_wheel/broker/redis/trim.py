"""The old end of a wheel queue in Redis: a read of its messages, and the proof that lets ``trim.lua`` remove them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, cast

from redis import Redis

#: Length of a message's tail, and the text in kombu's messages before the tag that makes each tail unique.
TAIL_BYTES, TAG = 128, b', "delivery_tag": "'

#: Messages of one LRANGE at most.
SLICE = 512


class Proof(NamedTuple):
    """The token of a peek, which ``trim.lua`` compares. Two copies of one message count as equal."""

    length: int
    digest: str
    tail: int


def read_oldest(client: Redis, key: str, max_count: int, max_bytes: int) -> tuple[list[bytes], bool]:
    """Return the oldest messages, and whether the queue has more than the bounds allow.

    The list is read in slices from the old end, each up to twice the one before, so that large messages are not read
    far beyond the bounds. The read need not be atomic: only a holder removes messages from this end, and ``trim``
    compares the proof. A script would be slower: it copies every message twice more.
    """
    found: list[bytes] = []
    weight, size = 0, 1
    while len(found) < max_count:
        slice_ = cast(list[bytes], client.lrange(key, -(len(found) + size), -(len(found) + 1)))
        for raw in reversed(slice_):
            if found and weight + len(raw) > max_bytes:
                return found, True
            found.append(raw)
            weight += len(raw)
        if len(slice_) < size:
            return found, False
        fitting = (max_bytes - weight) * len(found) // max(1, weight)
        size = max(1, min(2 * size, SLICE, max_count - len(found), fitting))
    return found, client.llen(key) > len(found)


def proof_of(found: Sequence[bytes]) -> Proof:
    """Return the proof of these messages, oldest first."""
    tail = TAIL_BYTES
    marks = [b"%d:%b" % (len(raw), raw[-tail:]) for raw in found]
    if not all(TAG in mark for mark in marks):
        tail = max(map(len, found))
        marks = [b"%d:%b" % (len(raw), raw) for raw in found]
    return Proof(len(found), hashlib.sha1(b"".join(marks), usedforsecurity=False).hexdigest(), tail)
