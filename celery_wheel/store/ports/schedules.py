"""The values of recurring schedules that ``Browse`` returns. Instants are Unix milliseconds.

::

    ScheduleCriteria ─► SchedulePage     schedules in the order of their names; the next page begins after ``next``
    name             ─► ScheduleDetail   a schedule, or a deleted one, with its changes, runs and skips

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, takewhile

from celery_wheel.store.schedule_model import Revision, Schedule, Skip


@dataclass(frozen=True, slots=True)
class ScheduleCriteria:
    """The filter of a page; a field that is None does not filter."""

    shard: int | None = None
    part: str | None = None  #: a part of the name; case is ignored
    source: str | None = None
    task: str | None = None  #: the name of its task
    paused: bool | None = None
    broken: bool | None = None
    prefix: str | None = None  #: the beginning of the name
    queue: str | None = None  #: the queue among its options


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """``next`` is the ``after`` of the next page; None on the last page. A page before the last may be short."""

    items: list[Schedule]
    next: str | None


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """All schedules of a store, counted row by row."""

    total: int
    paused: int
    broken: int
    with_base: int  #: neither paused nor broken: entries that Beat's own scheduler runs
    failing: int  #: those whose next message cannot be made now; they are tried again
    next_ms: int | None  #: the earliest next instant


#: So many runs in a row that were replaced by a later one are a warning.
REPLACED = 3

#: A schedule has made no instant further ahead than this, unless due time went back: a herd is made five minutes ahead.
AHEAD_MS = 600_000


@dataclass(frozen=True, slots=True)
class SilentSchedules:
    """Schedules that wait until due time, which went back, is where it was: no instant is made twice."""

    count: int
    until_ms: int | None  #: the last instant that one of them has made; None without any


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """An occurrence with its message.

    ``state`` is that of a ``Detail``: ``pending``, ``in doubt``, ``dispatched``, or the kind of its last outcome.
    """

    instant_ms: int
    timer_id: int
    task_id: str
    due_ms: int
    state: str
    dispatched_ms: int | None  #: None while it is pending, and where the history no longer has it
    ended_ms: int | None  #: the end that its worker reported; None: not yet, or no policy needs it
    requested: bool  #: by a trigger or a backfill
    reason: str  #: of its outcome; empty without one


@dataclass(frozen=True, slots=True)
class RunOfSource:
    """A run with its schedule's name and source; None where the schedule was deleted."""

    timer_id: int
    instant_ms: int
    requested: bool
    name: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    """The schedule of a name, with its changes, runs and skips; each list has the latest first.

    ``schedule`` is None where it was deleted. The changes are those of every schedule that had the name, the runs and
    skips those of the last one.
    """

    schedule: Schedule | None
    revisions: list[Revision]
    runs: list[ScheduleRun]
    skips: list[Skip]

    @property
    def replaced(self) -> int:
        """The last runs, in a row, that were not over when the next one was made: "cancel_running" cancels such a run.

        The engine stores the end of a run that it replaces when it makes the later one, at that instant or after it.
        """
        own = [run for run in self.runs if not run.requested]
        ends = ((run.ended_ms, later.instant_ms) for later, run in pairwise(own))
        return sum(1 for _ in takewhile(lambda one: one[0] is not None and one[0] >= one[1], ends))
