"""Cancel and move, each with a result for every task that it names.

::

    find        the pending and published rows of the tasks, and those in lane REST
    revise      under the lock: pending rows are taken out of their lanes
    commit      new positions, outcomes, the answer and the deletion of the inbox item: all or none
    apply       moved rows wait at their new due time

    done        cancel: the task will not be published, and is announced (see ``announce``)
                move: the task is due at the new time
    already     cancel: the task was cancelled before
    too_late    the task was published or may have been, or its row is in lane REST for another reason
    unknown     the store has no row of the task; a cancel leaves a tombstone, and the task is cancelled if its message
                arrives within a day, unless that message is behind the command in the inbox

Before the answer is anything but ``done``, every message that was in the wheel queue when the command came is accepted:
a command that names a task without a pending row stays in the inbox until then. A row that was published or retired may
be of an earlier message of the same task, since a retry has the same id.

A withdrawn request changes nothing: see ``work``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from celery_wheel.engine.commands.recall import recall
from celery_wheel.engine.context import Context
from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.work import Resting, UnitOfWork
from celery_wheel.store.model import CANCEL, REPLAY, REQUEUE, Answer, Row, Tombstone

DONE, ALREADY, TOO_LATE, UNKNOWN = "done", "already", "too_late", "unknown"

#: How long a tombstone keeps a cancelled id from being accepted.
TOMBSTONE_MS = 86_400_000


def carry_out(
    ctx: Context, state: ShardState, command: Command, empty_at_ms: int | None, anew: Collection[str] = ()
) -> Generator[str, None, bool]:
    """Carry out a command on tasks; returns False where it has to stay in the inbox.

    Args:
        empty_at_ms: monotonic, when the wheel queue was read to its end, all of which is accepted by now; None: it had
            more messages.
        anew: ids of tasks with a message behind the command in the inbox.
    """
    if command.kind in (REQUEUE, REPLAY):
        return (yield from recall(ctx, state, command))
    found = ctx.store.find(ctx.shard, command.task_ids)
    known = {task_id for task_id, _ in found}
    missing = [task_id for task_id in command.task_ids if task_id not in known]
    resting = ctx.store.resting(ctx.shard, command.task_ids)
    yield "found"
    queue_is_empty = all_has_come(ctx, state, command.item_id, empty_at_ms)
    with state.active():
        pending = {task_id for task_id, row in found if not state.may_have_left(row.lane, row.position)}
        if not queue_is_empty and not pending.issuperset(command.task_ids):
            return False
        work = UnitOfWork(state, ctx.clock.now_ms())
        done = _revise(work, command, found)
        results = dict.fromkeys(command.task_ids, TOO_LATE)
        results |= {task_id: UNKNOWN for task_id in missing if task_id not in resting}
        results |= dict.fromkeys(done, DONE)
        if command.kind == CANCEL:
            results |= {task_id: ALREADY for task_id in missing if resting.get(task_id) == "cancelled"}
        _note(work, command, results, anew)
        work.reserve()
    yield "reserved"
    if not (yield from commit_command(ctx, work, command.item_id)):
        return True
    if command.kind == CANCEL:
        ctx.stats.add(cancelled=len(work.rows))
    else:
        ctx.stats.add(moved=len(work.rows))
    return True


def all_has_come(ctx: Context, state: ShardState, item_id: int, empty_at_ms: int | None) -> bool:
    """Whether every message that was sent before the command is accepted.

    With a broker that pushes, messages may be under way to this process while the queue looks empty: only a look that
    came ``on_its_way_ms`` after the command was first read counts.
    """
    if empty_at_ms is None or not ctx.delivery.on_its_way_ms:
        return empty_at_ms is not None
    asked_ms = state.asked_ms.setdefault(item_id, ctx.clock.monotonic_ms())
    return empty_at_ms - asked_ms >= ctx.delivery.on_its_way_ms


def commit_command(ctx: Context, work: UnitOfWork, item_id: int) -> Generator[str, None, bool]:
    """Commit the unit of work of a command; returns False where its asker withdrew it."""
    committed = yield from work.commit(ctx)
    with work.state.active():
        work.state.asked_ms.pop(item_id, None)
    return committed


def _revise(work: UnitOfWork, command: Command, found: list[tuple[str, Row]]) -> set[str]:
    """Cancel or move the pending rows; returns their task ids."""
    done: set[str] = set()
    for task_id, row in found:
        if not work.take_out(row):
            continue
        done.add(task_id)
        if command.kind == CANCEL:
            work.cancel(row, Resting("cancelled", command.reason, command.actor))
        else:
            relocate(work, row, command.eta_ms, command.reason, command.actor)
    return done


def relocate(work: UnitOfWork, row: Row, eta_ms: int | None, reason: str, actor: str) -> None:
    """Give a row that was taken out another eta; None: now."""
    eta_ms = work.now_ms if eta_ms is None else eta_ms
    work.move(row, work.state.lanes.for_eta(eta_ms, work.now_ms), eta_ms, eta_ms)
    work.moved(row, reason, actor)


def _note(work: UnitOfWork, command: Command, results: dict[str, str], anew: Collection[str]) -> None:
    change, now_ms = work.change, work.now_ms
    change.inbox = [command.item_id]
    if command.answer_to is not None:
        change.answers = [Answer(command.answer_to, results, now_ms)]
    if command.kind == CANCEL:
        until_ms = now_ms + TOMBSTONE_MS
        held_back = (UNKNOWN, TOO_LATE) if command.for_good else (UNKNOWN,)
        gone = [task_id for task_id, result in results.items() if result in held_back]
        if not command.for_good:
            gone = [task_id for task_id in gone if task_id not in anew]
        change.tombstones = [Tombstone(task_id, until_ms, command.reason, command.actor) for task_id in gone]
        work.on_apply(lambda: work.state.tombstones.add(gone))
