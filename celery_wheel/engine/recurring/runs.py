"""Runs of a schedule: those that are not over, and the ends that workers report.

::

    a run's row      in lane STOPPED    over: it was cancelled, expired or rejected
                     pending            the run goes on, however late it is, unless a later run has replaced it
                     published          over when its worker has reported the end, or max_runtime_ms after it was due

Memory has no runs: the store is read when an instant of a guarded schedule is due.

Queued instants of a backfill: each runs when the run before it is over.

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

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.commands import relocate
from celery_wheel.engine.intake.inbox import RunEnded
from celery_wheel.engine.recurring.occurrence import read_header
from celery_wheel.engine.recurring.overlap import Occupied
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import STOPPED, Row, TaskRow
from celery_wheel.store.schedule_model import Run, RunEnd


def occupied(
    ctx: Context, state: ShardState, schedule_id: int, definition: Definition, now_ms: int
) -> Generator[str, None, Occupied]:
    """Return the runs of a schedule, as far as they keep its instants from being made."""
    found = ctx.store.runs_of(ctx.shard, [schedule_id], False, LATEST_RUNS)
    yield "runs read"
    with state.active():
        return _occupied(state, found, definition.max_runtime_ms, now_ms)


def _occupied(state: ShardState, found: Sequence[tuple[Run, TaskRow]], max_runtime_ms: int, now_ms: int) -> Occupied:
    running, free_ms, until_ms = dict[str, Run](), -1, -1
    for run, (task_id, row) in found:
        if row.lane == STOPPED:
            continue
        over_ms = run.ended_ms
        if over_ms is None and state.may_be_published(row.lane, row.position):
            over_ms = row.due_ms + max_runtime_ms
        if over_ms is None or (run.ended_ms is None and over_ms > now_ms):
            running[task_id] = run
            until_ms = max(until_ms, max(row.due_ms, now_ms if over_ms is None else 0) + max_runtime_ms)
        else:
            free_ms = max(free_ms, over_ms)
    return Occupied(running, free_ms, until_ms)


def end_runs(ctx: Context, state: ShardState, ended: Sequence[RunEnded]) -> Generator[str, None, bool]:
    """Record the ends of runs, all in one unit of work; returns False where it was rolled back.

    A run that ended before stays as it is, so a report may come twice. A report of an unknown run is dropped.
    """
    if not ended:
        return True
    instants = list(dict.fromkeys((one.schedule, one.instant_ms) for one in ended))
    with state.active():
        diversions = state.diversions
    over = [run for run, _ in ctx.store.runs_at(ctx.shard, instants) if run.ended_ms is None]
    queues = read_queues(ctx, {run.schedule for run in over}) if over else []
    yield "ended runs read"
    with state.active():
        if state.may_be_diverted((row for queue in queues for row in queue.rows), diversions):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        work.change.run_ends = [RunEnd(run.timer_id, work.now_ms) for run in over]
        work.change.inbox = [one.item_id for one in ended if one.item_id is not None]
        for queue in queues:
            row = released(state, queue, over, work.now_ms)
            if row is not None and work.take_out(row):
                relocate(work, row, None, "the run before it is over", "wheel")
        work.reserve()
    if not (yield from work.commit(ctx)):
        return False
    state.agenda.reopen()
    return True


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
