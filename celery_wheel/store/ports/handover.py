"""The port of a drain: read every pending task as a whole message, and mark tasks as moved once they are elsewhere.

Recurring schedules are read with their changes; the drain removes them as every holder does, by ``Store.apply``.

Every write begins with the fence of the shard's epoch, like every write of a holder: it raises Fenced and writes
nothing where another holder has the shard. A transaction has at most a thousand rows, and a later call does not find
them again: every method can be interrupted at any point and called again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from celery_wheel.store.model import Message, Position
from celery_wheel.store.schedule_model import Revision, Schedule

#: The outcome of a message that a drain took away.
MOVED = "moved"


@dataclass(slots=True, eq=False)
class HandoverMessage:
    """A stored message. ``redelivered``: it may be in its queue already. ``outcome``: why a stopped message stopped."""

    id: int
    shard: int
    due_ms: int
    message: Message
    redelivered: bool = False
    outcome: str | None = None
    reason: str | None = None
    accepted_ms: int = 0  #: of ``find`` alone


@dataclass(slots=True, eq=False)
class HandoverSchedule:
    """A stored schedule with its changes, the first one first."""

    shard: int
    schedule: Schedule
    revisions: list[Revision]


@dataclass(frozen=True, slots=True)
class ShardEpoch:
    """A shard at the epoch that may write to it."""

    shard: int
    epoch: int
    now_ms: int


class Handover(Protocol):
    def pending(self, shard: int) -> Iterator[HandoverMessage]:
        """Iterate over the pending messages of all lanes, in order of position, with their bytes, a page at a time."""

    def stopped(self, shard: int, kinds: Collection[str]) -> Iterator[HandoverMessage]:
        """Iterate over the stopped messages whose last outcome is of these kinds, in the order of their ids."""

    def find(self, shard: int, envelope_ids: Sequence[str]) -> list[HandoverMessage]:
        """Return the messages with these ids that the shard has, pending or not, with their bytes."""

    def count_pending(self, shard: int) -> int:
        """Return how many rows are after their lane's offset, counted row by row."""

    def count_stopped(self, shard: int, kinds: Collection[str]) -> int: ...

    def schedules(self, shard: int) -> Iterator[HandoverSchedule]:
        """Iterate over the schedules of a shard in the order of their ids, a page at a time."""

    def count_schedules(self, shard: int) -> int: ...

    def count_inbox(self) -> int:
        """Return how many messages and commands the inboxes of all shards have, with those of committed loads."""

    def mark_moved(self, hold: ShardEpoch, ids: Sequence[int], reason: str) -> int:
        """Give the pending and the stopped rows among ``ids`` the outcome "moved"; returns how many were pending."""

    def mark_early_moved(self, hold: ShardEpoch, reason: str) -> int:
        """Give rows that were dispatched before they were due the outcome "moved"; returns their number."""

    def offsets_to_correct(self, shard: int, now_ms: int) -> dict[int, Position]:
        """Return lanes with another offset that they may have once nothing is pending in them: lanes whose watermark is
        in the future, or that are in doubt. The new offset is after every row in the lane and before every later row.
        """
