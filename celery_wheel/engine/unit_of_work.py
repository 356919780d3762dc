"""A unit of work: the one way in which a shard's state changes, in memory and in the store alike.

::

    under the lock    build      rows are accepted, moved or retired, lanes settled, gates set: one ``Change``
                      reserve    the lowest position that it touches in each lane: dispatch takes no row at or after it
    one call          commit     store.apply: one transaction, fenced by the epoch
    under the lock    apply      rows are placed at their new positions; offsets and gates are as committed
                      or         roll back: the request was withdrawn; every row is back at its old position
                      release    the reservations end; dispatch is woken

Promises. A row between the ends of a chunk that is not in the chunk has its outcome in the store before the chunk is
published: old positions stay reserved until the commit. No slice that was read earlier brings back a row that was
removed from the window. A change that may or may not be in the store (CommitInDoubt) is neither applied nor rolled
back: the state ends, and the shard is adopted anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from celery_wheel.engine.intake.inbox import AnyCommand, audit_entries
from celery_wheel.engine.round import Context, Steps
from celery_wheel.engine.state.gates import GROUP, LINE, Place
from celery_wheel.engine.state.groups import Line
from celery_wheel.engine.state.lane import END, MAIN, Lane, Unsettled
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.errors import CommitInDoubt, Fenced, RequestWithdrawn, StoreError, StoreRolledBack
from celery_wheel.store import model
from celery_wheel.store.schedule_model import Run


@dataclass(slots=True, frozen=True)
class Retirement:
    """Why a row is retired: it moves to lane STOPPED with this outcome and is not published."""

    kind: str
    reason: str
    actor: str


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One change; built and reserved in one section under the state's lock, then committed without the lock."""

    state: ShardState
    now_ms: int
    change: model.Change = field(default_factory=model.Change)
    apart: Collection[str] = ()  #: envelope ids of rows that go to another lane than the main one
    rows: list[model.Row] = field(default_factory=list)  #: taken out of their lanes, or requeued from the store
    _moved: list[tuple[model.Row, model.Move]] = field(default_factory=list)
    _lowest: dict[int, tuple[int, int]] = field(default_factory=dict)  #: lane → position to reserve
    _tokens: list[tuple[Lane, int]] = field(default_factory=list)
    _saved: dict[int, tuple[Lane, model.Position]] = field(default_factory=dict)  #: lane → (lane to write, its offset)
    _tally: dict[tuple[int, model.Route], int] = field(default_factory=dict)  #: by hour and route
    _taken_out: set[int] = field(default_factory=set)
    _applied: list[Callable[[], None]] = field(default_factory=list)
    _rolled_back: list[Callable[[], None]] = field(default_factory=list)
    _diverts: bool = False
    _frees: bool = False  #: slots of groups end
    _lines: dict[int, tuple[Line, int, int]] = field(default_factory=dict)  #: number → line, rows in, rows out
    _removed: set[int] | None = None  #: rows that other units remove from the window before this unit is applied

    # -- build: under the lock ---------------------------------------------------------------------

    def accept(self, message: model.Message) -> model.StoredMessage:
        """Accept a message: it becomes a row with a position."""
        state, seq = self.state, self.state.next_seq()
        lane = state.lanes.for_eta(message.eta_ms, self.now_ms, apart=message.envelope_id in self.apart)
        due_ms = lane.late_due_ms(message.eta_ms)
        new = model.StoredMessage(seq, lane.number, due_ms, seq, self.now_ms, message)
        self.change.rows.append(new)
        # Plain tuples in the loops and named tuples at the end: making a named tuple costs three times as much.
        self._count(due_ms, model.Route.of(message), 1)
        self._touch(lane, due_ms, seq)
        return new

    def accept_block(self, block: model.MessageBlock) -> None:
        """Accept all messages of a block, in their order."""
        lane, first_due_ms = self.state.lanes[MAIN], min(block.eta_ms)
        if lane.watermark.due_ms > max(first_due_ms, self.now_ms):  # due time is behind: some may have another lane
            for message in block.messages():
                self.accept(message)
            return
        first, due_ms = self.state.next_seqs(len(block)), block.eta_ms
        if first_due_ms < lane.watermark.due_ms:
            due_ms = list(map(lane.late_due_ms, due_ms))
        self.change.blocks.append(model.NewBlock(first, lane.number, due_ms, self.now_ms, block))
        for hour, n in Counter([one // model.HOUR_MS for one in due_ms]).items():
            self._count(hour * model.HOUR_MS, block.route, n)
        self._touch(lane, min(due_ms), first)

    def accept_retired(self, message: model.Message, why: Retirement) -> None:
        """Accept a message that will not be published: its row is retired at once."""
        seq = self.state.next_seq()
        self.change.rows.append(model.StoredMessage(seq, model.STOPPED, self.now_ms, seq, self.now_ms, message))
        self._outcome(seq, why.kind, why.reason, why.actor, self.now_ms)
        if why.kind == "cancelled":
            self.mark_unannounced([seq])

    def reject(self, unreadable: model.Unreadable) -> None:
        """Keep the bytes of an unreadable message, as rejected."""
        seq = self.state.next_seq()
        self.change.rejects.append(model.NewReject(seq, self.now_ms, unreadable))
        self._outcome(seq, "rejected", unreadable.reason, "wheel", self.now_ms)

    def take_out(self, row: model.Row) -> bool:
        """Take a pending row out of its lane, to move or retire it; False where it may have been published."""
        state = self.state
        if state.may_be_published(row):
            return False
        if row.lane == model.WAITING:
            line = state.groups.line_of(row)
            if line is None or state.window.is_being_removed(row.id):
                return False
            self._count_line(line, leaving=1)
        else:
            self._touch(state.lanes[row.lane], row.due_ms, row.seq)
        state.window.remove(row.id)
        self._give_back(row.id)
        self._taken_out.add(row.id)
        self.rows.append(row)
        self._count(row.due_ms, row.route, -1)
        return True

    def retire(self, row_id: int, kind: str, reason: str, actor: str, at_ms: int | None = None) -> None:
        """Retire a row with an outcome; the caller has subtracted it from the tally of pending rows."""
        at_ms = self.now_ms if at_ms is None else at_ms
        self._give_back(row_id)
        self.change.moves.append(model.Move(row_id, model.STOPPED, at_ms, self.state.next_seq()))
        self._outcome(row_id, kind, reason, actor, at_ms)

    def _give_back(self, row_id: int) -> None:
        """End the slot of a row that its group's limits count, if it has one: it will not be published."""
        if self.state.groups:
            self._frees = True
            self.on_apply(partial(self.state.groups.give_back, row_id))

    def cancel(self, row: model.Row, why: Retirement) -> None:
        """Retire a row that was taken out, and end its claims on keys; a cancelled row will be announced."""
        self.retire(row.id, why.kind, why.reason, why.actor)
        self.change.unwatched.append(row.id)
        if why.kind == "cancelled":
            self.mark_unannounced([row.id])

    def erase(self, row: model.Row) -> None:
        """Remove a row that was taken out, or that is history, with its outcomes, claims and run."""
        self._give_back(row.id)
        self.change.erased.append(row.id)

    def move(self, row: model.Row, lane: Lane, due_ms: int, eta_ms: int | None = None) -> None:
        """Give a row another position, after the lane's watermark."""
        move = model.Move(row.id, lane.number, lane.late_due_ms(due_ms), self.state.next_seq(), eta_ms)
        self.change.moves.append(move)
        self._moved.append((row, move))
        self._count(move.due_ms, row.route, 1)
        self._touch(lane, move.due_ms, move.seq)

    def divert(self, row: model.Row, place: Place, redelivered: bool) -> None:
        """Move a row of a chunk to the lane of a place; diverted rows keep their order."""
        if place is LINE:
            self.wait(row, redelivered)
            return
        if place[0] is not None:  # a row that its queue has refused keeps its slot
            self._give_back(row.id)
        window, lane = self.state.window, self.state.lanes.for_place(place)
        if lane.number not in self._lowest and not window.has_more(lane, max(row.due_ms, lane.last_due_ms)):
            lane.redelivered = False
        lane.redelivered |= redelivered
        self._diverts = True
        self._count(row.due_ms, row.route, -1)
        self.move(row, lane, row.due_ms)
        lane.last_due_ms = max(lane.last_due_ms, self._moved[-1][1].due_ms)

    def wait(self, row: model.Row, redelivered: bool) -> None:
        """Move a row of a chunk into the line of its group; rows of a chunk keep their order."""
        groups, change = self.state.groups, self.change
        line = groups.line_for(row)
        line.entering += 1
        self._count_line(line, entering=1)
        if groups.has_slot(row):  # it was released before
            self._give_back(row.id)
        self._diverts = True
        move = model.Move(
            row.id, model.WAITING, row.due_ms, self.state.next_seq(), line=groups.code(line, row, redelivered)
        )
        change.moves.append(move)
        self._moved.append((row, move))

    def release(self, row: model.Row, line: Line) -> None:
        """Move a row out of its line, to be published: behind the watermark, so before all other rows of the lane.

        The watermark of a former holder may have been further on, and so may rows be that it released from this line.
        """
        self._count_line(line, leaving=1)
        self.state.window.remove(row.id)
        self._taken_out.add(row.id)
        self.rows.append(row)
        self._count(row.due_ms, row.route, -1)
        redelivered = row.line is not None and model.is_redelivered(row.line)
        due_ms = max(row.due_ms, self.state.adopted_ms)
        self.move(row, self.state.lanes.for_eta(row.eta_ms, self.now_ms, redelivered), due_ms)

    def _count_line(self, line: Line, entering: int = 0, leaving: int = 0) -> None:
        _, in_, out = self._lines.get(line.number, (line, 0, 0))
        self._lines[line.number] = line, in_ + entering, out + leaving

    def record_move(self, row: model.Row, reason: str, actor: str) -> None:
        """Record the outcome ``moved``, for a move that a command requested."""
        self._outcome(row.id, "moved", reason, actor, self.now_ms)

    def mark_unannounced(self, row_ids: Iterable[int]) -> None:
        """Mark cancelled rows as not yet announced."""
        self.change.watches += [model.Watch(model.UNANNOUNCED, "", row_id) for row_id in row_ids]

    def save(self, lane: Lane, offset: model.Position | None = None) -> None:
        """Write a lane's row, settled up to ``offset``; None: up to its present offset."""
        self._saved.setdefault(lane.number, (lane, lane.offset if offset is None else offset))

    def save_held(self, lane: Lane) -> None:
        """Write a lane's row as it is, and keep the lane from being settled until the commit."""
        if lane.hold_settling():
            self.save(lane, lane.offset)
            for effects in (self._applied, self._rolled_back):
                effects.append(partial(lane.settled, lane.offset))
        elif not lane.in_store:
            self.save(lane)

    def settle(self, lane: Lane, done: Unsettled) -> None:
        """Record confirmed chunks: the lane's offset moves; refused rows move to the lane of their destination."""
        after, upto = done.after, done.upto
        figures = done.count, done.bytes, done.published_ms
        self.change.settlements.append(model.Settlement(self.state.next_seq(), lane.number, after, upto, *figures))
        for key, n in done.tally.items():
            self._tally[key] = self._tally.get(key, 0) + n
        for row_id, reason in done.failed.items():
            self.retire(row_id, "rejected", reason, "broker", done.published_ms)
        for row in done.refused:
            place: Place = (None, row.route.target)
            self.state.lanes.for_place(place).distrust()
            self.divert(row, place, done.redelivered or lane.redelivered)
        # A run that is over already has its end in the store.
        goes_on, runs = self.state.groups.is_in_flight, done.runs.items()
        self.change.runs += [Run(id_, group=name, until_ms=until_ms) for id_, (name, until_ms) in runs if goes_on(id_)]
        for group, empty_ms in done.rates.items():
            self.change.rates[group] = max(empty_ms, self.change.rates.get(group, 0))
        self.save(lane, upto)
        self.on_apply(partial(lane.settled, upto))

    def stop(self, row: model.Row, kind: str, reason: str) -> None:
        """Retire a row of a chunk that is too late, or has a destination of no task."""
        self.retire(row.id, kind, reason, "wheel")
        self._count(row.due_ms, row.route, -1)

    def destinations(self) -> list[Lane]:
        """Return the lanes in which the change touches a position."""
        return [self.state.lanes[number] for number in self._lowest]

    def answer(self, command: AnyCommand, results: Mapping[str, Any]) -> None:
        """Delete the inbox item of a command, and store its answer where the request has an id for it."""
        self.change.inbox = [command.item_id]
        if command.answer_to is not None:
            self.change.answers = [model.Answer(command.answer_to, dict(results), self.now_ms)]
        self.change.audits = audit_entries(command, results, self.now_ms)

    def on_apply(self, effect: Callable[[], None]) -> None:
        """Run ``effect`` under the lock after the commit."""
        self._applied.append(effect)

    def on_roll_back(self, effect: Callable[[], None]) -> None:
        """Run ``effect`` under the lock where the change was not committed, and will not be."""
        self._rolled_back.append(effect)

    def _count(self, due_ms: int, route: model.Route, n: int) -> None:
        key = due_ms // model.HOUR_MS, route
        self._tally[key] = self._tally.get(key, 0) + n

    def _touch(self, lane: Lane, due_ms: int, seq: int) -> None:
        if (due_ms, seq) < self._lowest.get(lane.number, END):
            self._lowest[lane.number] = due_ms, seq

    def _outcome(self, row_id: int, kind: str, reason: str, actor: str, at_ms: int) -> None:
        self.change.outcomes.append(model.Outcome(self.state.next_seq(), row_id, kind, reason, actor, at_ms))

    def reserve(self) -> None:
        """End the building, still under the lock: from now on dispatch takes no row that the change touches."""
        state, change = self.state, self.change
        for number, lowest in self._lowest.items():
            lane = state.lanes[number]
            state.lanes.wake(lane)
            self._tokens.append((lane, lane.reserve(model.Position(*lowest))))
            if not lane.in_store:
                self.save(lane)
        change.lanes += [lane.state(offset) for lane, offset in self._saved.values()]
        if self._lines:
            self._save_lines()
        if self._moved:
            self._removed = state.window.track_removed()
            self._removed -= self._taken_out
        for (hour, route), n in self._tally.items():
            key = model.TallyKey(hour, route.target, route.task)
            change.tally[key] = change.tally.get(key, 0) + n
        change.seq, change.known = state.seq, state.accepted

    def _save_lines(self) -> None:
        change, groups = self.change, self.state.groups
        for line, in_, out in self._lines.values():
            change.lines.append(model.LineState(line.number, line.group.name, line.share.queue, in_ - out))
        self.on_apply(self._apply_lines)
        change.ended_lines, groups.ended = sorted(groups.ended), set()
        if not groups.is_stored:
            change.lanes.append(model.LaneState(model.WAITING, model.ORIGIN, model.ORIGIN, scope=GROUP))
            self.on_apply(groups.stored)

    def _apply_lines(self) -> None:
        for line, in_, out in self._lines.values():
            if in_:
                self.state.groups.entered(line, in_)
            if out:
                self.state.groups.left(line, out)

    # -- commit, apply, roll back ------------------------------------------------------------------

    def commit(self, ctx: Context) -> Generator[str, None, bool]:
        """Commit the change and apply it; returns False where it was rolled back, since the request was withdrawn."""
        try:
            yield from self._write(ctx)
        except RequestWithdrawn:
            yield "rolled back in the store"
            with self.state.active():
                self._roll_back()
        else:
            yield "committed"
            with self.state.active():
                self._apply()
            if self._tokens or self.change.moves:  # rows have new positions, or lanes with refused rows may go on
                ctx.wake.set()
                ctx.room.set()
            if self.change.watches:
                ctx.unannounced.set()
            if self._lines or self._frees:
                ctx.freed.set()
            yield "applied"
            return True
        ctx.wake.set()
        ctx.room.set()
        yield "rolled back"
        return False

    def _write(self, ctx: Context) -> Steps:
        began_ms = ctx.clock.monotonic_ms()
        wanted = model.ShardChange(self.state.shard, self.state.epoch, self.change)
        try:
            yield from ctx.call("apply", ctx.store.apply, ctx.store.apply_all, wanted)
        except (Fenced, RequestWithdrawn, StoreRolledBack):
            raise
        except StoreError as error:
            raise CommitInDoubt(str(error)) from error
        ctx.stats.committed(self.change, ctx.clock.monotonic_ms() - began_ms)

    def _apply(self) -> None:
        state, window, gone = self.state, self.state.window, self._removed or set()
        state.accepted += self.change.accepted
        state.diversions += self._diverts
        for lane, _ in self._saved.values():
            lane.in_store = True
        for effect in self._applied:
            effect()
        window.end_removal(self._taken_out)
        near = [one.rows() for one in self.change.blocks if min(one.due_ms) <= state.lanes[one.lane].horizon.due_ms]
        for new in chain(self.change.rows, *near):
            # Most rows are beyond the horizon and need no Row yet.
            if new.lane != model.STOPPED and (new.due_ms, new.seq) <= state.lanes[new.lane].horizon:
                window.place(state.lanes[new.lane], model.Row.of(new.message, new.id, new.lane, new.due_ms, new.seq))
        for row, move in self._moved:
            row.lane, row.due_ms, row.seq = move.lane, move.due_ms, move.seq
            row.eta_ms, row.line = row.eta_ms if move.eta_ms is None else move.eta_ms, move.line
            if row.id not in gone and row.lane != model.WAITING:
                window.place(state.lanes[row.lane], row)
        self._release()

    def _roll_back(self) -> None:
        for effect in self._rolled_back:
            effect()
        self.state.window.end_removal(self._taken_out)
        for row in self.rows:
            if row.id in self._taken_out and row.lane != model.WAITING:
                self.state.window.place(self.state.lanes[row.lane], row)
        self._release()

    def _release(self) -> None:
        if self._removed is not None:
            self.state.window.untrack_removed(self._removed)
        for lane, token in self._tokens:
            lane.release(token)
        self.state.window.evict(self.state.lanes)
