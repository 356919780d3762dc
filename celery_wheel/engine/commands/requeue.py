"""Requeue and replay: publish rejected, expired or published rows once more.

::

    requeue   rows in lane STOPPED, but cancelled ones ─► the main lane, due now
    replay    rows at or before the offset ─► a lane for rows that may be in their queue already, due now

    done        the task is due now
    too_late    requeue: the task is pending, published or cancelled, or its bytes are unreadable
                replay: the row is pending, in lane STOPPED, or was published a moment ago
    unknown     the store has no such row

Replayed rows are due now, in the order of the command, and delay no other row: their lane is their own. A cancel of a
replayed row answers ``too_late``, since it may have run; where the broker keeps no offset, replayed rows are marked as
redelivered. There both hold for a requeued row that was rejected, too: an earlier holder may have published it before a
later holder's attempt was rejected.

A published row is replayed only where no later adoption needs it: the broker keeps a checksum of the rows between the
store's offset and its own, and adoption treats a row that is missing there as a rollback.

Rows and history are read and changed under the state's ``history`` lock, so that no row is forgotten in between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from celery_wheel.engine.intake.inbox import Command
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.model import REPLAY, REQUEUABLE, Row


def requeue_or_replay(ctx: Context, state: ShardState, command: Command) -> Generator[str, None, bool]:
    """Carry out a requeue or a replay; returns True, since it never stays in the inbox."""
    with state.history:
        if command.kind == REPLAY:
            rows, results = _replayable(ctx, command)
            redelivered = {row.id for row in rows}
        else:
            rows, redelivered, results = _requeueable(ctx, command)
        with state.active():
            if command.kind == REPLAY:
                results.update({str(row.id): "too_late" for row in rows if not _is_closed(state, row)})
                rows = [row for row in rows if results[str(row.id)] == "done"]
            work = UnitOfWork(state, ctx.clock.now_ms())
            _publish_again(work, rows, redelivered, command)
            work.answer(command, results)
            work.reserve()
        steps = work.commit(ctx)
        next(steps)  # the commit itself, before rows can be forgotten
    yield "committed under the history lock"
    if (yield from steps):
        ctx.stats.add(moved=len(rows))
    return True


def _requeueable(ctx: Context, command: Command) -> tuple[list[Row], set[int], dict[str, str]]:
    found = ctx.store.stopped_rows(ctx.shard, command.task_ids)
    stored = {task_id for task_id, _ in ctx.store.find(ctx.shard, command.task_ids)} | {one[0] for one in found}
    wanted = [
        (id_, kind, row)
        for id_, kind, row in found
        if kind in REQUEUABLE and (row.route.exchange or row.route.routing_key)
    ]
    results = {id_: "too_late" if id_ in stored else "unknown" for id_ in command.task_ids}
    results |= {id_: "done" for id_, _, _ in wanted}
    in_doubt = ctx.delivery.prepares
    redelivered = {row.id for _, kind, row in wanted if in_doubt and kind == "rejected"}
    return [row for _, _, row in wanted], redelivered, results


def _replayable(ctx: Context, command: Command) -> tuple[list[Row], dict[str, str]]:
    rows = {row.id: row for row in ctx.store.rows(ctx.shard, [int(one) for one in command.task_ids])}
    known = [rows[int(one)] for one in command.task_ids if int(one) in rows]
    results = dict.fromkeys(command.task_ids, "unknown") | {str(row.id): "done" for row in known}
    return known, results


def _is_closed(state: ShardState, row: Row) -> bool:
    """Whether no later adoption needs the row; all rows of a closed lane are settled."""
    lane = state.lanes.get(row.lane)
    return row.lane >= 0 if lane is None else row.position <= lane.replayable


def _publish_again(work: UnitOfWork, rows: Iterable[Row], redelivered: Collection[int], command: Command) -> None:
    """Make rows due now; ``redelivered`` has the ids of rows that may be in their queue already."""
    for row in rows:
        work.rows.append(row)
        work.change.unwatched.append(row.id)  # no key completes the row any more, and it claims no unique key
        work.move(
            row, work.state.lanes.for_eta(work.now_ms, work.now_ms, row.id in redelivered), work.now_ms, work.now_ms
        )
        work.record_move(row, command.reason, command.actor)
