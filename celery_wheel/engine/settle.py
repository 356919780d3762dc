"""Settle: record confirmed chunks in the store, in a job of its own, so that dispatch waits for no fsync.

Each lane has at most one settlement under way, about 20 a second; the next one has the chunks that were confirmed
meanwhile. A crash before the commit loses nothing: the broker's offset is ahead then, and adoption settles up to it. So
a holder that stands down while a settlement is under way leaves the rest to the next adoption.

Where the broker keeps no offset, dispatch itself settles, in the commit that prepares its next chunk. After a chunk
with refused or failed rows, its lane publishes nothing more until that chunk is settled.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.lane import InFlight
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.stats import BY_DESTINATION
from celery_wheel.engine.unit_of_work import UnitOfWork


def settle(ctx: Context, state: ShardState) -> RoundSteps:
    """Run one round; it is idle where dispatch settles."""
    if not ctx.delivery.prepares:
        yield from settle_now(ctx, state)
    yield Round.IDLE


def settle_now(ctx: Context, state: ShardState, flight: InFlight | None = None) -> Generator[str, None, bool]:
    """Commit a settlement, and prepare the chunk that is published next; returns whether there was either."""
    with state.active():
        work = next_settlement(state, ctx.clock.now_ms(), flight)
    yield "settlement made"
    if work is None:
        return False
    yield from work.commit(ctx)
    if flight is not None:
        ctx.unsettled.set()  # ``settle`` skipped lanes that this commit held
        refused = len(flight.refused)
        ctx.stats.add(expired=len(flight.misfired), rejected=refused, rejected_destination=refused)
        if refused:
            row, why = flight.refused[0]
            ctx.stats.rejections.add(BY_DESTINATION, refused, why, row.route.task)
        flight.diverted, flight.misfired, flight.refused = [], [], []
    return True


def next_settlement(state: ShardState, now_ms: int, flight: InFlight | None = None) -> UnitOfWork | None:
    """Return a unit of work that settles every unsettled lane, and prepares a chunk, whose end the store learns; None
    where there is nothing to commit. The caller holds the lock."""
    work, held = UnitOfWork(state, now_ms), []
    if flight is not None:
        lane = state.lanes[flight.lane]
        held.append(lane)
        flight.prepared = True  # a preparation that fails ends the state
        for row, place in flight.diverted:
            work.divert(row, place, flight.redelivered or lane.redelivered)
        for row in flight.misfired:
            late_s, most_s = (flight.taken_ms - row.eta_ms) / 1_000, (row.misfire_ms or 0) / 1_000
            why = f"it was found {late_s:,.3f} s late, and its misfire option allows {most_s:g} s"
            work.stop(row, "expired", why)
        for row, why in flight.refused:
            work.stop(row, "rejected", why)
    settled = False
    for lane in state.lanes:
        if (done := lane.begin_settling()) is not None:
            settled = True
            work.settle(lane, done)
    if flight is None and not settled:
        return None
    for lane in (*held, *work.destinations()):
        work.save_held(lane)
    work.reserve()
    return work
