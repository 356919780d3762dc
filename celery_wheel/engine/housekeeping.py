"""Housekeeping: delete old answers, tombstones and history, and close idle lanes.

::

    1 expire    tombstones after a day, answers after 10 minutes, used rates of groups once they are as unused, requests
                of the audit log after their retention
    2 refill    the tombstone filter is filled anew where it is full
    3 close     lanes beside the main one that have been asleep for ``lane_idle_ms``: not before the rollback window is
                over, since a rollback cannot replay a closed lane
    4 forget    history beyond its retention is deleted, oldest settlement first, 2,000 rows a round; not the rows that
                the next adoption compares with the broker's checksum, or it would take their absence for a rollback;
                then that of queues and tasks with a shorter retention, 500 rows of each a round
    5 repack    rows get the present dictionary and key, a thousand a round, after a change of the key or an erasure
"""

from __future__ import annotations

from celery_wheel.engine.round import Context, Round, RoundSteps, Steps
from celery_wheel.engine.state.lane import END
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.tombstones import TombstoneFilter
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.ports import ForgetPlace, Retention


def keep_house(ctx: Context, state: ShardState) -> RoundSteps:
    limits, now_ms = ctx.limits, ctx.clock.now_ms()
    # A request waits a few seconds for its answer.
    ctx.store.expire(ctx.shard, state.epoch, now_ms, now_ms - 600_000, now_ms - limits.audit_ms)
    yield "expired"
    if state.tombstones.is_full:
        yield from _refill(ctx, state)
    yield from _close_idle(ctx, state)
    with state.history:
        with state.active():
            upto = {number: lane.replayable for number, lane in state.lanes.all.items()}
        keep = Retention(now_ms - limits.retention_ms, limits.history_bytes, limits.archived_only, upto, now_ms)
        forgotten = ctx.store.forget(ctx.shard, state.epoch, keep, limits.forget_count)
        more = bool(forgotten)
        for name, kept_ms in limits.retentions.items():
            shorter, after = keep._replace(before_ms=now_ms - kept_ms), state.forgotten.get(name, ForgetPlace())
            count, place = ctx.store.forget_named(ctx.shard, state.epoch, name, shorter, after)
            state.forgotten[name], forgotten = place, forgotten + count
            more |= bool(count) or place.settlement != after.settlement
    ctx.stats.add(forgotten=forgotten)
    state.repacked = ctx.store.repack(ctx.shard, state.epoch)
    yield "forgotten"
    yield Round.BUSY if more or state.repacked is not None else Round.IDLE


def _refill(ctx: Context, state: ShardState) -> Steps:
    with state.active():
        state.tombstones.begin_refill()
    task_ids = list(ctx.store.tombstone_ids(ctx.shard))
    yield "tombstones read"
    with state.active():
        state.tombstones = TombstoneFilter([*task_ids, *state.tombstones.added_meanwhile()])


def _close_idle(ctx: Context, state: ShardState) -> Steps:
    with state.active():
        asleep = state.lanes.asleep_since(ctx.clock.monotonic_ms() - ctx.limits.lane_idle_ms)[:500]
    empty = [
        (lane, since_ms)
        for lane, since_ms in asleep
        if not (lane.in_store and ctx.store.count(ctx.shard, lane.number, lane.offset, END))
    ]
    if not empty:
        return
    yield "idle lanes found"
    with state.active():
        closed = [lane for lane, since_ms in empty if state.lanes.close(lane, since_ms)]
        work = UnitOfWork(state, ctx.clock.now_ms())
        work.change.closed = [lane.number for lane in closed if lane.in_store]
        work.reserve()
    if work.change.closed:
        yield from work.commit(ctx)
    if known := [lane.number for lane in closed if lane.in_broker]:
        # Where the broker does not answer now, the next adoption drops the lanes.
        ctx.delivery.drop_lanes(state, known)
        yield "closed lanes dropped in the broker"
