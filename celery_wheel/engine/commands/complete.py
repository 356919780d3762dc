"""Complete: a key ends the waiting of the tasks that watch it; they are cancelled or run at once.

::

    look        the command stays in the inbox until every message that was in the wheel queue is accepted
    find        the rows that watch the keys
    revise      under the lock: pending rows are taken out of their lanes
    commit      rows cancelled or due now, the end of their watches, the answer and the deletion of the inbox item: all
                or none
    apply       rows that are to run wait at their new due time

    done        this command cancelled the task or makes it due now; nothing completes it again
    too_late    the task was published at its time, or may have been

The answer for a key without watchers has zeros. A key may be used again: the store remembers nothing of it. A published
row is counted as too late once and then watches no more, so that a key that is used for years stays cheap.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.commands.cancel_move import DONE, TOO_LATE, all_has_come, commit_command, relocate
from celery_wheel.engine.context import Context
from celery_wheel.engine.intake.inbox import Completion
from celery_wheel.engine.intake.uniqueness import Claimants, claimants
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.work import Resting, UnitOfWork
from celery_wheel.store.model import WATCH, Answer, Row


def complete(
    ctx: Context, state: ShardState, command: Completion, empty_at_ms: int | None
) -> Generator[str, None, bool]:
    """Complete keys; returns False where the command has to stay in the inbox.

    Args:
        empty_at_ms: as ``cancel_move.carry_out`` takes it.
    """
    if not all_has_come(ctx, state, command.item_id, empty_at_ms):
        return False
    watching = claimants(ctx, state, WATCH, command.keys)
    yield "watchers found"
    with state.active():
        work = UnitOfWork(state, ctx.clock.now_ms())
        _revise(work, command, watching)
        work.change.unwatched += watching.left()
        work.change.inbox = [command.item_id]
        if command.answer_to is not None:
            work.change.answers = [Answer(command.answer_to, _counts(command, watching, work), work.now_ms)]
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
            work.cancel(row, Resting("cancelled", reason, command.actor))


def _counts(command: Completion, watching: Claimants, work: UnitOfWork) -> dict[str, dict[str, int]]:
    """Return key → result → number of tasks."""
    done = {row.id for row in work.rows}
    counts = {key: {DONE: 0, TOO_LATE: 0} for key in command.keys}
    for key, _, row in watching.found:
        counts[key][DONE if row.id in done else TOO_LATE] += 1
    return counts
