"""What people ask of a store: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

Every method reads what schedulers commit meanwhile, waits for nobody, and raises StoreError where the store cannot be
read. A page and a message are of one moment. No method reads more than some twenty thousand messages, however many are
pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from celery_wheel.store.model import ORIGIN, LaneState, Position
from celery_wheel.store.ports.pages import (
    END,
    Criteria,
    Detail,
    Due,
    DueBy,
    Head,
    Names,
    Page,
    Settled,
    Stopped,
    Task,
)


class Browse(Protocol):
    # -- pages: by key, the next one begins after the last line of this one -----------------------------

    def pending(self, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
        """Pending tasks, the next due first."""

    def dispatched(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
        """Dispatched tasks, the last due first, each with the time at which it was dispatched, while that is known."""

    def outcomes(
        self, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
    ) -> Page[Stopped]:
        """Outcomes of these kinds, the latest first. ``before`` is (at_ms, id)."""

    def batches(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Settled]:
        """Settlements, the latest first. ``before`` is (dispatched_ms, id)."""

    # -- tasks ------------------------------------------------------------------------------------------

    def detail(self, timer_id: int) -> Detail | None:
        """The message with this id; None where there is none, or none any more."""

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """All messages of a task id, the latest due first: tries of one task have the same; a hundred at most.

        Args:
            with_bytes: False leaves headers, properties and body empty.
        """

    def heads(self, ids: Iterable[int]) -> dict[int, Head]:
        """Headers and destinations by the id of the row; a row that is gone by now is left out."""

    def tasks(self, ids: Iterable[int]) -> list[Task]:
        """The rows of these ids, wherever they are, the first due first; a row that is gone by now is left out."""

    def waiting_of(self, shard: int, task_ids: Sequence[str]) -> list[Task]:
        """Rows of those tasks that are pending in the shard and were not handed to the broker."""

    # -- counts: from the tally, which every commit keeps; no row is counted ----------------------------

    def due_by_hour(self) -> list[Due]:
        """Pending tasks by shard and hour of due time, both in order."""

    def due_by_name(self, criteria: Criteria, by: str | None = None) -> list[DueBy]:
        """Pending tasks by hour, and by ``"queue"`` or ``"task"``; without ``by`` the name is empty.

        Of the criteria the hours count that begin from ``from_ms`` on, or are under way then, and before ``to_ms``.
        """

    def waiting(self, shard: int) -> int:
        """How many tasks of a shard are pending."""

    def names(self) -> Names:
        """The queues and the tasks with the most pending, a thousand of each at most."""

    def dispatched_since(self, since_ms: int) -> int:
        """How many tasks were dispatched at or after the instant, as far as the history is kept."""

    # -- schedulers and shards --------------------------------------------------------------------------

    def standing(self, shard: int) -> tuple[list[LaneState], dict[int, int]]:
        """A shard's open lanes, and by lane when its first pending row is due; idle lanes have none."""

    def schedulers(self) -> dict[str, int]:
        """The schedulers of the last day, with when each was last heard of."""
