"""Announce: tell the result backend, events and signals which tasks were cancelled.

::

    cancel      row in lane STOPPED, outcome, watch UNANNOUNCED     one commit
    announce    50 rows with that watch ─► on_cancelled ─► ids that it has announced: their watch is removed, one commit
                                              └ the other rows are passed to it again later

A cancelled row is not announced where a later message of the same task id is pending or published: the task goes on.

A row is announced at least once: after a crash between ``on_cancelled`` and the commit, the next holder announces it
again. Only the shard's holder announces; a former holder whose call took long may announce a row that its successor
announces too.

``on_cancelled`` may be slow, hang or fail: it runs in a thread of its own, which holds no lock meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import Change, TaskRow

logger = logging.getLogger(__name__)

#: Rows announced in one call; each has its body, which may be large.
MAX_ROWS = 50


def announce(ctx: Context, state: ShardState) -> RoundSteps:
    """Try once to announce every unannounced row; the round fails where some rows remain unannounced."""
    if ctx.on_cancelled is None:
        yield Round.IDLE
        return
    after, remaining = -1, 0
    while rows := ctx.store.unannounced(ctx.shard, after, MAX_ROWS):
        yield "read"
        after = rows[-1].row.id
        done = _superseded(ctx, rows)
        yield "compared"
        try:
            done |= ctx.on_cancelled([one for one in rows if one.row.id not in done])
        except Exception:  # raised by code of the application; the rows stay marked and are announced later
            logger.exception(
                "shard %d: cancelled tasks were not announced; the engine tries again later; correct the error below",
                ctx.shard,
                extra={"action": "announce", "shard": ctx.shard},
            )
        yield "announced"
        remaining += len(rows) - len(done)
        if done:
            ctx.store.apply(ctx.shard, state.epoch, Change(unwatched=sorted(done)))
            yield "recorded"
    yield Round.FAILED if remaining else Round.IDLE


def _superseded(ctx: Context, rows: Sequence[TaskRow]) -> set[int]:
    """Return the rows whose task id has a later row: pending, published, or among the rows to announce."""
    latest = {one.task_id: one.row.id for one in rows}  # rows come in the order of their ids
    for task_id, row in ctx.store.find(ctx.shard, list({one.task_id for one in rows})):
        latest[task_id] = max(row.id, latest.get(task_id, -1))
    return {one.row.id for one in rows if latest.get(one.task_id, -1) > one.row.id}
