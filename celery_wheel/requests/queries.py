"""The reading methods of ``app.wheel``: pending, dispatched and stopped tasks, counts, gates.

The store alone answers them, in any process that reaches it, also while no scheduler runs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from celery_wheel.errors import ArgumentError
from celery_wheel.overview import ShardStatus, read_overview
from celery_wheel.requests.asynchronous import twin
from celery_wheel.store.model import ORIGIN, OUTCOMES, Gate, Position
from celery_wheel.store.ports import FullStore
from celery_wheel.store.ports.pages import (
    END,
    Criteria,
    Detail,
    NamedHourCount,
    Names,
    Page,
    Settlement,
    StoppedTask,
    Task,
)


class Queries(ABC):
    """A part of ``Wheel``. Every method raises StoreError, with the remedy, where the store cannot be read."""

    @property
    @abstractmethod
    def store(self) -> FullStore: ...

    def status(self) -> list[ShardStatus]:
        """Return each shard's holder, offset, pending tasks and levels."""
        return read_overview(self.store, now_ms(), with_levels=True).shards

    def counts(self) -> Names:
        """Return the counts of pending tasks by queue and by task."""
        return self.store.browse.names()

    def pending(self, /, after: Position = ORIGIN, limit: int = 100, **criteria: Any) -> Page[Task]:
        """Return a page of pending tasks, the next due first; ``page.next`` is the ``after`` of the next page.

        Args:
            criteria: task, queue, key, shard, from_ms and to_ms (due at or after the one, and before the other).
        """
        return self.store.browse.pending(Criteria(**criteria), after, limit)

    def history(self, /, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Task]:
        """Return a page of dispatched tasks, the last due first, with their lateness."""
        return self.store.browse.dispatched(Criteria(**criteria), before, limit)

    def outcomes(self, /, *kinds: str, before: Position = END, limit: int = 100, **criteria: Any) -> Page[StoppedTask]:
        """Return a page of tasks with an outcome of these kinds, the latest outcome first.

        Kinds: rejected (the default), cancelled, expired, moved. Here from_ms and to_ms are of the outcome.
        """
        for kind in set(kinds) - set(OUTCOMES):
            raise ArgumentError(f"kind must be one of {', '.join(OUTCOMES)}, got {kind!r:.60}")
        return self.store.browse.outcomes(kinds or ("rejected",), Criteria(**criteria), before, limit)

    def batches(self, /, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Settlement]:
        """Return a page of the settlements, the latest first."""
        return self.store.browse.batches(Criteria(**criteria), before, limit)

    def forecast(self, /, by: str | None = None, **criteria: Any) -> list[NamedHourCount]:
        """Return the count of tasks due in each hour, from the tally; ``by``: for each ``"queue"`` or ``"task"``."""
        return self.store.browse.due_by_name(Criteria(**criteria), by)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Return every message of a task id that the store still knows: a retried task has one for each try.

        Args:
            with_bytes: False leaves headers, properties and bodies empty, which may be large.
        """
        return self.store.browse.find(task_id, with_bytes=with_bytes)

    def get(self, task_id: str) -> Detail | None:
        """Return the message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)

    def gates(self) -> list[Gate]:
        """Return the gates in force: pauses, and resumptions whose time is not over."""
        found = {(one.scope, one.name): one for shard in range(self.store.shards) for one in self.store.gates(shard)}
        return [one for one in found.values() if one.in_force(now_ms())]

    astatus = twin(status)
    acounts = twin(counts)
    apending = twin(pending)
    ahistory = twin(history)
    aoutcomes = twin(outcomes)
    abatches = twin(batches)
    aforecast = twin(forecast)
    afind = twin(find)
    aget = twin(get)
    agates = twin(gates)


def now_ms() -> int:
    return int(time.time() * 1000)
