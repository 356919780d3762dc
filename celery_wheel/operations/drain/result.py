"""The result of a drain, and the progress of a drain or an import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

#: Called with the step, the count that is done, and the total known so far.
Progress = Callable[[str, int, int], None]


def silent(doing: str, done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(slots=True)
class DrainResult:
    """Counts of a drain. In a dry run ``moved``, ``in_queues`` and ``in_inbox`` together would be moved."""

    moved: int = 0  #: tasks that are pending elsewhere now
    due: int = 0  #: tasks that were due anyway and were dispatched without an eta
    rejected: int = 0  #: tasks that the broker refused, or that could not be read
    accepted: int = 0  #: of these, tasks that the drain accepted into the store first
    left: int = 0  #: tasks that are still pending in the store
    schedules: int = 0  #: recurring schedules that are in the file
    schedules_left: int = 0  #: recurring schedules that are in the store: to the broker all of them
    outcomes: dict[str, int] = field(default_factory=dict)  #: rejected and parked tasks, which stay in the store
    file: Path | None = None
    in_file: int = 0  #: tasks, with those of an earlier drain that was killed
    resumed: bool = False  #: the file was complete already, so the drain only retired its tasks in the store
    dispatched_since: int = 0  #: resumed: tasks in the file that a scheduler has dispatched since it was written
    dry_run: bool = False
    in_queues: int = 0
    in_inbox: int = 0
    by_queue: dict[str, int] = field(default_factory=dict)
