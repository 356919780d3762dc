"""The port for people: pages of tasks, one task, counts. For the CLI, the admin and ``app.wheel``.

Every method sees the commits of running schedulers, waits for no lock, and raises StoreError where the store cannot be
read. A page, or a message with its outcomes, shows one moment. No method reads more than about twenty thousand
messages, however many are pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from celery_wheel.store.audit_model import AuditCriteria, AuditPage
from celery_wheel.store.model import ORIGIN, Position
from celery_wheel.store.ports.overview import OverviewRows, StoreSize
from celery_wheel.store.ports.pages import (
    ALL_BYTES,
    END,
    Criteria,
    Detail,
    MessageHead,
    NamedHourCount,
    Names,
    Page,
    Settlement,
    ShardLanes,
    StoppedTask,
    Task,
)
from celery_wheel.store.schedule_model import (
    RunOfSource,
    ScheduleCounts,
    ScheduleCriteria,
    ScheduleDetail,
    SchedulePage,
    SilentSchedules,
)
from celery_wheel.store.store_model import ServerState


class Browse(Protocol):
    # -- pages: each begins after the last line of the previous page -----------------------------------

    def pending(self, criteria: Criteria, after: Position = ORIGIN, limit: int = 100) -> Page[Task]:
        """Return pending tasks, the next due first."""

    def dispatched(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Task]:
        """Return dispatched tasks, the last due first, each with the time of its dispatch while that is known."""

    def outcomes(
        self, kinds: Sequence[str], criteria: Criteria, before: Position = END, limit: int = 100
    ) -> Page[StoppedTask]:
        """Return outcomes of these kinds, the latest first. ``before`` is (at_ms, id)."""

    def batches(self, criteria: Criteria, before: Position = END, limit: int = 100) -> Page[Settlement]:
        """Return settlements, the latest first. ``before`` is (dispatched_ms, id)."""

    # -- tasks ------------------------------------------------------------------------------------------

    def detail(self, timer_id: int, most_bytes: int = ALL_BYTES) -> Detail | None:
        """Return the message with this id; None where the store has none.

        Args:
            most_bytes: the parts of a larger message are not read, and stay empty; 0 reads the parts of no message.
        """

    def find(self, task_id: str, *, with_bytes: bool = True) -> list[Detail]:
        """Return the messages of a task id, the latest due first, at most a hundred: each try of a task has one.

        Args:
            with_bytes: False leaves headers, properties and body empty.
        """

    def heads(self, ids: Iterable[int]) -> dict[int, MessageHead]:
        """Return headers and destinations by the id of the row; a missing row is left out."""

    def tasks(self, ids: Iterable[int]) -> list[Task]:
        """Return the rows of these ids, the first due first; a missing row is left out."""

    def find_pending(self, shard: int, task_ids: Sequence[str]) -> list[Task]:
        """Return the rows of those tasks after the watermarks of the shard: pending, and certainly not published."""

    # -- recurring schedules ----------------------------------------------------------------------------

    def schedules(self, criteria: ScheduleCriteria, after: str = "", limit: int = 100) -> SchedulePage:
        """Return schedules in the order of their names, after the name ``after``."""

    def schedule_counts(self) -> ScheduleCounts: ...

    def silent_schedules(self, now_ms: int) -> SilentSchedules:
        """Count the schedules that have made their instants up to a later one than the look-ahead explains."""

    def pending_runs(self, schedule_ids: Sequence[int]) -> dict[int, int]:
        """Return the number of pending runs among the latest twenty of each schedule; without 0."""

    def schedule(self, name: str) -> ScheduleDetail | None:
        """Return the schedule of a name with its last changes, runs and skips, at most sixty of each; None where the
        store has no schedule of that name and no change of one."""

    def runs_after(self, shard: int, timer_id: int, limit: int) -> list[RunOfSource]:
        """Return a shard's runs of rows after a row, in the order in which they were made."""

    def last_run(self, shard: int) -> int:
        """Return the row of a shard's last run; 0 where it has none."""

    # -- the audit log ----------------------------------------------------------------------------------

    def audit(self, criteria: AuditCriteria, before: str | None = None, limit: int = 100) -> AuditPage:
        """Return the requests of people, the latest first; ``before`` is the cursor of the previous page."""

    # -- the whole store --------------------------------------------------------------------------------

    def overview(
        self, now_ms: int, before_ms: int, *, with_seconds: bool = False, with_levels: bool = False
    ) -> OverviewRows:
        """Return the state of all shards at one moment.

        Args:
            now_ms: rows that are due then are overdue.
            before_ms: the end of the hours that are counted one by one.
            with_seconds: count the rows of the next hour by the second.
            with_levels: include the levels of each holder in its snapshot.
        """

    def size(self) -> StoreSize: ...

    def server(self) -> ServerState | None:
        """Return what the store's server promises, and what costs it; None where the store is a file."""

    def levels(self, shard: int) -> list[dict[str, Any]]:
        """Return the levels of the holder's last snapshot; empty where there is none."""

    # -- counts: from the tally, which every commit keeps; no row is counted ----------------------------

    def due_by_name(self, criteria: Criteria, by: str | None = None) -> list[NamedHourCount]:
        """Return pending tasks by hour, and by ``"queue"`` or ``"task"``; without ``by`` the name is empty.

        An hour is included where it ends after ``from_ms`` and begins before ``to_ms``.
        """

    def count_pending(self, shard: int) -> int:
        """Return how many tasks of a shard are pending."""

    def names(self) -> Names:
        """Return the queues and the tasks with the most pending tasks, at most a thousand of each."""

    def dispatched_since(self, since_ms: int) -> int:
        """Return how many tasks were dispatched at or after the instant, as far as the history goes."""

    # -- schedulers and shards --------------------------------------------------------------------------

    def lanes(self, shard: int) -> ShardLanes:
        """Return a shard's open lanes and their next due times."""
