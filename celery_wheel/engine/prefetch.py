"""Prefetch: keep the window filled from the store, in the order of steps that ``state.window`` explains."""

from __future__ import annotations

from celery_wheel.engine.context import Context, Round, RoundSteps, Steps
from celery_wheel.engine.state.lane import Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import CommitInDoubt, StoreError
from celery_wheel.store.model import Position


def prefetch(ctx: Context, state: ShardState) -> RoundSteps:
    result, limits = Round.IDLE, ctx.limits
    with state.active():
        lanes = list(state.lanes)
    for lane in lanes:
        with state.active():
            after, window = lane.horizon, state.window
            wanted = window.wanted(lane, state.lanes, ctx.clock.now_ms() + limits.ahead_ms)
        if wanted is None:
            continue
        upto = ctx.store.reach(ctx.shard, lane.number, after, wanted, limits.load_count, limits.load_bytes)
        yield "reach known"
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
        rows = ctx.store.slice(ctx.shard, lane.number, slice_.after, slice_.upto)
    except StoreError as error:
        # The horizon has moved past rows that are not in memory, so the window is no longer complete.
        raise CommitInDoubt(str(error)) from error
    yield "sliced"
    with state.active():
        state.window.finish_prefetch(lane, slice_, rows)
        state.window.evict(state.lanes)
    ctx.wake.set()
    yield "prefetched"
