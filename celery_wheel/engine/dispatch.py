"""Dispatch: publish the rows that are due in order, chunk by chunk.

::

    1 reap       rows that expired in the wheel become ready in their lanes
    2 take       the next chunk of a lane, all before every reservation; the watermark moves to its end
    3 commit     where rows of the range move to another lane or get an outcome; before every chunk if the broker has no
                 offset
    4 guard      the store must have exactly the chunk's rows in (after, upto]
    5 publish    see ``delivery``; a chunk without an answer stays in flight, and the same rows are published again
    6 confirm    the chunk is unsettled: ``settle`` records many chunks in one commit, and the offset follows
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.port import Confirmed
from celery_wheel.engine.round import Context, Round, RoundSteps, Steps
from celery_wheel.engine.settle import settle_now
from celery_wheel.engine.state.lane import InFlight, Lane, Most
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.stats import BY_BROKER
from celery_wheel.errors import GuardTripped
from celery_wheel.store.model import MAX_SEQ, Position

MAX_WAIT_MS = 1_000  #: dispatch notices within this time that the machine was suspended


def dispatch(ctx: Context, state: ShardState) -> RoundSteps:
    result = Round.IDLE
    with state.active():
        lanes = state.begin_round(_due_ms(ctx), ctx.clock.monotonic_ms())
    yield "reaped"
    for lane in lanes:
        if (yield from _send(ctx, state, lane)):
            result = Round.BUSY
    if result is Round.IDLE and ctx.delivery.prepares and (yield from settle_now(ctx, state)):
        result = Round.BUSY
    yield result


def _due_ms(ctx: Context) -> int:
    """Return the due time up to which rows may be published."""
    return ctx.clock.now_ms() + ctx.limits.ahead_ms


def _send(ctx: Context, state: ShardState, lane: Lane) -> Generator[str, None, bool]:
    """Publish one chunk of a lane, if it has one; returns whether it had."""
    if lane.retry_at_ms > ctx.clock.monotonic_ms():
        return False
    if ctx.delivery.open_lane(state, lane):
        yield "lane opened in the broker"
    if lane.is_in_doubt and lane.in_flight is None:
        yield from _take_doubtful(ctx, state, lane)
    limits = ctx.limits
    most = Most(limits.chunk_count, limits.chunk_bytes, limits.ahead_ms, limits.refusal)
    with state.active():
        flight = state.take(lane, ctx.clock.now_ms(), ctx.clock.monotonic_ms(), most)
    yield "taken"
    if flight is None:
        return False
    if flight.changes_store or (ctx.delivery.prepares and not flight.prepared):
        yield from settle_now(ctx, state, flight)
    elif ctx.delivery.prepares:
        # No commit of this round has checked the epoch, and the process may have been suspended.
        ctx.fence(state.epoch, state.accepted)
    yield from _guard(ctx, state, flight)
    yield "guarded"
    now_ms, began_ms = ctx.clock.now_ms(), ctx.clock.monotonic_ms()
    confirmed = yield from ctx.delivery.publish(state, lane, flight, now_ms, ctx.ask)
    took_ms = ctx.clock.monotonic_ms() - began_ms
    ctx.stats.publishes.add(took_ms)
    yield "published"
    with state.active():
        _confirm(ctx, state, lane, flight, confirmed, now_ms)
    if ctx.on_published is not None:
        ctx.on_published(flight.rows, now_ms, now_ms + took_ms)
    ctx.unsettled.set()
    ctx.room.set()
    return True


def _take_doubtful(ctx: Context, state: ShardState, lane: Lane) -> Steps:
    """Take the rows in doubt as a chunk, before any other row of the lane; those that are not due wait (a drain)."""
    limits = ctx.limits
    place = ctx.shard, lane.number, lane.in_doubt_after
    upto = min(lane.in_doubt_upto, Position(_due_ms(ctx), MAX_SEQ))
    if upto <= lane.in_doubt_after:
        return
    to = ctx.store.slice_end(*place, upto, limits.chunk_count, limits.chunk_bytes)
    rows = ctx.store.slice(*place, to)
    if to < lane.in_doubt_upto:
        if not rows:
            return
        to = rows[-1].position  # ``upto`` follows the clock: each round would publish an empty chunk
    yield "in doubt"
    with state.active():
        for row in rows:
            row.reports = state.groups.reports(row)
        lane.take_doubtful(rows, to, limits.refusal)


def _guard(ctx: Context, state: ShardState, flight: InFlight) -> Steps:
    chunk = ctx.shard, flight.lane, flight.after, flight.upto
    stored = yield from ctx.call("count", lambda *one: ctx.store.count_chunks([one])[0], ctx.store.count_chunks, chunk)
    if stored != len(flight.rows):
        ctx.fence(state.epoch, state.accepted)
        raise GuardTripped(
            f"the store has {stored} rows after {tuple(flight.after)} up to {tuple(flight.upto)} in lane "
            f"{flight.lane}, the chunk has {len(flight.rows)}; the chunk is not published and the window is rebuilt; "
            "this is a defect, please report it"
        )


def _confirm(ctx: Context, state: ShardState, lane: Lane, flight: InFlight, confirmed: Confirmed, now_ms: int) -> None:
    refused = confirmed.refused
    flight.failed.update(confirmed.failed)
    # Behind an exchange one queue may have accepted a message that another queue refused.
    flight.redelivered |= any(row.route.exchange for row in flight.rows if row.id in refused)
    if refused and lane.refusing:
        lane.refuse(flight, refused, ctx.clock.monotonic_ms())
        return
    redelivered = flight.redelivered or lane.redelivered
    lane.confirm(flight, now_ms, refused)
    rows = [row for row in flight.rows if row.id not in refused] if refused else flight.rows
    if state.groups and lane.unsettled is not None:
        times, done = (now_ms, ctx.clock.monotonic_ms()), lane.unsettled
        runs, rates = state.groups.published([row.id for row in rows if row.id not in flight.failed], *times)
        done.runs |= runs
        done.rates |= rates
        state.groups.depths_read(confirmed.ready, times[1], at_once=True)
        ctx.freed.set()
    ctx.stats.dispatched_chunk(rows, len(flight.failed), redelivered, now_ms)
    if flight.failed:
        first = next(iter(flight.failed))
        task = next((row.route.task for row in rows if row.id == first), "")
        ctx.stats.rejections.add(BY_BROKER, len(flight.failed), flight.failed[first], task)
        if ctx.renderer is not None:
            for route in {row.route for row in rows if row.id in flight.failed}:
                ctx.renderer.queue_lost(route.queue or route.routing_key)
    ctx.stats.add(refused=len(refused))


def wait_ms(ctx: Context, state: ShardState | None, *, was_busy: bool = False) -> int:
    """Return how long dispatch may wait before its next round, unless it is woken.

    After a busy round the next one may have more rows in doubt to take, or a chunk to settle, which has no due time.
    """
    if state is None:
        return MAX_WAIT_MS
    if was_busy and (ctx.delivery.prepares or any(lane.is_in_doubt for lane in state.lanes)):
        return 0
    monotonic_ms = ctx.clock.monotonic_ms()
    with state.lock:
        due_ms, retries_ms = state.next_due_ms(monotonic_ms), state.retries_ms(monotonic_ms)
    until_due_ms = MAX_WAIT_MS if due_ms is None else due_ms - ctx.clock.now_ms()
    return max(0, min(MAX_WAIT_MS, until_due_ms, *retries_ms))
