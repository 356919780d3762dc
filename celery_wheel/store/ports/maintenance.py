"""The port for work on a whole store: another number of shards, another database, and the marks of an archive.

::

    number   ──────────────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                  forgotten         archived                    seq
                  └ history up to   └ an archive has all        └ the highest number taken
                    it is gone        history up to it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: The remedy where history waits for the archive.
ARCHIVE = "run: celery-wheel-pipeline archive --store <wheel_store> --output <archive>"

#: The step of the epochs of a store that was moved on purpose: no count of takeovers reaches it, so a broker knows the
#: store from a copy that was forgotten, and the old one is fenced.
EPOCH_LEAP = 10**9

#: The shard of a task: (key or None, task id, number of shards) → shard.
ShardOf = Callable[[str | None, str, int], int]


@dataclass(slots=True)
class Resharded:
    before: int
    after: int
    moved: int = 0  #: pending tasks that changed their shard
    doubled: int = 0  #: pending tasks that were removed, since their new shard has the same message
    forgotten: int = 0  #: rows of history of the removed shards
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


#: Called with the step of a move, the number of rows that are copied, and their total.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class MovedStore:
    place: str  #: of the new store, for people
    resumed: bool = False  #: an earlier move had copied everything
    rows: dict[str, int] = field(default_factory=dict)  #: copied rows by table


@dataclass(frozen=True, slots=True)
class Unarchived:
    """``at_ms``: the instant of a shard's oldest event that is not archived; ``mark``: the number archived."""

    shard: int
    mark: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Archivable:
    """A shard's numbers, and its events that are not archived.

    ``first_ms``: the instant of the first event after ``forgotten``; ``days``: events by day, counted from the epoch.
    """

    shard: int
    seq: int
    forgotten: int
    archived: int
    first_ms: int | None
    days: dict[int, int]


class Maintenance(Protocol):
    def reshard(self, shards: int, shard_of: ShardOf, now_ms: int, *, archived_only: bool = False) -> Resharded:
        """Give the store ``shards`` shards, in one transaction.

        Raises StoreUnusable, with the remedy, where that is impossible now.

        Args:
            archived_only: refuse where history would be removed that is not archived.
        """

    def leap(self) -> None:
        """Raise every shard's epoch by EPOCH_LEAP, durably: the store goes on at a new place."""

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Raise each shard's mark to the number up to which an archive has all history, durably; never lower it."""

    def unarchived(self) -> list[Unarchived]:
        """Return the oldest event after its mark for each shard that has one."""

    def archivable(self, after: Mapping[int, int]) -> list[Archivable]:
        """Return all shards in order, at one moment.

        Args:
            after: shard → number after which events are counted; a missing shard counts from 0.
        """
