"""Listen: wait in the broker for messages of the wheel queue, so that an idle ingest need not peek.

Ingest leaves a peek out only while the call is open and has found nothing, and no command waits in the inbox: a
command's answer needs a peek after the command. A broker that does not answer is peeked every ``poll_ms``. So is a
broker that cannot wait, and there listen has no round.

A file of its own, as each activity of the engine has one.
"""

from __future__ import annotations

from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.shard import ShardState

#: Milliseconds of one call; a call to Redis that has no answer after 5 seconds fails.
LISTEN_MS = 2_000


def listen(ctx: Context, state: ShardState) -> RoundSteps:
    """Wait for a message by one call to the broker; the round is busy where the wait is to go on."""
    if not ctx.broker.can_wait:
        yield Round.IDLE
        return
    watch = ctx.queue
    watch.is_open = must_peek = True
    try:
        yield "listens"
        must_peek = ctx.broker.await_message(ctx.shard, LISTEN_MS) or not ctx.broker.can_wait
    finally:
        watch.is_open = False
        if must_peek:  # also after an error: ingest has left out its peeks, and sleeps
            watch.arrived.set()
    yield Round.IDLE if must_peek else Round.BUSY
