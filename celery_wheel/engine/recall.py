"""Recall: what was set aside, or left already, leaves once more, because somebody asked for it.

::

    requeue   rows at rest, not cancelled ─► the lane of what is due now
    replay    rows that left, at or before the offset ─► a lane of their own, all of which may be in its queue already

    done        it leaves now
    too_late    requeue: it waits, has left, or rests for another reason     replay: it waits, rests, or left just now
    unknown     the store does not know it, or it is bytes that could not be read and have no destination

Replayed rows are due now, in the order in which they are named, and stand in nobody's way: their lane is theirs. Where
the broker keeps no offset they are marked, and cancelling one of them answers ``too_late``, for it may have run. There
it is the same with a requeue of what the broker refused: it may have been refused the second time only, when a holder
sent again what the one before it may have sent already.

A row that left is only taken where no later adoption can ask for it: the broker remembers what was in the range that it
was given and the store did not know of yet, and takes a row that is missing there for writes that it has lost.

Rows and history are looked at and changed under the term's ``history`` lock, so that none is forgotten in between.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

from celery_wheel.engine.context import Context
from celery_wheel.engine.inbox import Command
from celery_wheel.engine.revision import Revision, give_back, revised
from celery_wheel.engine.term import Term
from celery_wheel.errors import RequestWithdrawn
from celery_wheel.store.model import HOUR_MS, REPLAY, SET_ASIDE, Answer, Change, Move, Outcome, Position, Row


def recall(ctx: Context, term: Term, command: Command) -> Generator[str, None, bool]:
    """Returns whether it was carried out, as ``commands.carry_out`` does."""
    now_ms = ctx.clock.now_ms()
    with term.history:
        if command.kind == REPLAY:
            rows, verdicts = _replayable(ctx, term, command)
            redelivered = {row.id for row in rows}
        else:
            rows, redelivered, verdicts = _set_aside(ctx, command)
        with term.active():
            if command.kind == REPLAY:
                verdicts.update({str(row.id): "too_late" for row in rows if not _is_closed(term, row)})
                rows = [row for row in rows if verdicts[str(row.id)] == "done"]
            revision = _bring_back(term, rows, redelivered, command, now_ms)
        if command.answer_to is not None:
            revision.change.answers = [Answer(command.answer_to, verdicts, now_ms)]
        try:
            ctx.store.apply(ctx.shard, term.epoch, revision.change)
        except RequestWithdrawn:
            with term.active():
                give_back(term, revision)
            return True
    yield "recall committed"
    with term.active():
        revised(term, revision)
    ctx.wake.set()
    ctx.stats.moved += len(rows)
    yield "recall done"
    return True


def _set_aside(ctx: Context, command: Command) -> tuple[list[Row], set[int], dict[str, str]]:
    found = ctx.store.set_aside(ctx.shard, command.task_ids)
    there = {task_id for task_id, _ in ctx.store.find(ctx.shard, command.task_ids)} | {one[0] for one in found}
    wanted = [(id_, kind, row) for id_, kind, row in found if kind in SET_ASIDE and (row.exchange or row.routing_key)]
    verdicts = {id_: "too_late" if id_ in there else "unknown" for id_ in command.task_ids}
    verdicts |= {id_: "done" for id_, _, _ in wanted}
    redelivered = set() if ctx.broker.keeps_offset else {row.id for _, kind, row in wanted if kind == "rejected"}
    return [row for _, _, row in wanted], redelivered, verdicts


def _replayable(ctx: Context, term: Term, command: Command) -> tuple[list[Row], dict[str, str]]:
    rows = {row.id: row for row in ctx.store.rows(ctx.shard, [int(one) for one in command.task_ids])}
    known = [rows[int(one)] for one in command.task_ids if int(one) in rows]
    verdicts = dict.fromkeys(command.task_ids, "unknown") | {str(row.id): "done" for row in known}
    return known, verdicts


def _is_closed(term: Term, row: Row) -> bool:
    lane = term.lanes.get(row.lane)
    return lane is not None and row.position <= lane.closed


def _bring_back(
    term: Term, rows: Iterable[Row], redelivered: Collection[int], command: Command, now_ms: int
) -> Revision:
    """``again``: those of the rows that may be in their queue already."""
    revision = Revision(Change(inbox=[command.item_id]), rows=list(rows))
    change, lowest = revision.change, dict[int, Position]()
    change.unwatched = [row.id for row in revision.rows]  # it completes with no key any more, and is unique no more
    for row in revision.rows:
        lane = term.lane_for(now_ms, now_ms, redelivered=row.id in redelivered)
        move = Move(row.id, lane.number, max(now_ms, lane.watermark.due_ms), term.next_seq(), now_ms)
        change.moves.append(move)
        change.outcomes.append(Outcome(term.next_seq(), row.id, "moved", command.reason, command.actor, now_ms))
        key = row.tally_key._replace(hour=move.due_ms // HOUR_MS)
        change.tally[key] = change.tally.get(key, 0) + 1
        lowest.setdefault(lane.number, Position(move.due_ms, move.seq))
    revision.tokens = [(number, term.lanes[number].reserve(position)) for number, position in lowest.items()]
    change.lanes = term.new_lanes()
    change.seq = term.seq
    return revision
