"""Prefetch: fill each lane's window from the store, slice by slice; ``state.window`` gives the reason for the order.

A slice has at most 25,000 rows and 32 MiB, due within 300 s. Its rows are read, then the epoch: a row of a later epoch
does not enter memory, since dispatch would move the watermark past the seqs that this holder assigns.
"""

from __future__ import annotations

from celery_wheel.engine.round import Context, Round, RoundSteps, Steps
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import CommitInDoubt, StoreError
from celery_wheel.store.model import Position

#: Rows that are placed at a time: dispatch waits meanwhile.
PORTION = 1_000


def prefetch(ctx: Context, state: ShardState) -> RoundSteps:
    """Read one slice of every lane that has room in the window."""
    result, limits = Round.IDLE, ctx.limits
    with state.active():
        lanes = list(state.lanes)
    for lane in lanes:
        with state.active():
            after, window = lane.horizon, state.window
            wanted = window.wanted(lane, state.lanes, ctx.clock.now_ms() + limits.ahead_ms)
        if wanted is None:
            continue
        upto = ctx.store.slice_end(ctx.shard, lane.number, after, wanted, limits.load_count, limits.load_bytes)
        yield "reached"
        yield from _read_slice(ctx, state, lane, after, upto)
        result = Round.BUSY
    yield result


def _read_slice(ctx: Context, state: ShardState, lane: Lane, after: Position, upto: Position) -> Steps:
    with state.active():
        slice_ = state.window.begin_prefetch(lane, after, upto)
    yield "horizon moved"
    if slice_ is None:
        return
    try:
        rows = ctx.store.slice(ctx.shard, lane.number, after, upto)
        ctx.fence(state.epoch, state.accepted)
    except StoreError as error:
        # The horizon has moved past rows that are not in memory, so the window is no longer complete.
        raise CommitInDoubt(str(error)) from error
    yield "sliced"
    for start in range(0, len(rows), PORTION):
        with state.active():
            state.window.place_prefetched(lane, slice_, rows[start : start + PORTION])
    with state.active():
        state.window.finish_prefetch(lane, slice_)
        state.window.evict(state.lanes)
    ctx.wake.set()
    yield "prefetched"
