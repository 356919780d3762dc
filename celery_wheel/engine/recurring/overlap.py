"""The step of a schedule that is due: the instants to make, skips of the others, and the next instant. Pure.

::

    next_ms                  now - late_ms      now    look-ahead
    ───┬─────────┬─────────┬───────┬─────────────┼──────────┬──────────► instants of the schedule
       │ missed: catch-up decides  │ on time: made          │ not yet

    overlap "allow"   every instant up to the look-ahead is on time; of the missed ones "latest" makes the last, where
                      no instant is on time
    any other         at most one instant, the latest up to now, while no run is going on; the others are overlapped
                      where a run was going on, or missed

The cost does not depend on the length of an outage: the latest instant is found by halving, and no more than
MAX_COUNTED skipped instants are counted one by one; those of an interval are a division.

Backfill: which instants of the past a request runs, and when; a trigger is a backfill of now. Pure.

::

    overlap, of the request or else of the schedule
        allow            all run at once, or one every so many milliseconds; a trigger always does
        skip             the first runs, unless an earlier run is going on
        queue_one        the first runs, and the last when it is over; only the last where an earlier run is going on
        queue_all        each runs when the run before it is over
        cancel_running   the last runs, and the earlier runs are cancelled

A schedule whose own policy is "allow" does not learn when its runs end, so none of them counts as going on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from celery_wheel.engine.intake.inbox import ScheduleCommand
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
from celery_wheel.store.schedule_model import MISSED, OVERLAPPED, Run, Schedule, Skip

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence


#: The most skipped instants that are counted one by one, which takes 10 ms: those of every minute over 16 hours.
MAX_COUNTED = 1_000

#: Counts that are kept: after an outage, many schedules of one recurrence have missed the same instants.
COUNTS = 1_000


@dataclass(frozen=True, slots=True)
class Times:
    """The instants that bound a decision."""

    now_ms: int
    upto_ms: int  #: the end of the look-ahead
    late_ms: int  #: an instant that is later than this was missed

    @property
    def missed_before_ms(self) -> int:
        return self.now_ms - self.late_ms


@dataclass(frozen=True, slots=True)
class Occupied:
    """The runs of a schedule, as far as they keep its instants from being made."""

    running: Mapping[str, Run] = field(default_factory=dict)  #: task id → a run that is not over
    free_ms: int = -1  #: when the last of the other runs was over
    until_ms: int = -1  #: when the last of the running ones is over, at the latest


@dataclass(slots=True)
class Decision:
    """The next step of a schedule; ``make`` has the instants that become messages."""

    next_ms: int | None
    make: list[int] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)


def decide(
    schedule: Schedule, first: int, definition: Definition, times: Times, most: int, occupied: Occupied | None = None
) -> Decision:
    """Return the next step of a schedule.

    Args:
        first: its ``next_ms``, which is due.
        most: the most instants to make; later ones stay due.
        occupied: its runs; not used where they may overlap.
    """
    if definition.is_guarded:
        return _at_most_one(schedule, first, definition, times, occupied or Occupied())
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
    decision = Decision(start)
    if start is None or start > first:
        last_ms = latest(recurrence, first, times.now_ms if start is None else start - 1)
        decision.skips.append(skip(schedule.id, recurrence, first, last_ms, MISSED, times.now_ms))
    while decision.next_ms is not None and decision.next_ms <= times.upto_ms and len(decision.make) < most:
        decision.make.append(decision.next_ms)
        decision.next_ms = recurrence.next_after(decision.next_ms, made + len(decision.make))
    return decision


def _at_most_one(schedule: Schedule, first: int, definition: Definition, times: Times, occupied: Occupied) -> Decision:
    recurrence, free_ms, now_ms = definition.recurrence, occupied.free_ms, times.now_ms
    last = latest(recurrence, first, now_ms)

    def skipped(from_ms: int, to_ms: int, reason: str) -> list[Skip]:
        return [skip(schedule.id, recurrence, from_ms, to_ms, reason, now_ms)] if from_ms <= to_ms else []

    after = recurrence.next_after(last, schedule.made)
    if occupied.running and definition.overlap == SKIP:
        return Decision(after, skips=skipped(first, last, OVERLAPPED))
    before = latest(recurrence, first, last - 1) if first < last else first - 1
    if occupied.running and definition.overlap == QUEUE_ONE:
        return Decision(last, skips=skipped(first, before, OVERLAPPED))
    if definition.overlap == SKIP and last <= free_ms:
        return Decision(after, skips=skipped(first, last, OVERLAPPED))
    waited_until_ms = max(last, free_ms) if definition.overlap == QUEUE_ONE else last
    if _is_missed(definition, waited_until_ms, times):
        return Decision(after, skips=skipped(first, last, MISSED))
    was_overlapped = bool(occupied.running) or first <= free_ms or first >= times.missed_before_ms
    reason = OVERLAPPED if was_overlapped else MISSED
    return Decision(recurrence.next_after(last, schedule.made + 1), [last], skipped(first, before, reason))


def _is_missed(definition: Definition, at_ms: int, times: Times) -> bool:
    if at_ms >= times.missed_before_ms or definition.catch_up == LATEST:
        return False
    return definition.catch_up == NONE or at_ms < times.now_ms - definition.catch_up_ms


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


#: The most occurrences of one command to backfill.
MAX_BACKFILL = 1_000


@dataclass(frozen=True, slots=True)
class Requested:
    """The instants that a request runs."""

    item_id: int
    instants: Sequence[int]
    begin_ms: int  #: when the first is due
    every_ms: int = 0  #: the time between two
    is_queued: bool = False
    left_out: int = 0  #: instants that the policy does not run
    cancels: bool = False  #: the runs that are going on are cancelled


def requested(
    request: ScheduleCommand, definition: Definition, unmade_ms: int, occupied: Occupied, now_ms: int, room: int
) -> Requested:
    """Return what a trigger or a backfill runs. Raises RecurrenceError.

    Args:
        unmade_ms: instants after this one are left to the schedule itself.
        room: the most instants.
    """
    if request.do == "trigger":
        return Requested(request.item_id, [now_ms], now_ms)
    upto_ms = unmade_ms if request.upto_ms is None else min(unmade_ms, request.upto_ms)
    instants = list(islice(walk(definition.recurrence, (request.from_ms or 0) - 1, upto_ms), room + 1))
    if len(instants) > room:
        raise RecurrenceError(f"a command backfills at most {MAX_BACKFILL:,} instants; ask for a shorter time")
    overlap = overlap_of(request, definition)
    if overlap == ALLOW:
        return Requested(request.item_id, instants, now_ms, request.every_ms)
    if request.every_ms:
        raise RecurrenceError(f'every needs the overlap "allow", and this backfill has {overlap!r}; name the overlap')
    kept = _kept(instants, overlap, bool(occupied.running))
    is_queued = overlap in (QUEUE_ONE, QUEUE_ALL)
    return Requested(
        request.item_id,
        kept,
        max(now_ms, occupied.until_ms) if is_queued else now_ms,
        definition.max_runtime_ms if is_queued else 0,
        is_queued,
        len(instants) - len(kept),
        overlap == CANCEL_RUNNING and bool(kept),
    )


def overlap_of(request: ScheduleCommand, definition: Definition) -> str:
    """Return the policy for the runs of a request."""
    return ALLOW if request.do == "trigger" else request.overlap or definition.overlap


def _kept(instants: list[int], overlap: str, is_running: bool) -> list[int]:
    if overlap == SKIP:
        return [] if is_running else instants[:1]
    if overlap == QUEUE_ONE and not is_running:
        return [*instants[:1], *instants[1:][-1:]]
    return instants if overlap == QUEUE_ALL else instants[-1:]
