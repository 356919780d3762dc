"""Accept the wall clock: the operator says that it is right, and due time follows it in the shard's holder.

::

    accepted    due time is set to the wall clock, which is no longer disputed
    agreed      the wall clock was not disputed; nothing changes
    refused     the second clock is further than ``max_clock_skew_ms`` from the wall clock; nothing changes

The answer is committed before due time moves, so a withdrawn request moves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from celery_wheel.engine.commands.cancel_move import commit_command
from celery_wheel.engine.context import Context
from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.work import UnitOfWork
from celery_wheel.store.model import Answer

logger = logging.getLogger(__name__)

ACCEPTED, AGREED, REFUSED = "accepted", "agreed", "refused"


def accept_clock(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out the command; returns True, since it never stays in the inbox."""
    disputed_ms = ctx.clock.disputed_ms
    said = AGREED if not disputed_ms else ACCEPTED if ctx.clock.is_acceptable() else REFUSED
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        work.change.inbox = [command.item_id]
        if command.answer_to is not None:
            work.change.answers = [Answer(command.answer_to, dict.fromkeys(command.task_ids, said), work.now_ms)]
        work.reserve()
    if (yield from commit_command(ctx, work, command.item_id)) and said == ACCEPTED:
        ctx.clock.accept()
        logger.warning(
            "shard %d: due time follows the wall clock by %+d ms, as %s accepted",
            ctx.shard,
            disputed_ms,
            command.actor,
            extra={"action": "clock_accepted", "shard": ctx.shard, "step_ms": disputed_ms},
        )
        ctx.wake.set()
    return True
