"""Complete: cancel, or run at once, the pending tasks that watch a key.

::

    1 wait      the command stays in the inbox until every message that was sent before it is accepted
    2 find      the rows that watch the keys
    3 revise    under the lock: pending rows are taken out of their lanes
    4 commit    rows cancelled or due now, the end of their watches, the answer and the deletion of the inbox item: all
                or none
    5 apply     rows to run wait at their new due time

    done        this command cancelled the task or made it due now; no later command completes it again
    too_late    the task was published at its time, or may have been

The answer for a key without watchers has zeros. A key may be used again: the store keeps no record of completed keys. A
published row counts as too late once and then no longer watches, so that a key that is used for years stays cheap.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.commands.cancel_move import DONE, TOO_LATE, commit_command, earlier_are_accepted, relocate
from celery_wheel.engine.intake.admission import Claimants, claimants
from celery_wheel.engine.intake.inbox import Completion
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.store.model import WATCH, Row


def complete(
    ctx: Context, state: ShardState, command: Completion, empty_at_ms: int | None
) -> Generator[str, None, bool]:
    """Complete keys; returns False where the command has to stay in the inbox.

    Args:
        empty_at_ms: as ``cancel_move.cancel_or_move`` takes it.
    """
    if not earlier_are_accepted(ctx, state, command.item_id, empty_at_ms):
        return False
    watching = claimants(ctx, state, WATCH, command.keys)
    yield "watchers found"
    with state.active():
        if watching.are_stale(state):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        _revise(work, command, watching)
        work.change.unwatched += watching.published()
        work.answer(command, _counts(command, watching, work))
        work.reserve()
    yield "reserved"
    if (yield from commit_command(ctx, work, command.item_id)):
        ctx.stats.add(completed=len(work.rows))
    return True


def _revise(work: UnitOfWork, command: Completion, watching: Claimants) -> None:
    rows: dict[int, tuple[str, Row]] = {}
    for key, _, row in watching.found:
        rows.setdefault(row.id, (key, row))  # the first of several keys completes a task
    for key, row in rows.values():
        if not work.take_out(row):
            continue
        reason = f"completed by the key {key!r}" + (f": {command.reason}" if command.reason else "")
        if command.run:
            relocate(work, row, None, reason, command.actor)
            work.change.completed.append(row.id)
        else:
            work.cancel(row, Retirement("cancelled", reason, command.actor))


def _counts(command: Completion, watching: Claimants, work: UnitOfWork) -> dict[str, dict[str, int]]:
    """Return key → result → number of tasks."""
    done = {row.id for row in work.rows}
    counts = {key: {DONE: 0, TOO_LATE: 0} for key in command.keys}
    for key, _, row in watching.found:
        counts[key][DONE if row.id in done else TOO_LATE] += 1
    return counts
