"""Load: keep the window filled from the store, in the order that ``window`` gives and explains."""

from __future__ import annotations

from celery_wheel.engine.context import Context, Round, RoundSteps, Steps
from celery_wheel.engine.lane import Lane
from celery_wheel.engine.term import Term
from celery_wheel.store.model import Position


def load(ctx: Context, term: Term) -> RoundSteps:
    result, limits = Round.IDLE, ctx.limits
    for lane in list(term.lanes.values()):
        with term.active():
            after, horizon = lane.edge, term.window.wanted(lane, term.lanes, ctx.clock.now_ms() + limits.ahead_ms)
        if horizon is None:
            continue
        upto = ctx.store.reach(ctx.shard, lane.number, after, horizon, limits.load_count, limits.load_bytes)
        yield "reach known"
        yield from _read_slice(ctx, term, lane, after, upto)
        result = Round.BUSY
    yield result


def _read_slice(ctx: Context, term: Term, lane: Lane, after: Position, upto: Position) -> Steps:
    with term.active():
        slice_ = term.window.begin_load(lane, after, upto)
    yield "edge moved"
    if slice_ is None:
        return
    rows = ctx.store.slice(ctx.shard, lane.number, slice_.after, slice_.upto)
    yield "sliced"
    with term.active():
        term.window.finish_load(lane, slice_, rows)
        term.window.evict(term.lanes)
    ctx.wake.set()
    yield "loaded"
