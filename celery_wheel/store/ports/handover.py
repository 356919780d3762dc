"""What leaving asks of a store: all pending tasks as whole messages, and laying them to rest when they are elsewhere.

Every write begins with the fence of the shard's epoch, as all of a holder's do: it raises Fenced and writes nothing
where another holder has the shard. Some thousand rows a transaction, and whatever is done is not found by the next
call: so each can be stopped at any point and called again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_wheel.store.model import Message, Position


@dataclass(slots=True, eq=False)
class Kept:
    """A stored message on its way out. ``again``: it may be in its queue already. ``set_aside``: why it rests."""

    id: int
    shard: int
    due_ms: int
    message: Message
    redelivered: bool = False
    set_aside: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A shard at the epoch that may write to it."""

    shard: int
    epoch: int
    now_ms: int


class Handover(Protocol):
    def waiting(self, shard: int) -> Iterator[Kept]:
        """The pending messages of all lanes, in order of position, with all their bytes, read a page at a time."""

    def set_aside(self, shard: int, kinds: Collection[str]) -> Iterator[Kept]:
        """Resting messages whose last outcome is of these kinds, in the order of their ids."""

    def count_waiting(self, shard: int) -> int:
        """How many rows are behind their lane's offset; counted row by row."""

    def count_set_aside(self, shard: int, kinds: Collection[str]) -> int: ...

    def count_inbox(self) -> int:
        """Messages and commands in the inboxes of all shards, with the messages of committed loads."""

    def rest(self, hold: Hold, ids: Sequence[int], reason: str) -> int:
        """Move those of the rows that are pending, and those set aside, to rest; returns how many were pending."""

    def rest_early(self, hold: Hold, reason: str) -> int:
        """Lay to rest the rows of batches that were dispatched before they were due; returns how many."""

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, Position]:
        """Lanes whose offset is ahead of the clock, or that are in doubt, with the offset they may have when nothing
        is pending: behind every row that is left in them, and before every row that comes."""
