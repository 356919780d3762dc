"""Commands: cancel and move, each with a verdict on every task that it names; ``recall`` has the others.

::

    find        the rows of the tasks, and those that rest
    revise      under the lock: rows that were not handed over are taken out of the lanes
    commit      their new place, the outcome, the answer, and the item's leaving the inbox: all of it or nothing
    place       moved rows wait at their new due time

    done        it will not leave any more; or it leaves at the new time
                a cancelled one is announced (see ``announce``)
    too_late    it was handed to the broker, or may have been
    unknown     nobody has heard of it; a cancelled one gets a tombstone, and does not leave if it comes within a day,
                unless it was sent anew behind the command, by way of the inbox

Before anything but ``done`` is said, all that was in the wheel queue when the command came is taken in: a command that
names a task of which nothing waits stays in the inbox while the wheel queue has more than fits into a round. What has
left, or rests, may be an earlier message of the same task; a retry has its id.

A command that was taken back meanwhile changes nothing: see ``store.changes``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from celery_wheel.engine.context import Context
from celery_wheel.engine.inbox import Command
from celery_wheel.engine.recall import recall
from celery_wheel.engine.revision import Revision, Why, commit, handed_over, relocate, withdraw
from celery_wheel.engine.term import Term
from celery_wheel.store.model import CANCEL, REPLAY, REQUEUE, Answer, Change, Row, Tombstone

DONE, TOO_LATE, UNKNOWN = "done", "too_late", "unknown"

#: For so long a cancelled task that nobody had heard of is waited for.
TOMBSTONE_MS = 86_400_000

#: From a broker to a scheduler that consumes its queue, a message takes less than this.
UNDER_WAY_MS = 300


def carry_out(
    ctx: Context, term: Term, command: Command, queue_is_empty: bool, anew: Collection[str] = ()
) -> Generator[str, None, bool]:
    """Returns whether it was; else it stays where it is.

    Args:
        queue_is_empty: whether all that was in the wheel queue after the command came has been taken in.
        anew: tasks of which a message is behind the command in the inbox.
    """
    if command.kind in (REQUEUE, REPLAY):
        return (yield from recall(ctx, term, command))
    found = ctx.store.find(ctx.shard, command.task_ids)
    known = {task_id for task_id, _ in found}
    missing = [task_id for task_id in command.task_ids if task_id not in known]
    resting = ctx.store.resting(ctx.shard, command.task_ids)
    yield "found"
    unknown = [task_id for task_id in missing if task_id not in resting]
    queue_is_empty = queue_is_empty and has_waited(ctx, term, command.item_id)
    now_ms = ctx.clock.now_ms()
    with term.active():
        waiting = {task_id for task_id, row in found if not handed_over(term, row)}
        if not queue_is_empty and not waiting.issuperset(command.task_ids):
            return False
        revision = _revise(term, command, found, now_ms)
    yield "revised"
    verdicts = dict.fromkeys(command.task_ids, TOO_LATE) | dict.fromkeys(unknown, UNKNOWN)
    verdicts |= dict.fromkeys(revision.task_ids, DONE)
    if command.kind == CANCEL:  # once more
        verdicts |= {task_id: DONE for task_id in missing if resting.get(task_id) == "cancelled"}
    _note(revision.change, command, verdicts, now_ms, anew)
    if not (yield from commit(ctx, term, revision, command.item_id)):
        return True
    if command.kind == CANCEL:
        ctx.stats.cancelled += len(revision.rows)
        ctx.untold.set()
    else:
        ctx.stats.moved += len(revision.rows)
    yield "command done"
    return True


def has_waited(ctx: Context, term: Term, item_id: int) -> bool:
    """A broker that pushes messages may have some under way to this process when its queue is empty."""
    if ctx.broker.keeps_offset:
        return True
    now_ms = ctx.clock.monotonic_ms()
    return now_ms - term.asked_ms.setdefault(item_id, now_ms) >= UNDER_WAY_MS


def _revise(term: Term, command: Command, found: list[tuple[str, Row]], now_ms: int) -> Revision:
    why = Why(command.reason, command.actor, now_ms)
    if command.kind == CANCEL:
        return withdraw(term, found, "cancelled", why)
    return relocate(term, found, command.eta_ms, why)


def _note(change: Change, command: Command, verdicts: dict[str, str], now_ms: int, anew: Collection[str]) -> None:
    change.inbox = [command.item_id]
    if command.answer_to is not None:
        change.answers = [Answer(command.answer_to, verdicts, now_ms)]
    if command.kind == CANCEL:
        until_ms = now_ms + TOMBSTONE_MS
        held_back = (UNKNOWN, TOO_LATE) if command.for_good else (UNKNOWN,)
        gone = [task_id for task_id, verdict in verdicts.items() if verdict in held_back]
        if not command.for_good:
            gone = [task_id for task_id in gone if task_id not in anew]
        change.tombstones = [Tombstone(task_id, until_ms, command.reason, command.actor) for task_id in gone]
