"""Announce: whoever keeps the books of tasks (the result backend, events, signals) is told what was cancelled.

::

    cancel      row at rest, outcome, watch WITHDRAWN          one commit
    announce    rows with that watch ─► on_withdrawn ─► those that it has seen to ─► their watch goes, one commit
                                              └ the others are told again later

A task id of which a later message waits or has left (one that replaced the cancelled one) is not told of: it goes on.

At least once: a crash between the telling and the commit has the next holder tell once more. By the holder alone, since
only a holder looks; a former one whose telling took long may have told what its follower tells too.

Whoever is told may be slow, away or broken. This is a thread of its own, which holds no lock meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_wheel.engine.context import Context, Round, RoundSteps
from celery_wheel.engine.term import Term
from celery_wheel.store.model import Change, Withdrawn

logger = logging.getLogger(__name__)

#: Rows told of at a time; each with its body, which may be large.
AT_ONCE = 50


def announce(ctx: Context, term: Term) -> RoundSteps:
    """Tell of all that is to be told, each once; those that were not seen to make the round a failed one."""
    if ctx.on_withdrawn is None:
        yield Round.IDLE
        return
    after, left = -1, 0
    while rows := ctx.store.withdrawn(ctx.shard, after, AT_ONCE):
        yield "read"
        after = rows[-1].row.id
        living = _living(ctx, rows)
        yield "compared"
        try:
            told = living | ctx.on_withdrawn([one for one in rows if one.row.id not in living])
        except Exception:  # of a stranger's code; nothing is lost, and nothing else waits for it
            logger.exception("cancelled tasks could not be announced", extra={"action": "announce"})
            told = living
        yield "told"
        left += len(rows) - len(told)
        if told:
            ctx.store.apply(ctx.shard, term.epoch, Change(unwatched=sorted(told)))
            yield "noted"
    yield Round.FAILED if left else Round.IDLE


def _living(ctx: Context, rows: Sequence[Withdrawn]) -> set[int]:
    """Rows of which a later message of the same task id waits, has left, or is told of with them."""
    latest = {one.task_id: one.row.id for one in rows}  # which come in the order of their ids
    for task_id, row in ctx.store.find(ctx.shard, list({one.task_id for one in rows})):
        latest[task_id] = max(row.id, latest.get(task_id, -1))
    return {one.row.id for one in rows if latest.get(one.task_id, -1) > one.row.id}
