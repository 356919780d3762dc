"""Completion: tasks that wait for a key, or for their time, whichever comes first; here the key does.

::

    look        all that was in the wheel queue when the command came is taken in; until then it stays in the inbox
    find        the rows that watch the keys
    revise      under the lock: those that were not handed over are taken out of the lanes
    commit      cancelled, or due now; their watches' end, the answer, and the item's leaving the inbox: all or nothing
    place       what is to run waits at its new due time

    done        by this command: it is cancelled, or leaves at once. Nothing completes it again
    too_late    it was handed to the broker by its time, or may have been

A key that nobody watches is answered with zeros. Keys may be used again: nothing is remembered of them. What has left
is counted as too late once, and then watches no more, so that a key that is used for years stays cheap.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.claims import Claimants, claimants
from celery_wheel.engine.commands import DONE, TOO_LATE, has_waited
from celery_wheel.engine.context import Context
from celery_wheel.engine.inbox import Completion
from celery_wheel.engine.revision import Revision, Why, relocate, revised, undone, withdraw
from celery_wheel.engine.term import Term
from celery_wheel.errors import TakenBack
from celery_wheel.store.model import WATCH, Answer, Row


def complete(ctx: Context, term: Term, command: Completion, queue_is_empty: bool) -> Generator[str, None, bool]:
    """Returns whether it was done; else it stays where it is.

    Args:
        queue_is_empty: whether all that was in the wheel queue after the command came has been taken in.
    """
    if not (queue_is_empty and has_waited(ctx, term, command.item_id)):
        return False
    watching = claimants(ctx, term, WATCH, command.keys)
    yield "watchers found"
    now_ms = ctx.clock.now_ms()
    with term.active():
        revision = _revise(term, command, watching, now_ms)
    yield "revised"
    change = revision.change
    change.unwatched += watching.left()
    change.inbox = [command.item_id]
    if command.answer_to is not None:
        change.answers = [Answer(command.answer_to, _counts(command, watching, revision), now_ms)]
    try:
        ctx.store.apply(ctx.shard, term.epoch, change)
    except TakenBack:
        yield "command taken back"
        with term.active():
            undone(term, revision)
            term.asked_ms.pop(command.item_id, None)
        ctx.wake.set()
        return True
    yield "command committed"
    with term.active():
        revised(term, revision)
        term.asked_ms.pop(command.item_id, None)
    ctx.wake.set()
    if change.watches:
        ctx.untold.set()
    ctx.stats.completed += len(revision.rows)
    yield "command done"
    return True


def _revise(term: Term, command: Completion, watching: Claimants, now_ms: int) -> Revision:
    rows: dict[int, tuple[str, Row]] = {}
    reasons: dict[int, str] = {}
    for key, task_id, row in watching.found:
        if row.id not in rows:  # a task that watches several of the keys is completed by the first
            rows[row.id] = task_id, row
            reasons[row.id] = f"completed by the key {key!r}" + (f": {command.reason}" if command.reason else "")
    why = Why(command.reason, command.actor, now_ms, reasons)
    found = list(rows.values())
    if not command.run:
        return withdraw(term, found, "cancelled", why)
    revision = relocate(term, found, None, why)
    revision.change.completed = [row.id for row in revision.rows]
    return revision


def _counts(command: Completion, watching: Claimants, revision: Revision) -> dict[str, dict[str, int]]:
    """For each key, what became of those that watch it."""
    done = {row.id for row in revision.rows}
    counts = {key: {DONE: 0, TOO_LATE: 0} for key in command.keys}
    for key, _, row in watching.found:
        counts[key][DONE if row.id in done else TOO_LATE] += 1
    return counts
