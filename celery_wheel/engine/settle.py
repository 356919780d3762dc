"""Settle: what the broker has confirmed is written down, in a thread of its own so that dispatch waits for no fsync.

::

    confirm (dispatch)   unsettled: chunks that the broker has and the store does not know of
    settle               unsettled ─► settling ─► one change: hand, batch, tally, refused rows ─► hand
                         at most one under way; what is confirmed meanwhile is the next one's

A crash before the commit loses nothing: the broker's hand is ahead then, and adoption settles up to it. So a holder
that stands down while one is under way leaves the rest to the next adoption.

After a chunk of which rows were refused, its lane sends nothing more until that is settled (see ``Lane.take``).
"""

from __future__ import annotations

from celery_wheel.engine.context import Context, Round, RoundSteps
from celery_wheel.engine.term import Term


def settle(ctx: Context, term: Term) -> RoundSteps:
    with term.active():
        change = term.settlement()
    yield "settlement made"
    if change is None:
        yield Round.IDLE
        return
    ctx.store.apply(ctx.shard, term.epoch, change)
    yield "settled"
    with term.active():
        term.settled(change)
    if change.moves:
        ctx.wake.set()  # lanes with refused rows may go on
    yield Round.BUSY
