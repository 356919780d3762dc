"""The values of recurring schedules that ``Browse`` returns. Instants are Unix milliseconds.

::

    ScheduleCriteria ─► SchedulePage     schedules in the order of their names; the next page begins after ``next``
    name             ─► ScheduleDetail   a schedule, or a deleted one, with its changes, runs and skips

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

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
