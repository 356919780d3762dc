"""Queued instants of a backfill: each runs when the run before it is over.

::

    12:00  backfill of 3 instants, max_runtime_ms = 1 h       rows due at 12:00, 13:00 and 14:00, all pending
    12:07  the first run ends                                 the second row is moved to 12:07
    13:07  no end was reported: the second run counts as over; the third row runs at 14:00, as it is due

So a row is due at the latest instant at which the runs before it are over, and the end of the run before it makes it
due at once, in the unit of work of that end. The first row waits for runs of the schedule itself, whose number is not
limited: it is made due when none of the latest of them is going on. Nothing is kept in memory.

Non-promise: rows that are later than their time, behind a pause of their queue or an outage, run as they are due.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.recurring.header import read_header
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import STOPPED, Row, TaskRow
from celery_wheel.store.schedule_model import Run

#: A run matters while it is among so many latest ones of its schedule.
LATEST_RUNS = 20

ALL = 2**31 - 1


@dataclass(slots=True)
class Queue:
    """The queued rows of one schedule, in the order in which they run."""

    rows: list[Row] = field(default_factory=list)
    latest: Sequence[tuple[Run, TaskRow]] = ()


def read_queues(ctx: Context, schedule_ids: Collection[int]) -> list[Queue]:
    """Return the queues of those schedules that have one."""
    found: dict[int, Queue] = {}
    for run, (_, row) in ctx.store.runs_of(ctx.shard, list(schedule_ids), True, ALL):
        if run.requested and "queued" in read_header(row):
            found.setdefault(run.schedule, Queue()).rows.append(row)
    for schedule_id, queue in found.items():
        queue.rows.sort(key=lambda row: row.position)
        queue.latest = ctx.store.runs_of(ctx.shard, [schedule_id], False, LATEST_RUNS)
    return list(found.values())


def released(state: ShardState, queue: Queue, over: Sequence[Run], now_ms: int) -> Row | None:
    """Return the queued row that the ends of these runs of its schedule make due; the caller holds the lock.

    A row that is due already stays as it is.
    """
    row = next((row for row in queue.rows if row.due_ms > now_ms), None)
    if row is None:
        return None
    header, ended = read_header(row), {run.timer_id for run in over}
    after_ms, longest_ms = header["queued"]["after"], header["queued"]["max_runtime_ms"]
    if after_ms is not None:
        return row if (header["id"], after_ms) in {(run.schedule, run.instant_ms) for run in over} else None
    for run, (_, other) in queue.latest:
        is_over = run.ended_ms is not None or run.timer_id in ended or other.due_ms + longest_ms <= now_ms
        if is_over or other.lane == STOPPED or not state.may_be_published(other.lane, other.position):
            continue
        if read_header(other).get("report"):
            return None
    return row
