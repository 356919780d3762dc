"""Depths: how many messages may still go to the queues of ``wheel_queue_depth``; one Depth for all shards of a process.

::

    wheel_queue_depth 500, ready 380, on their way 20      room 100, for any shard of the process
    three shards have lines that wait for the queue        a part of 34 for each, until the next reading

A reading comes with the answer to a publication (Redis), and else from the broker, at least every DEPTH_MS while rows
wait. It is of the queue, so all shards use it: a shard whose groups wait alone fills all the room.

Promises: between two readings the shards of a process put no more than the room into the queue, and what they have
released or admitted before counts. Non-promises: another process reads for itself, so the queue may have up to as many
times the depth as there are processes; so may it while a reading is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

#: A depth is read again after this time while rows wait for it, and after IDLE_MS while rows pass.
DEPTH_MS, DEPTH_IDLE_MS = 100, 1_000


class User(Protocol):
    """A shard's view of the queue."""

    lines: int  #: lines that wait for the queue
    on_their_way: int  #: rows that were admitted or released, and are not published yet


class Depth:
    def __init__(self, most: int) -> None:
        self._most = most  #: messages that may be ready in the queue
        self._lock = threading.Lock()  #: shards of other threads take of the same room
        self.users = set[User]()
        self.room = 0  #: how many may be published until the next reading
        self.part = 0  #: how many of them by one shard
        self.readings = 0
        self.arrived = 0  #: rows that were published so far
        self.passed = 0  #: rows that passed since the last reading, or wanted to
        self._read_at_ms: int | None = None  #: monotonic, as is every time here
        self._asked_at_ms: int | None = None

    def join(self, user: User) -> None:
        """Add a shard, which another process may have had: what that one has published is read before more is."""
        with self._lock:
            self.users.add(user)
            self.room, self._read_at_ms, self._asked_at_ms = 0, None, None

    def take(self, most: int) -> int:
        """Take up to so many places; returns how many."""
        with self._lock:
            taken = min(most, self.room)
            self.room -= taken
            self.passed += taken
        return taken

    def miss(self) -> None:
        """Note that a row found no room."""
        with self._lock:
            self.passed += 1

    def arrive(self) -> None:
        with self._lock:
            self.arrived += 1

    def read(self, ready: int, now_ms: int, since: int | None = None) -> None:
        """Note how many messages are ready; ``since``: what ``ask`` returned, unless rows have arrived just before."""
        with self._lock:
            late = 0 if since is None else self.arrived - since
            users = list(self.users)
            self.room = max(0, self._most - ready - late - sum(one.on_their_way for one in users))
            self.part = -(-self.room // max(1, sum(one.lines > 0 for one in users)))
            self.readings += 1
            self._read_at_ms, self.passed = now_ms, 0

    def in_ms(self, now_ms: int, is_awaited: bool) -> int | None:
        """Return in how many milliseconds the depth is to be read; None: nobody needs it."""
        last_ms = [at_ms for at_ms in (self._read_at_ms, self._asked_at_ms) if at_ms is not None]
        if not last_ms:
            return 0
        if self._read_at_ms is not None and not (is_awaited or self.passed):
            return None
        each_ms = DEPTH_MS if is_awaited or not self.room else DEPTH_IDLE_MS
        return max(0, max(last_ms) + each_ms - now_ms)

    def ask(self, now_ms: int) -> int:
        """Note that a shard reads the depth now, so that no other one does; returns ``since`` for ``read``."""
        self._asked_at_ms = now_ms
        return self.arrived


Depths = Mapping[str, Depth]


def depths_of(most: Mapping[str, int]) -> Depths:
    """Return the depths of queues by the most messages that may be ready in each."""
    return {queue: Depth(count) for queue, count in most.items()}
