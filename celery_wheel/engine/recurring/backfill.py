"""Backfill: which instants of the past a request runs, and when; a trigger is a backfill of now. Pure.

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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from celery_wheel.engine.intake.inbox import ScheduleCommand
from celery_wheel.engine.recurring.instants import Occupied, walk
from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import (
    ALLOW,
    CANCEL_RUNNING,
    QUEUE_ALL,
    QUEUE_ONE,
    SKIP,
    Definition,
)

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
