"""A term: one holder's memory of one shard, from its adoption until something goes wrong.

::

    acquire epoch ─► adopt ─► Term ──────── ingest ──┐
                               ▲  lanes, window,     ├── all touch the term under its lock, in short
                               │  positions, watermark     │   sections without I/O; between the sections
                               │                     ├── each does one call to the store or the broker
                               │          dispatch ──┤
                               │              load ──┘
                               └── any doubt: the term ends, its memory is dropped, a new epoch is taken,
                                   and what was still under way is fenced

Positions are given here and nowhere else, each inside a reservation of its lane (see ``lane``).

A clock that was stepped back. A row that comes late is put behind the watermark, whose due time lies in the
past. While the wall clock is behind the watermark's due time, that would hold new rows back until the clock
has caught up. They go to a lane of their own instead, whose watermark is not ahead of the clock, and leave
from there at their own eta: they are all due before whatever is left in the lane ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_wheel.engine.gates import EVERYTHING, Gates, Place, Router
from celery_wheel.engine.lane import END, Chunk, Lane, Unsettled
from celery_wheel.engine.stamps import BY_STAMP, RevokedStamps
from celery_wheel.engine.window import Window
from celery_wheel.errors import TermEnded
from celery_wheel.store.model import (
    HOUR_MS,
    ORIGIN,
    REST,
    SHARD_BITS,
    WITHDRAWN,
    Batch,
    Change,
    LaneState,
    Message,
    Move,
    NewReject,
    NewRow,
    Outcome,
    Position,
    Row,
    TallyKey,
    Tombstone,
    Unreadable,
    Watch,
)


@dataclass(slots=True, eq=False)
class Intake:
    """Messages at their positions: a change to commit, and what is reserved meanwhile."""

    change: Change
    tokens: dict[int, int] = field(default_factory=dict)  #: lane number → reservation


class SetAside(NamedTuple):
    """Why an arrival does not wait: the outcome with which it is laid to rest."""

    kind: str
    reason: str
    actor: str


@dataclass(slots=True, eq=False)
class Settlement:
    """What the store is to know of dispatch: a change to commit, and what it puts elsewhere in memory."""

    change: Change = field(default_factory=Change)
    offsets: dict[int, Position] = field(default_factory=dict)  #: of the lanes that it settles, once it is committed
    moved: list[tuple[Row, Move]] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)  #: (lane number, reservation)
    withdrawn: set[int] = field(default_factory=set)  #: rows that are cancelled while it is under way


class Term:
    def __init__(
        self, shard: int, epoch: int, seq: int, lanes: Sequence[Lane], window: Window, gates: Gates | None = None
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.lanes = {lane.number: lane for lane in lanes}
        self.window = window
        self.gates = gates or Gates()
        self.lock = threading.RLock()
        self.ended: str | None = None
        self.lease_until_ms = 0  #: monotonic: later, another holder may have the shard
        self.tombstones: dict[str, Tombstone] = {}  #: by task id; some may be over
        self.history = threading.Lock()  #: of who forgets rows that are settled or rest, or brings them back
        self.stamps = RevokedStamps()  #: its engine gives it those that it is told of
        self.asked_ms: dict[int, int] = {}  #: inbox item of a command that waits → monotonic: when it was first read
        self._count = seq >> SHARD_BITS

    # -- life ------------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hold the lock; raises TermEnded when this memory is no longer to be trusted."""
        with self.lock:
            if self.ended is not None:
                raise TermEnded(self.ended)
            yield

    def end(self, reason: str) -> None:
        with self.lock:
            self.ended = self.ended or reason

    # -- positions -------------------------------------------------------------------------------

    def next_seq(self) -> int:
        self._count += 1
        return self._count << SHARD_BITS | self.shard

    @property
    def seq(self) -> int:
        """The highest seq given."""
        return self._count << SHARD_BITS | self.shard

    def lane_for(self, eta_ms: int, now_ms: int, redelivered: bool = False) -> Lane:
        """The lane in which a new row may leave at its own eta: the main one, unless the clock is behind it.

        Rows that may be in their queue already (``again``) have one for themselves.
        """
        for lane in self.lanes.values():
            if lane.watermark.due_ms <= max(eta_ms, now_ms) and lane.target is None and lane.redelivered == redelivered:
                return lane
        return self._open_lane(None, redelivered)

    def lane_of(self, place: Place) -> Lane:
        """The lane in which those wait who cannot pass a gate, or whose destination does not take everything."""
        return next((lane for lane in self.lanes.values() if lane.place == place), None) or self._open_lane(place)

    def _open_lane(self, place: Place | None, redelivered: bool = False) -> Lane:
        scope, target = place or (None, None)
        number = max(self.lanes) + 1
        lane = Lane(number, ORIGIN, ORIGIN, END, in_store=False, in_broker=False, target=target, scope=scope)
        lane.redelivered = redelivered
        self.lanes[lane.number] = lane
        return lane

    def reserve(
        self, arrivals: Sequence[Message | Unreadable], now_ms: int, set_aside: Mapping[str, SetAside] | None = None
    ) -> Intake:
        """Give each arrival its position, in the order of arrival, and reserve the lowest of each lane.

        ``set_aside``: those that do not wait, by envelope.
        """
        change = Change()
        intake = Intake(change)
        lowest: dict[int, tuple[int, int]] = {}
        tally: dict[tuple[int, str, str], int] = {}
        for arrival in arrivals:
            seq = self.next_seq()
            if isinstance(arrival, Unreadable):
                change.rejects.append(NewReject(seq, now_ms, arrival))
                change.outcomes.append(Outcome(self.next_seq(), seq, "rejected", arrival.reason, "wheel", now_ms))
                continue
            if (self.tombstones or self.stamps or set_aside) and (
                why := self._why_not(arrival, now_ms, set_aside or {})
            ) is not None:
                change.rows.append(NewRow(seq, REST, now_ms, seq, now_ms, arrival))
                change.outcomes.append(Outcome(self.next_seq(), seq, *why, now_ms))
                if why.kind == "cancelled":
                    change.watches.append(Watch(WITHDRAWN, "", seq))
                continue
            lane = self.lane_for(arrival.eta_ms, now_ms)
            due_ms = max(arrival.eta_ms, lane.watermark.due_ms)
            change.rows.append(NewRow(seq, lane.number, due_ms, seq, now_ms, arrival))
            # Plain tuples in the loops, named ones where they come out: making those costs three times as much.
            key = (due_ms // HOUR_MS, arrival.queue or arrival.routing_key, arrival.task)
            tally[key] = tally.get(key, 0) + 1
            if (due_ms, seq) < lowest.get(lane.number, END):
                lowest[lane.number] = due_ms, seq
        change.tally = {TallyKey(*key): n for key, n in tally.items()}
        for number, position in lowest.items():
            intake.tokens[number] = self.lanes[number].reserve(Position(*position))
        change.lanes = self.new_lanes()
        change.seq = self.seq
        return intake

    def new_lanes(self) -> list[LaneState]:
        """Lanes that were opened for what came, and that the store does not know yet."""
        new = [lane for lane in self.lanes.values() if lane.target is None and not lane.in_store]
        return [LaneState(lane.number, ORIGIN, ORIGIN, None, lane.redelivered) for lane in new]

    def _why_not(self, arrival: Message, now_ms: int, set_aside: Mapping[str, SetAside]) -> SetAside | None:
        """What keeps an arrival from waiting, if anything does."""
        return self.is_cancelled(arrival, now_ms) or set_aside.get(arrival.envelope_id)

    def is_cancelled(self, arrival: Message, now_ms: int) -> SetAside | None:
        """Why it was cancelled before it came, if it was."""
        tombstone = self.tombstone(arrival.task_id, now_ms)
        if tombstone is not None:
            return SetAside("cancelled", tombstone.reason, tombstone.actor)
        if self.stamps and self.stamps.match(arrival.headers):
            return SetAside("cancelled", BY_STAMP, "control")
        return None

    def tombstone(self, task_id: str, now_ms: int) -> Tombstone | None:
        """What keeps messages of a task id from waiting."""
        found = self.tombstones.get(task_id)
        return found if found is not None and found.until_ms >= now_ms else None

    def place(self, intake: Intake) -> None:
        """The intake is committed: let its rows wait, and give the reservations back."""
        for state in intake.change.lanes:
            self.lanes[state.lane].in_store = True
        for new in intake.change.rows:
            if new.lane == REST:
                continue
            lane = self.lanes[new.lane]
            if (new.due_ms, new.seq) <= lane.edge:  # most are far, and need no Row yet
                self.window.place(lane, Row.of(new.message, new.id, new.lane, new.due_ms, new.seq))
        for number, token in intake.tokens.items():
            self.lanes[number].release(token)
        self.window.evict(self.lanes)

    # -- dispatch --------------------------------------------------------------------------------

    def take(
        self, lane: Lane, now_ms: int, monotonic_ms: int, max_count: int, max_bytes: int, ahead_ms: int = 0
    ) -> Chunk | None:
        """The chunk to publish now: the one whose fate is unknown, else the next that is due and may pass the gates.

        Due are rows that are due in ``ahead_ms``, too.
        """
        if lane.in_flight is not None:
            return lane.in_flight
        gates, route = self.gates, None
        room = lane.at_once(max_count)
        if gates or len(self.lanes) > 1:
            beside = [one for one in self.lanes.values() if one is not lane]
            busy = {place for one in beside if (place := one.place) and self._has_more(one, now_ms + ahead_ms)}
            room = min(room, self._room(lane, monotonic_ms, max_count))
            if gates or busy:
                route = Router(gates, lane.place, busy, monotonic_ms)
        chunk = lane.take(self.window.rows, now_ms, room, max_bytes, route, ahead_ms)
        if chunk is not None:
            others = [*chunk.missed, *(row for row, _ in chunk.diverted)]
            self.window.left(lane.number, len(chunk.rows) + len(others), chunk.bytes + sum(row.size for row in others))
            for place in _passed(lane):
                gates.spend(place, len(chunk.rows), monotonic_ms)
        elif route is not None and route.again_ms > monotonic_ms:
            lane.retry_at_ms = route.again_ms
        return chunk

    def _has_more(self, lane: Lane, now_ms: int) -> bool:
        """Whether anything waits in a lane beside the main one, due or not."""
        return self.window.has(lane) or lane.busy(self.window.rows, now_ms)

    def _room(self, lane: Lane, monotonic_ms: int, max_count: int) -> int:
        """How many of a lane may leave now; if none, it is not asked again before some may."""
        room = max_count
        for place in _passed(lane):
            if place in self.gates.closed:
                return 0
            free, again_ms = self.gates.room(place, monotonic_ms)
            if free == 0:
                lane.retry_at_ms = again_ms
            room = room if free is None else min(room, free)
        return room

    def in_order(self) -> list[Lane]:
        """The lanes, the one with the earliest ready row first: it goes before what is ready in the others."""
        rows = self.window.rows
        ready = {lane.number: lane.next_due_ms(rows) for lane in self.lanes.values()}
        return sorted(self.lanes.values(), key=lambda lane: (ready[lane.number] is None, ready[lane.number] or 0))

    def next_due_ms(self, monotonic_ms: int | None = None) -> int | None:
        """When the next row may be due; None when nothing is in memory, or nothing may be tried at ``monotonic_ms``."""
        closed = self.gates.closed
        open_ = [lane for lane in self.lanes.values() if closed.isdisjoint(_passed(lane))]
        lanes = [lane for lane in open_ if monotonic_ms is None or lane.retry_at_ms <= monotonic_ms]
        due = [lane.next_due_ms(self.window.rows) for lane in lanes]
        due.append(self.window.wheel.next_expiration_ms())
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def settlement(self, announced: Chunk | None = None) -> Settlement | None:
        """What the broker has and the store does not know of yet, as one change; None when there is nothing.

        ``announced`` is about to leave: the store learns how far it goes, and what it diverts moves first.
        """
        settlement, touched = Settlement(withdrawn=self.window.watch()), set[int]()
        if announced is not None:
            touched.add(announced.lane)
            redelivered = announced.redelivered or self.lanes[announced.lane].redelivered
            self._divert(settlement, announced.diverted, redelivered)
            self._set_aside(settlement.change, announced)
        for lane in list(self.lanes.values()):
            done = lane.unsettled
            if done is not None and lane.settling is None:
                lane.unsettled, lane.settling = None, done
                settlement.offsets[lane.number] = done.to
                self._settle(settlement, lane, done)
        touched.update(number for number, _ in settlement.tokens)
        for lane in (self.lanes[number] for number in touched - settlement.offsets.keys()):
            # Of two that are under way at once, the later would put the offset back: there is one a lane.
            if lane.settling is None:
                lane.settling = Unsettled(lane.offset, lane.offset)
                settlement.offsets[lane.number] = lane.offset
        change = settlement.change
        for number in touched | settlement.offsets.keys():
            lane = self.lanes[number]
            if number in settlement.offsets or not lane.in_store:
                offset = settlement.offsets.get(number, lane.offset)
                change.lanes.append(
                    LaneState(number, offset, max(offset, lane.watermark), lane.target, lane.redelivered, lane.scope)
                )
        change.seq = self.seq
        if not touched and not settlement.offsets:
            self.window.unwatch(settlement.withdrawn)
            return None
        return settlement

    def _settle(self, settlement: Settlement, lane: Lane, done: Unsettled) -> None:
        change = settlement.change
        change.batches.append(
            Batch(self.next_seq(), lane.number, done.from_, done.to, done.count, done.bytes, done.published_ms)
        )
        for key, n in done.tally.items():
            change.tally[TallyKey(*key)] = change.tally.get(TallyKey(*key), 0) + n
        for row_id, reason in done.failed.items():
            self.lay_to_rest(change, row_id, "rejected", reason, "broker", done.published_ms)
        refused: list[tuple[Row, Place]] = [(row, (None, row.target)) for row in done.refused]
        for _, place in refused:
            self.lane_of(place).proven = 0
        self._divert(settlement, refused, done.redelivered or lane.redelivered)

    def _set_aside(self, change: Change, announced: Chunk) -> None:
        """What was found later than its misfire option allows."""
        for row in announced.missed:
            late_s, most_s = (announced.taken_ms - row.eta_ms) / 1_000, (row.misfire_ms or 0) / 1_000
            reason = f"it was found {late_s:,.3f} s late, and its misfire option allows {most_s:g} s"
            self.lay_to_rest(change, row.id, "expired", reason, "wheel", announced.taken_ms)
            change.tally[row.tally_key] = change.tally.get(row.tally_key, 0) - 1

    def _divert(self, settlement: Settlement, rows: Sequence[tuple[Row, Place]], redelivered: bool) -> None:
        """Rows go on in another lane, in the order they have, and not before the change is committed."""
        tally, lowest = settlement.change.tally, dict[int, Position]()
        for row, place in rows:
            lane = self.lane_of(place)
            if lane.number not in lowest and not self._has_more(lane, max(row.due_ms, lane.top_ms)):
                lane.redelivered = False
            lane.redelivered |= redelivered
            move = Move(row.id, lane.number, max(row.due_ms, lane.watermark.due_ms), self.next_seq())
            lane.top_ms = max(lane.top_ms, move.due_ms)
            settlement.change.moves.append(move)
            settlement.moved.append((row, move))
            lowest[lane.number] = min(lowest.get(lane.number, END), Position(move.due_ms, move.seq))
            before, after = row.tally_key, row.tally_key._replace(hour=move.due_ms // HOUR_MS)
            if before != after:
                tally[before] = tally.get(before, 0) - 1
                tally[after] = tally.get(after, 0) + 1
        for number, position in lowest.items():
            settlement.tokens.append((number, self.lanes[number].reserve(position)))

    def confirmed(self) -> dict[int, Position]:
        """How far each lane is known to be in the broker."""
        known = {lane.number: lane.unsettled or lane.settling for lane in self.lanes.values() if lane.in_broker}
        return {number: done.to if done else self.lanes[number].offset for number, done in known.items()}

    def settled(self, settlement: Settlement) -> None:
        for state in settlement.change.lanes:
            self.lanes[state.lane].in_store = True
        for number, offset in settlement.offsets.items():
            self.lanes[number].offset, self.lanes[number].settling = offset, None
        for row, move in settlement.moved:
            row.lane, row.due_ms, row.seq = move.lane, move.due_ms, move.seq
            if row.id not in settlement.withdrawn:
                self.window.place(self.lanes[row.lane], row)
        self.window.unwatch(settlement.withdrawn)
        for number, token in settlement.tokens:
            self.lanes[number].release(token)
        self.window.evict(self.lanes)

    # -- what is set aside ------------------------------------------------------------------------

    def bury(self, tombstones: Sequence[Tombstone]) -> None:
        self.tombstones.update({one.task_id: one for one in tombstones})

    def lay_to_rest(self, change: Change, row_id: int, kind: str, reason: str, actor: str, at_ms: int) -> None:
        change.moves.append(Move(row_id, REST, at_ms, self.next_seq()))
        change.outcomes.append(Outcome(self.next_seq(), row_id, kind, reason, actor, at_ms))


def _passed(lane: Lane) -> list[Place]:
    """The gates that all of a lane's rows stand at."""
    place = lane.place
    return [EVERYTHING] if place is None or place[0] is None else [EVERYTHING, place]
