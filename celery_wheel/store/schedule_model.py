"""Recurring schedules as stored: the definition, the progress, every change, the runs and the skips; and as shown.

::

    09:00  next_ms = 09:00, made = 4
           the holder accepts the row of 09:00, in one transaction with next_ms = 10:00, made = 5
    10:30  paused: next_ms = None, since_ms = 10:30
    12:15  resumed: next_ms = 13:00, a skip (11:00 … 12:00, 2, "paused")

A schedule is created in the shard of its name, and moves to the shard of its group when the first occurrence is made.
Only the holder of the shard in which it is writes it: changes come by the inbox, through the shard of the name. A
definition is opaque here. Each instant that was due and did not run has a skip with its reason; one may have several
runs: an edit withdraws one and makes another, and users trigger runs. Instants that a calendar or a gap leaves out have
no skips: ``Recurrence.why_not`` returns their reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from celery_wheel.store.audit_model import AuditEntry
from celery_wheel.values import json_object
from celery_wheel.values.text import END_OF_TIME_MS

#: Kinds of items of the inbox, see ``celery_wheel.engine.intake.inbox``.
SCHEDULE, RUN_ENDED = "schedule", "run_ended"

#: The task's name in a worker's message to the wheel queue whose body is that of an item ``run_ended``.
RUN_ENDED_TASK = "celery_wheel.run_ended"

#: A header of an occurrence's message (see ``celery_wheel.engine.recurring.occurrence``).
OCCURRENCE = "wheel_occurrence"

#: Headers with the id of a run whose end the worker reports. That of a schedule's run is the same in its retries, with
#: which the run goes on; a retry ends the message's slot in a group, and has one of its own.
RUN, SLOT = "wheel_run", "wheel_slot"

#: The header of an instant of a backfill that waits for a run, with the id of that run.
AFTER = "wheel_after"

#: The largest revision after which there is another: the numbers have 31 bits on PostgreSQL.
LAST_REVISION = 2**31 - 2

#: Sources of entries of Beat: ``beat_schedule`` and ``add_periodic_task``, and the rows of django-celery-beat.
BEAT, DJANGO = "beat", "django-celery-beat"
#: The source of schedules that tasks declare.
CODE = "code"

#: Reasons of a skip.
PAUSED, OVERLAPPED, MISSED, EXCLUDED, GAP = "paused", "overlapped", "missed", "excluded", "gap"


@dataclass(slots=True)
class Schedule:
    """A schedule as stored. Instants are Unix milliseconds."""

    id: int  #: a seq of the shard, given when it is created; never used twice
    name: str  #: unique in the store
    definition: str  #: JSON: recurrence, task, args, kwargs, options and policies
    source: str  #: "api", or the source that follows it: "beat", "django-celery-beat", "code"
    revision: int  #: 1 when it is created; each change adds one
    next_ms: int | None  #: the next instant to be made; None: paused, broken or ended
    made: int = 0  #: occurrences made so far, for the limit of times
    last_ms: int | None = None  #: the last instant that was made
    paused: bool = False
    note: str = ""  #: the reason for which it is paused, broken, failing, or run by Beat's own scheduler
    broken: bool = False  #: the schedule does not run: no definition can be read, or no message can be made
    #: Paused or broken: instants after this one did not run, and have no skip yet. Failing: when it began to.
    since_ms: int | None = None

    def silent_until_ms(self, at_ms: int) -> int | None:
        """Return the last instant that it has made, where that is after ``at_ms`` and it is to run; else None."""
        return self.last_ms if self.next_ms is not None and self.last_ms is not None and self.last_ms > at_ms else None

    @property
    def cancels_running(self) -> bool:
        """Whether a later run cancels an earlier one; read off the text of the definition, which costs no JSON."""
        return '"overlap":"cancel_running"' in self.definition

    @property
    def is_failing(self) -> bool:
        """Whether its next message could not be made; it is tried again, and ``note`` has the error."""
        return bool(self.note) and self.next_ms is not None and not self.paused and not self.broken

    def decided_upto(self, now_ms: int) -> int:
        """Return the instant up to which each of its instants is a row or skipped; it may be after now."""
        return now_ms if self.next_ms is None else self.next_ms - 1


@dataclass(slots=True)
class ScheduleStep:
    """A schedule's progress: its next instant, once the occurrences before it exist or are skipped."""

    id: int
    next_ms: int | None
    made: int
    last_ms: int | None


@dataclass(slots=True)
class Revision:
    """A change of a schedule: the definition before it, as JSON of a Schedule; "" for its creation."""

    schedule: int
    number: int
    name: str  #: kept after the schedule is deleted
    what: str  #: created | changed | paused | resumed | deleted | imported | rolled back
    actor: str
    reason: str
    at_ms: int
    before: str


def readable(schedule: Schedule) -> Schedule:
    """Return a schedule in whose fields SQL may have written anything, with values of the fields' types.

    SQLite has no booleans, and lets a user write any value into any column. A number at the end of its column would
    make the next change of the schedule fail, and all commands behind that one wait.
    """
    if not isinstance(schedule.next_ms, int | float | None):
        schedule.note = f"next_ms must be a whole number, got {schedule.next_ms!r}; resume the schedule"
        schedule.broken = True
    next_ms, last_ms, since_ms = map(whole, (schedule.next_ms, schedule.last_ms, schedule.since_ms))
    schedule.next_ms, schedule.last_ms, schedule.since_ms = next_ms, last_ms, since_ms
    schedule.revision, schedule.made = whole(schedule.revision, LAST_REVISION) or 1, whole(schedule.made) or 0
    schedule.paused, schedule.broken = bool(schedule.paused), bool(schedule.broken)
    schedule.name, schedule.source = str(schedule.name), str(schedule.source)
    schedule.definition, schedule.note = str(schedule.definition), str(schedule.note)
    return schedule


def whole(value: Any, largest: int = END_OF_TIME_MS) -> int | None:
    """Return the nearest whole number from 0 to the largest; None for a value that is no number."""
    return int(min(max(0, value), largest)) if isinstance(value, int | float) else None


def is_same_definition(one: str, other: str) -> bool:
    """Whether two definitions say the same, in whatever order of their fields."""
    with suppress(ValueError, RecursionError):
        return one == other or bool(json.loads(one) == json.loads(other))
    return False


def schedule_before(change: Revision) -> Schedule | None:
    """Return the schedule before a change; None where it did not exist. It is broken where SQL has damaged the row."""
    if not change.before:
        return None
    try:
        return readable(Schedule(**json_object(change.before)))
    except TypeError as error:
        note = f"the revision has no schedule that can be read: {error}"
        number = change.number - 1
        return Schedule(change.schedule, change.name, change.before, "", number, None, note=note, broken=True)


_NAMES = [one.name for one in fields(Schedule)]


def _values_of(schedule: Schedule) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in _NAMES}  # ``asdict`` copies each value, in five times the time


def revised(
    schedule: Schedule, what: str, actor: str, reason: str, at_ms: int, **changes: Any
) -> tuple[Schedule, Revision]:
    """Return a schedule, which is stored or of revision 0, with its changes and their revision."""
    number, before = schedule.revision + 1, json.dumps(_values_of(schedule)) if schedule.revision else ""
    revision = Revision(schedule.id, number, schedule.name, what, actor, reason, at_ms, before)
    return replace(schedule, revision=number, **changes), revision


@dataclass(slots=True)
class Run:
    """A message from its publication to its end: an occurrence, from its acceptance on, or a message of a group."""

    timer_id: int  #: a row has one run at most
    schedule: int | None = None  #: of an occurrence, as ``instant_ms``
    instant_ms: int | None = None
    requested: bool = False  #: by a trigger or a backfill, beside the schedule's own instants
    group: str | None = None  #: the group that it counts for, up to ``until_ms``, whatever is reported
    until_ms: int | None = None
    #: The end that its worker reported, or, before its instant, that of one that was withdrawn; None: not yet, or
    #: nothing needs it.
    ended_ms: int | None = None

    @property
    def at_ms(self) -> int:
        """The instant of an occurrence."""
        return self.instant_ms or 0


def is_run_id(value: Any) -> bool:
    """Whether a value of a message, which anybody may have written, is the number of a row."""
    return type(value) is int and 0 <= value < 2**63


class RunReport(NamedTuple):
    """A worker's report that a run is over; ``of_slot``: its slot in a group, which a retry ends too."""

    run: int
    of_slot: bool = False

    @property
    def payload(self) -> bytes:
        """The payload of an item ``run_ended``."""
        return json.dumps({"slot" if self.of_slot else "run": self.run}).encode()


@dataclass(slots=True)
class RunEnd:
    """The end of a run; with a group, of its slot there: an occurrence, which may be retried, stays a run."""

    timer_id: int
    ended_ms: int
    group: str | None = None  #: with ``until_ms``, as in Run: the store may get the run later, or never
    until_ms: int | None = None


@dataclass(slots=True)
class Skip:
    """Consecutive instants of a schedule that did not run, for one reason."""

    schedule: int
    from_ms: int
    to_ms: int  #: the last of them
    count: int  #: of the instants; where it is negative, there are more of them than so many
    reason: str
    at_ms: int  #: the time of the decision


@dataclass(slots=True)
class ScheduleChange:
    """The part of a ``Change`` that concerns the audit log, and schedules; removals come first."""

    audits: list[AuditEntry] = field(default_factory=list)
    removed_schedules: list[int] = field(default_factory=list)  #: runs and skips are forgotten later; revisions stay
    added_schedules: list[Schedule] = field(default_factory=list)  #: each is new
    schedules: list[Schedule] = field(default_factory=list)  #: each is new, or replaces the schedule of its id
    schedule_steps: list[ScheduleStep] = field(default_factory=list)  #: of existing schedules, or nothing is written
    moved_schedules: dict[int, int] = field(default_factory=dict)  #: id → another shard; after all other writes of it
    revisions: list[Revision] = field(default_factory=list)
    #: A run without a group is new. One with a group is new, or adds the group to a run that has none.
    runs: list[Run] = field(default_factory=list)
    run_ends: list[RunEnd] = field(default_factory=list)  #: a run that is forgotten, or has ended, stays as it is
    skips: list[Skip] = field(default_factory=list)  #: each is new, or replaces one of its schedule and ``from_ms``


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
    paused: int  #: and not broken
    broken: int
    with_base: int  #: neither paused nor broken: entries that Beat's own scheduler runs
    failing: int  #: those whose next message cannot be made now; they are tried again
    next_ms: int | None  #: the earliest next instant


#: So many runs in a row that were cancelled by the next one are a warning: perhaps none of them has begun.
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
    """A run with its schedule's name and source; None where it is of none, or the schedule was deleted."""

    timer_id: int
    instant_ms: int  #: 0 where it is of no schedule
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
        """The last runs, in a row, that "cancel_running" has cancelled: they were not over when the next one was made.

        The engine stores the end of a run that it replaces when it makes the later one, at that instant or after it.
        """
        if self.schedule is None or not self.schedule.cancels_running:
            return 0
        own = [run for run in self.runs if not run.requested]
        ends = ((run.ended_ms, later.instant_ms) for later, run in pairwise(own))
        return sum(1 for _ in takewhile(lambda one: one[0] is not None and one[0] >= one[1], ends))
