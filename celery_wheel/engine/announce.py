"""Announce: tell the result backend, events and signals which tasks were cancelled.

::

    cancel      row in lane STOPPED, outcome, watch UNANNOUNCED     one commit
    announce    a page of rows with that watch ─► on_cancelled ─► ids that it has announced: their watch is removed
    lap         page after page, each from where the last one ended; a new lap while rows remain

After a failed round a page is one row, so that hardly anything is read while nothing works. A row is announced at least
once: a crash before the commit, or a slow former holder, may announce it again. A row is not announced where a later
message of the same task id is pending or published. ``on_cancelled`` may hang or fail: no lock is held meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.shard import Lap, ShardState
from celery_wheel.store.model import Change, Row
from celery_wheel.values.error_text import error_place
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Rows announced in one call; each has its body, which may be large.
MAX_ROWS = 50


def announce(ctx: Context, state: ShardState) -> RoundSteps:
    """Announce the next page of a lap; the round fails where nothing of it was announced, or rows remain of a lap."""
    if ctx.on_cancelled is None:
        yield Round.IDLE
        return
    lap = state.lap
    if lap.after < 0:
        ctx.unannounced.clear()  # this lap may miss what is cancelled from here on
    limit = 1 if lap.has_failed else MAX_ROWS
    # One more, so that no empty page ends a lap and waits.
    found = ctx.store.unannounced(ctx.shard, lap.after, limit + 1)
    rows = found[:limit]
    yield "read"
    if rows:
        superseded = _superseded(ctx, rows)
        yield "compared"
        left = [one for one in rows if one.id not in superseded]
        announced = _announced(ctx, left, logging.DEBUG if lap.has_failed else logging.ERROR)
        yield "announced"
        if done := superseded | announced:
            ctx.store.apply(ctx.shard, state.epoch, Change(unwatched=sorted(done)))
            yield "recorded"
        lap.after = rows[-1].id
        lap.is_incomplete |= len(done) < len(rows)
        lap.works_again |= lap.has_failed and bool(announced)
        lap.has_failed = bool(left) and not announced
    if len(found) <= limit:
        state.lap = Lap(has_failed=lap.has_failed)
        again_at_once = lap.works_again or (ctx.unannounced.is_set() and not lap.is_incomplete)
        yield Round.BUSY if again_at_once else Round.FAILED if lap.is_incomplete else Round.IDLE
    else:
        yield Round.FAILED if lap.has_failed else Round.BUSY


def _announced(ctx: Context, rows: Sequence[Row], level: int) -> set[int]:
    """Announce rows; returns the ids of those that are announced. An error is logged at ``level``."""
    if ctx.on_cancelled is None or not rows:
        return set()
    try:
        return ctx.on_cancelled(rows)
    except Exception as error:  # raised by code of the application; the rows stay marked and are announced later
        logger.log(
            level,
            "shard %d: cancelled tasks were not announced (%s); the engine tries again later; correct that error",
            ctx.shard,
            error_place(error),  # a traceback ends with a text that may quote a body
            extra={"action": "announce", "shard": ctx.shard},
        )
        return set()


def _superseded(ctx: Context, rows: Sequence[Row]) -> set[int]:
    """Return the rows whose task id has a later row: pending, published, or among the rows to announce."""
    latest = {one.task_id: one.id for one in rows}  # rows come in the order of their ids
    for row in ctx.store.find(ctx.shard, list({one.task_id for one in rows})):
        latest[row.task_id] = max(row.id, latest.get(row.task_id, -1))
    return {one.id for one in rows if latest.get(one.task_id, -1) > one.id}
