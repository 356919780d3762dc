"""Announce: the result backend, events and signals learn which tasks were cancelled.

::

    cancel      row in lane REST, outcome, watch UNANNOUNCED     one commit
    announce    rows with that watch ─► on_cancelled ─► ids it has announced ─► their watch is removed, one commit
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

from celery_wheel.engine.context import Context, Round, RoundSteps
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.store.model import Cancelled, Change

logger = logging.getLogger(__name__)

#: Rows announced in one call; each has its body, which may be large.
AT_ONCE = 50


def announce(ctx: Context, state: ShardState) -> RoundSteps:
    """Announce every row that is to be announced, once; the round has failed where some were not announced."""
    if ctx.on_cancelled is None:
        yield Round.IDLE
        return
    after, left = -1, 0
    while rows := ctx.store.unannounced(ctx.shard, after, AT_ONCE):
        yield "read"
        after = rows[-1].row.id
        living = _living(ctx, rows)
        yield "compared"
        try:
            told = living | ctx.on_cancelled([one for one in rows if one.row.id not in living])
        except Exception:  # raised by code of the application; the rows stay marked and are announced later
            logger.exception("cancelled tasks could not be announced", extra={"action": "announce"})
            told = living
        yield "told"
        left += len(rows) - len(told)
        if told:
            ctx.store.apply(ctx.shard, state.epoch, Change(unwatched=sorted(told)))
            yield "noted"
    yield Round.FAILED if left else Round.IDLE


def _living(ctx: Context, rows: Sequence[Cancelled]) -> set[int]:
    """Return the rows whose task id has a later row: pending, published, or among the rows to announce."""
    latest = {one.task_id: one.row.id for one in rows}  # rows come in the order of their ids
    for task_id, row in ctx.store.find(ctx.shard, list({one.task_id for one in rows})):
        latest[task_id] = max(row.id, latest.get(task_id, -1))
    return {one.row.id for one in rows if latest.get(one.task_id, -1) > one.row.id}
