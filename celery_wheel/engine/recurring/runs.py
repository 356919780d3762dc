"""Runs of a schedule: those that are not over, and the ends that workers report.

::

    a run's row      in lane STOPPED    over: it was cancelled, expired or rejected
                     pending            the run goes on, however late it is, unless a later run has replaced it
                     published          over when its worker has reported the end, or max_runtime_ms after it was due

Memory has no runs: the store is read when an instant of a guarded schedule is due.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from celery_wheel.engine.commands.cancel_move import relocate
from celery_wheel.engine.intake.inbox import RunEnded
from celery_wheel.engine.recurring.backfill_queue import LATEST_RUNS, read_queues, released
from celery_wheel.engine.recurring.instants import Occupied
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import STOPPED, TaskRow
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
