"""Accept the wall clock: due time of the shard's holder follows it, because the operator confirms that it is right.

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
from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

ACCEPTED, AGREED, REFUSED = "accepted", "agreed", "refused"


def accept_clock(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out the command; returns True, since it never stays in the inbox."""
    disputed_ms = ctx.clock.disputed_ms
    result = AGREED if not disputed_ms else ACCEPTED if ctx.clock.is_acceptable() else REFUSED
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        work.answer(command, dict.fromkeys(command.task_ids, result))
        work.reserve()
    if (yield from commit_command(ctx, work, command.item_id)) and result == ACCEPTED:
        ctx.clock.accept()
        logger.warning(
            "shard %d: due time follows the wall clock by %+d ms, as %s accepted",
            ctx.shard,
            disputed_ms,
            command.actor,
            extra={"action": "clock_accepted", "shard": ctx.shard, "step_ms": disputed_ms},
        )
        ctx.wake.set()
        ctx.room.set()
    return True
