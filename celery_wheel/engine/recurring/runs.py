"""Runs: those of schedules are read as store and memory have them, and judged by ``overlap``; all end by reports.

Memory keeps no runs of schedules: the store is read when an instant of a guarded schedule is due, and when a run ends.
A report is sent to the shard in which the run's row was accepted. Where a resharding has given the run to another
shard, the holder passes the report on through that shard's inbox.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial

from celery_wheel.engine.commands import relocate
from celery_wheel.engine.intake.inbox import RunEnded
from celery_wheel.engine.recurring.occurrence import read_header, run_before
from celery_wheel.engine.recurring.overlap import KnownRun, Occupied, QueuedRow, occupied, released
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import WAITING, NewItem, Row
from celery_wheel.store.schedule_model import RUN_ENDED, Run, RunEnd, RunReport

#: A run matters while it is among so many latest ones of its schedule.
LATEST_RUNS = 20

#: No limit to the runs that are read. Occurrences are made shortly before their instants, so few are pending, unless
#: their queue is paused.
ALL_RUNS = 2**31 - 1


def read_occupied(
    ctx: Context, state: ShardState, schedule_id: int, definition: Definition, now_ms: int
) -> Generator[str, None, Occupied]:
    """Return the runs of a schedule, as far as they keep its instants from starting."""
    found = ctx.store.runs_of([schedule_id], False, LATEST_RUNS)
    yield "runs read"
    with state.active():
        known = _known(state, found)
    return occupied(known, definition.max_runtime_ms, now_ms)


def _known(state: ShardState, found: Iterable[tuple[Run, Row, int]]) -> list[KnownRun]:
    """Judge runs by memory; a row of another shard may have been published unless it waits for its group."""
    return [
        KnownRun(run, row, state.may_be_published(row) if shard == state.shard else row.lane != WAITING)
        for run, row, shard in found
    ]


def end_runs(ctx: Context, state: ShardState, ended: Sequence[RunEnded]) -> Generator[str, None, bool]:
    """Record the ends of runs, all in one unit of work; returns False where it was rolled back. The end of a run makes
    the queued instant after it due. A report may come twice; one of an unknown run of a schedule is dropped."""
    if not ended:
        return True
    with state.active():
        mark = state.mark()
    found = ctx.store.runs_at(list(dict.fromkeys(one.run for one in ended)))
    elsewhere = {run.timer_id: shard for shard, run in found if shard != ctx.shard}
    known = {run.timer_id: run for shard, run in found if shard == ctx.shard and run.ended_ms is None}
    over = [known[id_] for id_ in {one.run for one in ended if not one.of_slot} if id_ in known]
    slots = {one.run for one in ended if one.of_slot} - elsewhere.keys()
    schedules = {run.schedule for run in over if run.schedule is not None}
    queues = _queues(ctx, list(schedules)) if schedules else {}
    latest = {id_: ctx.store.runs_of([id_], False, LATEST_RUNS) for id_ in queues}
    yield "ended runs read"
    if elsewhere:
        _pass_on(ctx, ended, elsewhere)
        yield "ends of runs of other shards passed on"
    with state.active():
        if state.may_be_diverted((one.row for queue in queues.values() for one in queue), mark):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        of_slots = _end_slots(work, slots, known)
        work.change.run_ends = [*of_slots, *(RunEnd(run.timer_id, work.now_ms) for run in over)]
        work.change.inbox = [one.item_id for one in ended if one.item_id is not None]
        for id_, queue in queues.items():
            for row in released(queue, _known(state, latest[id_]), over, work.now_ms):
                if work.take_out(row):
                    relocate(work, row, None, "the run before it is over", "wheel")
        work.reserve()
    if not (yield from work.commit(ctx)):
        return False
    if schedules:
        state.agenda.reopen()
    if slots:
        ctx.freed.set()
        ctx.stats.add(slots_reported=len(of_slots))
        with state.lock:
            for one in of_slots:
                state.groups.reported(one.group or "")
    return True


def _end_slots(work: UnitOfWork, row_ids: Iterable[int], known: Mapping[int, Run]) -> list[RunEnd]:
    """End the slots of groups, in memory and in the store; the store may not have recorded the publication yet."""
    groups, found = work.state.groups, list[RunEnd]()
    for row_id in sorted(row_ids):
        run = groups.run_of(row_id, work.now_ms)
        if run is None and row_id in known:
            run = known[row_id].group, known[row_id].until_ms
        if run is not None and run[0] is not None:
            found.append(RunEnd(row_id, work.now_ms, *run))
            work.on_apply(partial(groups.over, row_id))
    return found


def _pass_on(ctx: Context, ended: Iterable[RunEnded], shards: Mapping[int, int]) -> None:
    """Put reports into the inboxes of their runs' shards; a round that is repeated puts them twice."""
    items = defaultdict[int, list[NewItem]](list)
    for one in ended:
        if one.run in shards:
            items[shards[one.run]].append((RUN_ENDED, RunReport(one.run, one.of_slot).payload))
    ctx.store.put_inboxes(items)


def _queues(ctx: Context, schedule_ids: list[int]) -> dict[int, list[QueuedRow]]:
    """Return the queued rows of backfills by schedule, in the order in which they run."""
    found: dict[int, list[QueuedRow]] = {}
    for run, row, shard in ctx.store.runs_of(schedule_ids, True, ALL_RUNS):
        if shard != ctx.shard or run.schedule is None or not run.requested:
            continue
        if "queued" in read_header(row):
            found.setdefault(run.schedule, []).append(QueuedRow(row, run_before(row)))
    return {id_: sorted(queue, key=lambda one: one.row.position) for id_, queue in found.items()}
