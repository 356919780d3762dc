"""Revision: rows that were not handed over yet are taken out of their lanes, to rest or to wait for another time.

::

    withdraw ─┬─ found rows ─► taken out of the window ─► commit ─► revised: at rest
    relocate ─┘    └ their old and new places are reserved  │               └ or waiting at the new place
                                                            └ who asked has taken it back ─► undone: as before

A row that may have been handed to the broker stays where it is: whoever asked is told that it is too late.

Old positions stay reserved until the change is committed: what lies between the ends of a chunk and is not in it has
its outcome in the store before the chunk leaves. All is done under the term's lock, but for the commit.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from celery_wheel.engine.context import Context
from celery_wheel.engine.term import Term
from celery_wheel.errors import Fenced, RequestWithdrawn
from celery_wheel.store.model import HOUR_MS, REST, WITHDRAWN, Change, Move, Outcome, Position, Row, Watch


@dataclass(slots=True, eq=False)
class Revision:
    """Rows taken out of the lanes: a change to commit, and what is reserved meanwhile."""

    change: Change
    rows: list[Row] = field(default_factory=list)
    task_ids: set[str] = field(default_factory=set)
    tokens: list[tuple[int, int]] = field(default_factory=list)  #: (lane number, reservation)


@dataclass(slots=True, frozen=True)
class Why:
    """What the store is told of a revision."""

    reason: str
    actor: str
    at_ms: int
    reasons: Mapping[int, str] = field(default_factory=dict)  #: of rows that have one of their own

    def of(self, row: Row) -> str:
        return self.reasons.get(row.id, self.reason)


def withdraw(term: Term, found: Sequence[tuple[str, Row]], kind: str, why: Why) -> Revision:
    """Lay those of the rows, each with its task id, to rest that have not been handed over."""
    revision = _take_out(term, found)
    for row in revision.rows:
        term.lay_to_rest(revision.change, row.id, kind, why.of(row), why.actor, why.at_ms)
    revision.change.unwatched = [row.id for row in revision.rows]
    if kind == "cancelled":
        revision.change.watches += [Watch(WITHDRAWN, "", row.id) for row in revision.rows]
    revision.change.seq = term.seq
    return revision


def relocate(term: Term, found: Sequence[tuple[str, Row]], eta_ms: int | None, why: Why) -> Revision:
    """Give those of the rows that have not been handed over another due time; None: now."""
    revision = _take_out(term, found)
    change, eta_ms = revision.change, why.at_ms if eta_ms is None else eta_ms
    for row in revision.rows:
        lane = term.lane_for(eta_ms, why.at_ms)
        move = Move(row.id, lane.number, max(eta_ms, lane.watermark.due_ms), term.next_seq(), eta_ms)
        change.moves.append(move)
        change.outcomes.append(Outcome(term.next_seq(), row.id, "moved", why.of(row), why.actor, why.at_ms))
        key = row.tally_key._replace(hour=move.due_ms // HOUR_MS)
        change.tally[key] = change.tally.get(key, 0) + 1
        revision.tokens.append((lane.number, lane.reserve(Position(move.due_ms, move.seq))))
    change.lanes = term.new_lanes()
    change.seq = term.seq
    return revision


def handed_over(term: Term, row: Row) -> bool:
    """Whether it was, or for all that is known may have been."""
    lane = term.lanes.get(row.lane)
    if lane is None:
        raise Fenced(f"row {row.id} is in lane {row.lane}, which another holder of shard {term.shard} has opened")
    return row.position <= lane.watermark or lane.redelivered


def _take_out(term: Term, found: Sequence[tuple[str, Row]]) -> Revision:
    revision = Revision(Change())
    change = revision.change
    for task_id, row in found:
        if handed_over(term, row):
            continue
        lane = term.lanes[row.lane]
        revision.tokens.append((lane.number, lane.reserve(row.position)))
        term.window.withdraw(row.id)
        revision.rows.append(row)
        revision.task_ids.add(task_id)
        change.tally[row.tally_key] = change.tally.get(row.tally_key, 0) - 1
    return revision


def commit(ctx: Context, term: Term, revision: Revision, item_id: int) -> Generator[str, None, bool]:
    """Write what a command has revised. Returns False where who asked has taken it back: all is as before then."""
    try:
        ctx.store.apply(ctx.shard, term.epoch, revision.change)
    except RequestWithdrawn:
        committed, step, take_effect = False, "command taken back", undone
    else:
        committed, step, take_effect = True, "command committed", revised
    yield step
    with term.active():
        take_effect(term, revision)
        term.asked_ms.pop(item_id, None)
        if committed:
            term.bury(revision.change.tombstones)
    ctx.wake.set()
    return committed


def revised(term: Term, revision: Revision) -> None:
    """The change is committed: moved rows wait at their new place, and the reservations are given back."""
    window = term.window
    window.withdrawn(row.id for row in revision.rows)
    for state in revision.change.lanes:
        term.lanes[state.lane].in_store = True
    moves = {move.id: move for move in revision.change.moves}
    for row in revision.rows:
        move = moves[row.id]
        row.lane, row.due_ms, row.seq = move.lane, move.due_ms, move.seq
        if move.eta_ms is not None:
            row.eta_ms = move.eta_ms
        if row.lane != REST:
            window.place(term.lanes[row.lane], row)
    give_back(term, revision)
    window.evict(term.lanes)


def undone(term: Term, revision: Revision) -> None:
    """The change was not committed, and will not be: the rows wait where they did."""
    window = term.window
    window.withdrawn(row.id for row in revision.rows)
    for row in revision.rows:
        window.place(term.lanes[row.lane], row)
    give_back(term, revision)
    window.evict(term.lanes)


def give_back(term: Term, revision: Revision) -> None:
    """The reservations."""
    for number, token in revision.tokens:
        term.lanes[number].release(token)
