"""Settle: what the broker has confirmed is written down, in a thread of its own so that dispatch waits for no fsync.

::

    confirm (dispatch)   unsettled: chunks that the broker has and the store does not know of
    settle               unsettled ─► settling ─► one change: offset, batch, tally, refused rows ─► offset
                         at most one under way; what is confirmed meanwhile is the next one's

A crash before the commit loses nothing: the broker's offset is ahead then, and adoption settles up to it. So a holder
that stands down while one is under way leaves the rest to the next adoption.

Where the broker keeps no offset, dispatch itself settles, together with the announcement of its next chunk: the store
has to know how far that goes before it leaves, and of two commits under way the later could put the offset back.

After a chunk of which rows were refused, its lane sends nothing more until that is settled (see ``Lane.take``).
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.context import Context, Round, RoundSteps
from celery_wheel.engine.lane import Chunk
from celery_wheel.engine.term import Term


def settle(ctx: Context, term: Term) -> RoundSteps:
    """One round of the thread."""
    if ctx.broker.keeps_offset:
        yield from settle_now(ctx, term)
    yield Round.IDLE


def settle_now(ctx: Context, term: Term, announced: Chunk | None = None) -> Generator[str, None, bool]:
    """Commit what is unsettled, together with how far a chunk goes that is about to leave; returns whether it did."""
    with term.active():
        settlement = term.settlement(announced)
    yield "settlement made"
    if settlement is None:
        return False
    ctx.store.apply(ctx.shard, term.epoch, settlement.change)
    yield "settled"
    with term.active():
        term.settled(settlement)
        if announced is not None:
            ctx.unsettled.set()  # what the other thread could not settle meanwhile
            announced.announced, announced.diverted, announced.missed = True, [], []
    if settlement.change.moves:
        ctx.wake.set()  # lanes with refused rows may go on
    return True
