"""Overlap and catch-up: which instants of a schedule start, which wait, and which are skipped. Pure.

::

                     while a run goes on                  else
    allow            all start                            all start
    skip             none                                 the first starts
    queue_one        the last starts when it is over      the first starts, and the last when that is over
    queue_all        each starts when the run before it is over
    cancel_running   the last starts, the runs are        the last starts
                     cancelled

The table is of a buffer: instants that are due and have not started. That of a schedule itself has, unless its policy
is "allow", only the latest instant up to now; earlier ones are overlapped, or missed. An instant that waits stays its
``next_ms``. A backfill has its instants in the buffer. Waiting ones are rows, each due when the run before it is over
at the latest, and due at once when its end is reported.

The cost does not depend on the length of an outage: the latest instant is found by halving, and no more than
MAX_COUNTED skipped instants are counted one by one. A schedule whose own policy is "allow" does not learn when its runs
end, so none of them goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from celery_wheel.engine.intake.inbox import ScheduleCommand
from celery_wheel.engine.recurring.occurrence import is_reported, read_header
from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import (
    ALL,
    ALLOW,
    CANCEL_RUNNING,
    LATEST,
    NONE,
    QUEUE_ALL,
    QUEUE_ONE,
    SKIP,
    Definition,
)
from celery_wheel.store.model import STOPPED, Row
from celery_wheel.store.schedule_model import MISSED, OVERLAPPED, Run, Schedule, Skip
from celery_wheel.values.format import format_utc

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence

#: The most skipped instants that are counted one by one, which takes 10 ms: those of every minute over 16 hours.
MAX_COUNTED = 1_000

#: Counts that are kept: after an outage, many schedules of one recurrence have missed the same instants.
COUNTS = 1_000

#: The most occurrences of one command to backfill.
MAX_BACKFILL = 1_000


@dataclass(frozen=True, slots=True)
class Times:
    """The instants that bound a decision."""

    now_ms: int
    upto_ms: int  #: the end of the look-ahead
    late_ms: int  #: an instant that is later than this was missed

    @property
    def missed_before_ms(self) -> int:
        return self.now_ms - self.late_ms


# -- runs ------------------------------------------------------------------------------------------------


class KnownRun(NamedTuple):
    """A run, its row as it was read, and whether that may have been published, as memory has it."""

    run: Run
    row: Row
    may_be_published: bool


@dataclass(frozen=True, slots=True)
class Occupied:
    """The runs of a schedule, as far as they keep its instants from starting."""

    running: Mapping[str, Run] = field(default_factory=dict)  #: task id → a run that is not over
    free_ms: int = -1  #: when the last of the other runs was over
    until_ms: int = -1  #: when the last of the running ones is over, at the latest


def occupied(runs: Iterable[KnownRun], max_runtime_ms: int, now_ms: int) -> Occupied:
    """Return which runs go on.

    A run whose row is in lane STOPPED is over. A pending one goes on, however late it is, unless a later run has
    replaced it. A published one is over when its worker has reported the end, or ``max_runtime_ms`` after it was due.
    """
    running, free_ms, until_ms = dict[str, Run](), -1, -1
    for run, row, may_be_published in runs:
        if row.lane == STOPPED:
            continue
        over_ms = row.due_ms + max_runtime_ms if run.ended_ms is None and may_be_published else run.ended_ms
        if over_ms is None or (run.ended_ms is None and over_ms > now_ms):
            running[row.task_id] = run
            until_ms = max(until_ms, max(row.due_ms, now_ms if over_ms is None else 0) + max_runtime_ms)
        else:
            free_ms = max(free_ms, over_ms)
    return Occupied(running, free_ms, until_ms)


class QueuedRow(NamedTuple):
    """A pending row of a backfill that waits, and the id of the run for which it does; None of the first."""

    row: Row
    before: int | None


def released(queued: Sequence[QueuedRow], latest: Iterable[KnownRun], over: Collection[Run], now_ms: int) -> list[Row]:
    """Return the queued rows of a schedule that the ends ``over`` of its runs make due; a due row stays as it is.

    Each row waits for the run before it in its own backfill. The first row of a backfill waits for the runs of the
    schedule itself, whose number is not limited: it is made due when none of the ``latest`` of them goes on; a pending
    one does, however late it is. ``queued`` are in the order of their rows.
    """
    ended = {run.timer_id for run in over}
    waiting = [one for one in queued if one.row.due_ms > now_ms]
    found = [one.row for one in waiting if one.before in ended]
    if waiting and waiting[0].before is None:
        first = waiting[0].row
        if not _goes_on_before(first, [one.row for one in queued], latest, ended, now_ms):
            found.append(first)
    return found


def _goes_on_before(
    first: Row, rows: Iterable[Row], latest: Iterable[KnownRun], ended: Collection[int], now_ms: int
) -> bool:
    """Whether one of the latest runs goes on, for which the first row of a backfill waits."""
    longest_ms = read_header(first)["queued"]["max_runtime_ms"]
    not_before = {other.id for other in rows if other.position >= first.position}
    for run, other, may_be_published in latest:
        if run.ended_ms is not None or run.timer_id in ended or other.lane == STOPPED or not is_reported(other):
            continue
        if other.due_ms + longest_ms > now_ms if may_be_published else other.id not in not_before:
            return True
    return False


# -- the buffer ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Starts:
    """The instants of a buffer that start; the policy leaves the others out."""

    instants: Sequence[int]
    wait: bool = False  #: each starts when the run before it is over
    cancel: bool = False  #: the runs that go on are cancelled


def resolve(overlap: str, buffer: Sequence[int], *, is_running: bool) -> Starts:
    """Return which instants start under an overlap policy; the header has the table."""
    first, last = buffer[:1], buffer[-1:]
    if overlap == SKIP:
        return Starts([] if is_running else first)
    if overlap == QUEUE_ONE:
        return Starts(last if is_running or first == last else [*first, *last], wait=True)
    if overlap == QUEUE_ALL:
        return Starts(buffer, wait=True)
    if overlap == CANCEL_RUNNING:
        return Starts(last, cancel=bool(last))
    return Starts(buffer)


@dataclass(slots=True)
class Decision:
    """The fate of the instants of a schedule that are due, or of a request."""

    next_ms: int | None = None  #: of the schedule itself
    make: Sequence[int] = field(default_factory=list)  #: the instants that become messages
    skips: list[Skip] = field(default_factory=list)
    cancels: Mapping[str, Run] = field(default_factory=dict)  #: runs that a later one replaces, by task id


@dataclass(slots=True)
class Requested(Decision):
    """The instants that a trigger or a backfill runs, and when."""

    begin_ms: int = 0  #: when the first is due
    every_ms: int = 0  #: the time between two
    is_queued: bool = False
    left_out: int = 0  #: instants that the policy does not run


def requested(
    request: ScheduleCommand, definition: Definition, unmade_ms: int, runs: Occupied, now_ms: int, room: int
) -> Requested:
    """Return the at most ``room`` instants that a request runs, up to ``unmade_ms``. Raises RecurrenceError."""
    if request.do == "trigger":
        return Requested(make=[now_ms], begin_ms=now_ms)
    upto_ms = unmade_ms if request.upto_ms is None else min(unmade_ms, request.upto_ms)
    buffer = list(islice(walk(definition.recurrence, (request.from_ms or 0) - 1, upto_ms), room + 1))
    if len(buffer) > room:
        raise RecurrenceError(f"a command backfills at most {MAX_BACKFILL:,} instants; ask for a shorter time")
    if not buffer:
        past = f"a backfill runs past instants, and the schedule itself makes those after {format_utc(unmade_ms)}"
        raise RecurrenceError(f"there is no instant to run in this time, and nothing was done; {past}")
    overlap = overlap_of(request, definition)
    if overlap != ALLOW and request.every_ms:
        raise RecurrenceError(f'every needs the overlap "allow", and this backfill has {overlap!r}; name the overlap')
    starts = resolve(overlap, buffer, is_running=bool(runs.running))
    return Requested(
        make=starts.instants,
        cancels=runs.running if starts.cancel else {},
        begin_ms=max(now_ms, runs.until_ms) if starts.wait else now_ms,
        every_ms=definition.max_runtime_ms if starts.wait else request.every_ms,
        is_queued=starts.wait,
        left_out=len(buffer) - len(starts.instants),
    )


def overlap_of(request: ScheduleCommand, definition: Definition) -> str:
    """Return the policy for the runs of a request; a trigger runs at once, whatever runs."""
    return ALLOW if request.do == "trigger" else request.overlap or definition.overlap


def decide(
    schedule: Schedule, first: int, definition: Definition, times: Times, most: int, runs: Occupied | None = None
) -> Decision:
    """Return the next step of a schedule whose ``next_ms`` is ``first``, which is due: at most ``most`` instants."""
    if definition.is_guarded:
        return _at_most_one(schedule, first, definition, times, runs or Occupied())
    return _each(schedule, first, definition, times, most)


def _each(schedule: Schedule, first: int, definition: Definition, times: Times, most: int) -> Decision:
    recurrence, made = definition.recurrence, schedule.made
    start: int | None = first
    keep_from_ms = times.missed_before_ms
    if definition.catch_up == ALL:
        keep_from_ms = min(keep_from_ms, times.now_ms - definition.catch_up_ms)
    if first < keep_from_ms:
        start = recurrence.next_after(keep_from_ms - 1, made)
        if definition.catch_up == LATEST and (start is None or start > times.now_ms):
            start = latest(recurrence, first, times.now_ms)
    skips, make, next_ms = list[Skip](), list[int](), start
    if start is None or start > first:
        last_ms = latest(recurrence, first, times.now_ms if start is None else start - 1)
        skips.append(skip(schedule.id, recurrence, first, last_ms, MISSED, times.now_ms))
    while next_ms is not None and next_ms <= times.upto_ms and len(make) < most:
        make.append(next_ms)
        next_ms = recurrence.next_after(next_ms, made + len(make))
    return Decision(next_ms, make, skips)


def _at_most_one(schedule: Schedule, first: int, definition: Definition, times: Times, runs: Occupied) -> Decision:
    recurrence, free_ms, now_ms, overlap = definition.recurrence, runs.free_ms, times.now_ms, definition.overlap
    last = latest(recurrence, first, now_ms)

    def skipped(from_ms: int, to_ms: int, reason: str) -> list[Skip]:
        return [skip(schedule.id, recurrence, from_ms, to_ms, reason, now_ms)] if from_ms <= to_ms else []

    starts = resolve(overlap, [last], is_running=bool(runs.running))
    after = recurrence.next_after(last, schedule.made)
    if not starts.instants or (overlap == SKIP and last <= free_ms):
        return Decision(after, skips=skipped(first, last, OVERLAPPED))
    before = latest(recurrence, first, last - 1) if first < last else first - 1
    if starts.wait and runs.running:
        return Decision(last, skips=skipped(first, before, OVERLAPPED))
    if _is_missed(definition, max(last, free_ms) if starts.wait else last, times):
        return Decision(after, skips=skipped(first, last, MISSED))
    was_overlapped = bool(runs.running) or first <= free_ms or first >= times.missed_before_ms
    reason = OVERLAPPED if was_overlapped else MISSED
    next_ms = recurrence.next_after(last, schedule.made + 1)
    return Decision(next_ms, [last], skipped(first, before, reason), runs.running if starts.cancel else {})


def _is_missed(definition: Definition, at_ms: int, times: Times) -> bool:
    if at_ms >= times.missed_before_ms or definition.catch_up == LATEST:
        return False
    return definition.catch_up == NONE or at_ms < times.now_ms - definition.catch_up_ms


# -- instants --------------------------------------------------------------------------------------------


def latest(recurrence: Recurrence, first: int, upto_ms: int) -> int:
    """Return the last occurrence up to and including an instant; ``first`` is an occurrence at or before it."""
    last, none_after = first, upto_ms
    while last < none_after:
        middle = (last + none_after) // 2
        found = recurrence.next_after(middle)
        if found is not None and found <= upto_ms:
            last = found
        else:
            none_after = middle
    return last


def skip(schedule_id: int, recurrence: Recurrence, from_ms: int, to_ms: int, reason: str, at_ms: int) -> Skip:
    """Return a skip of the occurrences from one to another."""
    return Skip(schedule_id, from_ms, to_ms, count(recurrence, from_ms, to_ms), reason, at_ms)


@lru_cache(COUNTS)
def count(recurrence: Recurrence, from_ms: int, to_ms: int) -> int:
    """Return the number of occurrences from one to another; -MAX_COUNTED where there are more than so many."""
    if (every_ms := recurrence.every_ms) is not None:
        return (to_ms - from_ms) // every_ms + 1
    found = len(list(islice(walk(recurrence, from_ms - 1, to_ms), MAX_COUNTED + 1)))
    return found if found <= MAX_COUNTED else -MAX_COUNTED


def walk(recurrence: Recurrence, after_ms: int, upto_ms: int) -> Iterator[int]:
    """Yield the occurrences after one instant, up to and including another, however many have been made."""
    found = recurrence.next_after(after_ms)
    while found is not None and found <= upto_ms:
        yield found
        found = recurrence.next_after(found)


def skips_between(schedule_id: int, recurrence: Recurrence, after_ms: int, upto_ms: int, reason: str) -> list[Skip]:
    """Return a skip of the occurrences after one instant up to another, which is now; none where there is none."""
    first = recurrence.next_after(after_ms)
    if first is None or first > upto_ms:
        return []
    last = latest(recurrence, first, upto_ms)
    return [skip(schedule_id, recurrence, first, last, reason, upto_ms)]
