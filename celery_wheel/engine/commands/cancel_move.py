"""Cancel and move, each with a result for every task that it names.

::

    1 find      the pending and published rows of the tasks, and those in lane STOPPED
    2 revise    under the lock: pending rows are taken out of their lanes
    3 commit    new positions, outcomes, the answer and the deletion of the inbox item: all or none
    4 apply     moved rows wait at their new due time

    done        cancel: the task will not be published, and is announced (see ``announce``)
                move: the task is due at the new time
    already     cancel: the task was cancelled before
    too_late    the task was published or may have been, or its row is in lane STOPPED for another reason
    unknown     the store has no row of the task; a cancel leaves a tombstone, which cancels the task if its message
                arrives within a day, unless that message is behind the command in the inbox

Before a result is anything but ``done``, every message that was sent before the command is accepted, and no row of the
command moves to the lane of a gate or a destination: a command that names a task without a pending row stays in the
inbox until then. A row that was published or retired may be of an earlier message of the same task, since a retry has
the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.store.model import CANCEL, Row, TaskRow, Tombstone

DONE, ALREADY, TOO_LATE, UNKNOWN = "done", "already", "too_late", "unknown"

#: How long a tombstone keeps a cancelled id from being accepted.
TOMBSTONE_MS = 86_400_000


def cancel_or_move(
    ctx: Context, state: ShardState, command: Command, empty_at_ms: int | None, resent: Collection[str] = ()
) -> Generator[str, None, bool]:
    """Carry out a command on tasks; returns False where it has to stay in the inbox.

    Args:
        empty_at_ms: monotonic instant at which the wheel queue was peeked to its end; all of its messages are accepted
            by now. None: the queue had more messages.
        resent: ids of tasks with a message behind the command in the inbox.
    """
    with state.active():
        diversions = state.diversions
    found = ctx.store.find(ctx.shard, command.task_ids)
    known = {task_id for task_id, _ in found}
    missing = [task_id for task_id in command.task_ids if task_id not in known]
    outcomes = ctx.store.last_outcomes(ctx.shard, command.task_ids)
    yield "found"
    queue_is_empty = earlier_are_accepted(ctx, state, command.item_id, empty_at_ms)
    with state.active():
        pending = {task_id for task_id, row in found if not state.may_be_published(row.lane, row.position)}
        if not queue_is_empty and not pending.issuperset(command.task_ids):
            return False
        if state.may_be_diverted((row for _, row in found), diversions):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        done = _revise(work, command, found)
        results = dict.fromkeys(command.task_ids, TOO_LATE)
        results |= {task_id: UNKNOWN for task_id in missing if task_id not in outcomes}
        results |= dict.fromkeys(done, DONE)
        if command.kind == CANCEL:
            results |= {task_id: ALREADY for task_id in missing if outcomes.get(task_id) == "cancelled"}
        _record(work, command, results, resent)
        work.reserve()
    yield "reserved"
    if (yield from commit_command(ctx, work, command.item_id)):
        ctx.stats.add(**{"cancelled" if command.kind == CANCEL else "moved": len(work.rows)})
    return True


def earlier_are_accepted(ctx: Context, state: ShardState, item_id: int, empty_at_ms: int | None) -> bool:
    """Whether every message that was sent before the command is accepted.

    With a broker that pushes, messages may be under way to this process while the queue looks empty: only a peek at
    least ``transit_ms`` after the command was first read counts.
    """
    if empty_at_ms is None or not ctx.delivery.transit_ms:
        return empty_at_ms is not None
    first_read_at_ms = state.first_read_at_ms.setdefault(item_id, ctx.clock.monotonic_ms())
    return empty_at_ms - first_read_at_ms >= ctx.delivery.transit_ms


def commit_command(ctx: Context, work: UnitOfWork, item_id: int) -> Generator[str, None, bool]:
    """Commit the unit of work of a command; returns False where the request was withdrawn."""
    committed = yield from work.commit(ctx)
    with work.state.active():
        work.state.first_read_at_ms.pop(item_id, None)
    return committed


def _revise(work: UnitOfWork, command: Command, found: Iterable[TaskRow]) -> set[str]:
    """Cancel or move the pending rows; returns their task ids."""
    done: set[str] = set()
    for task_id, row in found:
        if not work.take_out(row):
            continue
        done.add(task_id)
        if command.kind == CANCEL:
            work.cancel(row, Retirement("cancelled", command.reason, command.actor))
        else:
            relocate(work, row, command.eta_ms, command.reason, command.actor)
    return done


def relocate(work: UnitOfWork, row: Row, eta_ms: int | None, reason: str, actor: str) -> None:
    """Give a row that was taken out another eta; None: now."""
    eta_ms = work.now_ms if eta_ms is None else eta_ms
    work.move(row, work.state.lanes.for_eta(eta_ms, work.now_ms), eta_ms, eta_ms)
    work.record_move(row, reason, actor)


def _record(work: UnitOfWork, command: Command, results: dict[str, str], resent: Collection[str]) -> None:
    change, now_ms = work.change, work.now_ms
    work.answer(command, results)
    if command.kind == CANCEL:
        until_ms = now_ms + TOMBSTONE_MS
        with_tombstone = (UNKNOWN, TOO_LATE) if command.for_good else (UNKNOWN,)
        task_ids = [task_id for task_id, result in results.items() if result in with_tombstone]
        if not command.for_good:
            task_ids = [task_id for task_id in task_ids if task_id not in resent]
        change.tombstones = [Tombstone(task_id, until_ms, command.reason, command.actor) for task_id in task_ids]
        work.on_apply(lambda: work.state.tombstones.add(task_ids))
