"""``Wheel(app)``: what waits in an app's wheel, for Python, the CLI and the admin.

It reads the store, so it works in any process that reaches it, also while no scheduler runs. The store is opened with
the first question, once a process, and anew after a fork, and when the one that was opened is there no more: its file
was deleted or replaced, its tables were emptied, it has other shards now.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from celery_wheel.conf import Conf
from celery_wheel.status import ShardStatus, status_of
from celery_wheel.store import browse, open_store
from celery_wheel.store.browse import Criteria, Detail, Page, Settled, Stopped, Task
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.sql import SqlStore

if TYPE_CHECKING:
    from celery_wheel.bulk import Scheduled

END = browse.END

#: Seconds between two looks whether the store is still the one that was opened.
LOOK_EVERY_S = 1.0


class Wheel:
    """Every method raises StoreError, with what to do, where the store cannot be read."""

    def __init__(self, app: Any) -> None:
        self.conf = Conf(app)
        self._opening = threading.Lock()
        self._opened: tuple[int, str, SqlStore] | None = None  #: process, URL, store
        self._of_parents: list[SqlStore] = []  #: kept, since closing their connections would disturb the parent's
        self._looked_s = 0.0

    @property
    def store(self) -> SqlStore:
        """The store, taken as it is; one that is not there is not made."""
        here = (os.getpid(), self.conf.store)
        with self._opening:
            if self._opened is not None and (self._opened[:2] != here or not self._is_there(self._opened[2])):
                self._give_up(*self._opened)
            if self._opened is None:
                store = open_store(here[1], durability=self.conf.durability, shards=None, create=False)
                self._opened = (*here, store)
                self._looked_s = time.monotonic()
            return self._opened[2]

    def _is_there(self, store: SqlStore) -> bool:
        if store.database.replaced():
            return False
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return True
        there = store.as_opened()
        self._looked_s = now_s
        return there

    def _give_up(self, process: int, url: str, store: SqlStore) -> None:
        self._opened = None
        if process == os.getpid():
            store.close()
        else:
            self._of_parents.append(store)

    def close(self) -> None:
        """Give the connections back; the next question opens the store again."""
        with self._opening:
            if self._opened is not None:
                self._give_up(*self._opened)

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
        """A page of what was set aside, the latest first. Kinds: rejected, cancelled, expired, parked, moved."""
        return browse.outcomes(self.store, kinds or ("rejected",), Criteria(**criteria), before, limit)

    def batches(self, before: Position = END, limit: int = 100, **criteria: Any) -> Page[Settled]:
        """A page of the settlements, the latest first."""
        return browse.batches(self.store, Criteria(**criteria), before, limit)

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Every message of a task id that the store still knows: a retried task has one a try.

        Args:
            with_bytes: False leaves headers, properties and bodies empty, which may be large.
        """
        return browse.find(self.store, task_id, with_bytes=with_bytes)

    def get(self, task_id: str) -> Detail | None:
        """The message of a task id that is due last; None where the wheel does not know the id."""
        return max(self.find(task_id), key=lambda one: one.task.position, default=None)

    # -- scheduling -----------------------------------------------------------------------------------

    def schedule_many(self, rows: Iterable[Any], **options: Any) -> Scheduled:
        """Schedule very many tasks, past the broker; see ``celery_wheel.bulk.schedule_many``."""
        from celery_wheel.bulk import schedule_many

        return schedule_many(self.conf.app, self.store, rows, **options)


def now_ms() -> int:
    return int(time.time() * 1000)
