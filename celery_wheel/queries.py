"""Questions to the store: what waits, what was dispatched, what was stopped, what is paused.

Answered by the store alone, in any process that reaches it, also while no scheduler runs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from celery_wheel.status import ShardStatus, status_of
from celery_wheel.store.model import ORIGIN, Gate, Position
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import END, Criteria, Detail, DueBy, Names, Page, Settled, Stopped, Task


class Queries(ABC):
    """A part of ``Wheel``. Every method raises StoreError, with what to do, where the store cannot be read."""

    @property
    @abstractmethod
    def store(self) -> FullStore: ...

    def status(self) -> list[ShardStatus]:
        """Each shard's holder, offset, pending tasks and levels."""
        return status_of(self.store, now_ms())

    def counts(self) -> Names:
        """How much is pending by queue and by task."""
        return self.store.browse.names()

    def pending(self, after: Position = ORIGIN, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what waits, the next due first; ``page.next`` is the ``after`` of the page behind it.

        Args:
            criteria: task, queue, key, shard, from_ms and to_ms (due from the one on, and before the other).
        """
        return self.store.browse.pending(Criteria(**criteria), after, limit)

    def history(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what left, the last due first, with how late it was."""
        return self.store.browse.dispatched(Criteria(**criteria), before, limit)

    def outcomes(self, *kinds: str, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Stopped]:
        """A page of what was set aside, the latest first. Kinds: rejected, cancelled, expired, parked, moved.

        Here from_ms and to_ms are of when that was.
        """
        return self.store.browse.outcomes(kinds or ("rejected",), Criteria(**criteria), before, limit)

    def batches(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Settled]:
        """A page of the settlements, the latest first."""
        return self.store.browse.batches(Criteria(**criteria), before, limit)

    def forecast(self, by: str | None = None, **criteria: Any) -> list[DueBy]:
        """How much is due in each hour, by ``"queue"`` or ``"task"`` too where that is asked; from the tally."""
        return self.store.browse.due_by_name(Criteria(**criteria), by)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Every message of a task id that the store still knows: a retried task has one a try.

        Args:
            with_bytes: False leaves headers, properties and bodies empty, which may be large.
        """
        return self.store.browse.find(task_id, with_bytes=with_bytes)

    def get(self, task_id: str) -> Detail | None:
        """The message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)

    def gates(self) -> list[Gate]:
        """What is paused, or was resumed over a time that is not over."""
        found = {(one.scope, one.name): one for shard in range(self.store.shards) for one in self.store.gates(shard)}
        return [one for one in found.values() if one.in_force(now_ms())]


def now_ms() -> int:
    return int(time.time() * 1000)
