"""``Wheel(app)``: what waits in an app's wheel, for Python, the CLI and the admin.

It reads the store, so it works in any process that reaches it, also while no scheduler runs. The store is opened with
the first question, once a process, and anew after a fork.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.status import ShardStatus, status_of
from celery_wheel.store import browse, open_store
from celery_wheel.store.browse import Criteria, Detail, Page, Settled, Stopped, Task
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.sql import SqlStore

END = browse.END


class Wheel:
    """Every method raises StoreError, with what to do, where the store cannot be read."""

    def __init__(self, app: Any) -> None:
        self.conf = Conf(app)
        self._opening = threading.Lock()
        self._opened: tuple[int, str, SqlStore] | None = None  #: process, URL, store

    @property
    def store(self) -> SqlStore:
        """The store, taken as it is; one that is not there is not made."""
        here = (os.getpid(), self.conf.store)
        with self._opening:
            if self._opened is None or self._opened[:2] != here:
                store = open_store(here[1], durability=self.conf.durability, shards=None, create=False)
                self._opened = (*here, store)
            return self._opened[2]

    def close(self) -> None:
        """Give the connections back; the next question opens the store again."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[2].close()

    # -- what is waiting ------------------------------------------------------------------------------

    def status(self) -> list[ShardStatus]:
        """Each shard's holder, hand, pending tasks and levels."""
        return status_of(self.store, now_ms())

    def counts(self) -> browse.Names:
        """How much is pending by queue and by task."""
        return browse.names(self.store)

    def pending(self, after: Position = ORIGIN, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what waits, the next due first; ``page.next`` is the ``after`` of the page behind it.

        Args:
            criteria: task, queue, shard, from_ms and to_ms (due from the one on, and before the other).
        """
        return browse.pending(self.store, Criteria(**criteria), after, limit)

    def history(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Task]:
        """A page of what left, the last due first, with how late it was."""
        return browse.dispatched(self.store, Criteria(**criteria), before, limit)

    def outcomes(self, *kinds: str, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Stopped]:
        """A page of what was set aside, the latest first. Kinds: rejected, cancelled, expired, parked, moved.

        Here from_ms and to_ms are of when that was.
        """
        return browse.outcomes(self.store, kinds or ("rejected",), Criteria(**criteria), before, limit)

    def batches(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Settled]:
        """A page of the settlements, the latest first."""
        return browse.batches(self.store, Criteria(**criteria), before, limit)

    def forecast(self, by: str | None = None, **criteria: Any) -> list[browse.DueBy]:
        """How much is due in each hour, by ``"queue"`` or ``"task"`` too where that is asked; from the tally."""
        return browse.due_by_name(self.store, Criteria(**criteria), by)

    def find(self, task_id: str) -> list[Detail]:
        """Every message of a task id that the store still knows: a retried task has one a try."""
        return browse.find(self.store, task_id)

    def get(self, task_id: str) -> Detail | None:
        """The message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)


def now_ms() -> int:
    return int(time.time() * 1000)
