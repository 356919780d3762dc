"""What is done to a store as a whole: another number of shards, and what an archive of its history needs.

::

    number   ──────────────────────────────────────────────────────────────►   of settlements and outcomes, in one order
                  forgotten         archived                    seq
                  └ history up to   └ all up to it is in an     └ the highest number given
                    it is gone        archive
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

#: What to run where history waits for it.
ARCHIVE = "run: celery-wheel-pipeline archive --store <wheel_store> --output <archive>"

#: Which shard a task belongs to, by its key (or None) and its task id, of how many.
ShardOf = Callable[[str | None, str, int], int]


@dataclass(slots=True)
class Resharded:
    before: int
    after: int
    moved: int = 0  #: pending tasks that have another shard now
    forgotten: int = 0  #: rows of history of shards that are no more
    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unarchived:
    """``at_ms``: when the oldest event of a shard that is not archived took place; ``mark``: its archive's."""

    shard: int
    mark: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Archivable:
    """A shard's numbers, and its events beyond the archive's.

    ``first_ms``: when the first event beyond ``forgotten`` took place; ``days``: events by day, counted from the epoch.
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

        Raises StoreUnusable, with what to do, where that cannot be done now.

        ``archived_only``: no history may go of which an archive has not everything.
        """

    def note_archived(self, marks: Mapping[int, int]) -> None:
        """Of each shard, the number up to which an archive has everything. It is only raised, durably."""

    def unarchived(self) -> list[Unarchived]:
        """Of each shard the oldest event beyond its mark, if there is one."""

    def archivable(self, after: Mapping[int, int]) -> list[Archivable]:
        """All shards in order, at one moment.

        Args:
            after: of each shard, the number beyond which events are counted; 0 where it is not named.
        """
