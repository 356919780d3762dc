"""Adoption: a new holder makes store and broker agree, and starts a term from what they say.

::

    1. store.acquire      a new epoch; whatever the former holder has under way is fenced in the store
    2. broker.adopt       the same in the broker, which answers with its offsets
    3. for each lane      broker's offset   against   store's offset
                          ────────────────────────────────────────────────────────────────────────────
                          no offsets        new or flushed: they are set to the store's; never a rollback
                          equal           nothing to do
                          ahead           the former holder died between publish and settlement:
                                          the store is settled up to it, refused rows laid to rest …
                          ahead, but      … unless the range has other rows than were published: the broker lost
                          not of all      an epoch with its writes, and let a former holder publish by what it
                                          knew. That is a rollback to where both agreed
                          behind          the broker lost writes it had acknowledged: ``replay`` puts the
                                          store's hand back, so that those rows leave once more (at most
                                          the batches of the last ``rollback_window``); ``warn`` only says so
                          a broker that keeps none: (offset, watermark] is in doubt, and dispatch begins with it
    4. a term             offset = watermark = edge; the window is empty and fills from the store

Rows that were cancelled, rejected or expired are in lane REST, so nothing here can send them again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from celery_wheel.engine.gates import ALL, Gates
from celery_wheel.engine.lane import END, Lane
from celery_wheel.engine.limits import Limits
from celery_wheel.engine.port import Broker, BrokerOffset, Since
from celery_wheel.engine.term import Term
from celery_wheel.engine.window import Window
from celery_wheel.store.model import (
    MAX_SEQ,
    ORIGIN,
    PAUSED,
    REST,
    SHARD_BITS,
    Batch,
    Change,
    Gate,
    LaneState,
    Move,
    Outcome,
    Position,
)
from celery_wheel.store.port import Store
from celery_wheel.timing import TimingWheel

logger = logging.getLogger(__name__)


class Adoption:
    """Step 2 to 4, for an epoch that was acquired."""

    def __init__(
        self, shard: int, epoch: int, store: Store, broker: Broker, limits: Limits, now_ms: int, monotonic_ms: int
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.store = store
        self.broker = broker
        self.limits = limits
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.rollbacks = 0  #: lanes on which the broker had lost writes
        self._seq = 0

    def steps(self) -> Iterator[str]:
        """Run step 2 and 3; a crash between any two of them leaves what the next adoption mends."""
        offsets = self.broker.adopt(self.shard, self.epoch)
        yield "adopted in the broker"
        self._seq = self.store.state(self.shard).seq
        for lane in self.store.lanes(self.shard):
            # A lane that is missing beside others was opened after what the broker remembers.
            found = offsets.get(lane.lane, BrokerOffset(ORIGIN) if offsets and lane.offset > ORIGIN else None)
            if found is None:
                self.broker.set_offset(self.shard, self.epoch, lane.lane, lane.offset)
                yield "offset set in the broker"
            elif found.offset > lane.offset:
                if found.since is None or self._vouches(lane, found.offset, found.since):
                    yield from self._settle(lane, found)
                else:
                    yield from self._roll_back(lane, min(lane.offset, found.since.position))
            elif found.offset < lane.offset:
                yield from self._roll_back(lane, found.offset)

    def term(self) -> Term:
        """Step 4."""
        lanes = [self._lane(lane) for lane in self.store.lanes(self.shard)]
        limits = self.limits
        window = Window(
            TimingWheel(limits.tick_ms, limits.wheel_size, start_ms=self.now_ms),
            span_ms=limits.window_ms,
            max_count=limits.window_count,
            max_bytes=limits.window_bytes,
        )
        gates = Gates({} if limits.ahead_ms else limits.rates, self.monotonic_ms)
        term = Term(self.shard, self.epoch, self.store.state(self.shard).seq, lanes, window, gates)
        term.bury(self.store.tombstones(self.shard))
        # Who hands over all that waits does so whatever is paused or limited.
        for gate in [] if limits.ahead_ms else self.store.gates(self.shard):
            term.gates.set(gate, self._backlog(lanes, gate), self.now_ms, self.monotonic_ms)
        return term

    def _lane(self, found: LaneState) -> Lane:
        watermark = found.offset if self.broker.keeps_offset else found.watermark
        lane = Lane(found.lane, found.offset, watermark, watermark, target=found.target, scope=found.scope)
        lane.redelivered, lane.told = found.redelivered, found.offset
        lane.top_ms = self._top_ms(found)
        if not self.broker.keeps_offset:
            lane.sent, lane.doubt = found.offset, found.watermark
        return lane

    def _top_ms(self, lane: LaneState) -> int:
        """Where the rows end that may be in their queue already: those of a holder whose clock was ahead lie beyond."""
        top_ms = self.now_ms + self.limits.ahead_ms
        beyond = Position(top_ms, MAX_SEQ)
        if lane.redelivered and self.store.count(self.shard, lane.lane, max(lane.offset, beyond), END):
            return END.due_ms
        return top_ms

    def _backlog(self, lanes: list[Lane], gate: Gate) -> int:
        if gate.state == PAUSED:
            return 0
        behind = [lane for lane in lanes if gate.scope == ALL or lane.place == (gate.scope, gate.name)]
        due = Position(self.now_ms, MAX_SEQ)
        return sum(self.store.count(self.shard, lane.number, lane.offset, max(lane.offset, due)) for lane in behind)

    def _next_seq(self) -> int:
        self._seq = ((self._seq >> SHARD_BITS) + 1) << SHARD_BITS | self.shard
        return self._seq

    def _vouches(self, lane: LaneState, offset: Position, since: Since) -> bool:
        """Whether the rows up to the broker's offset are the rows that went there."""
        rows = self.store.slice(self.shard, lane.lane, since.position, offset)
        return len(rows) == since.rows and sum(row.id for row in rows) == since.ids

    def _settle(self, lane: LaneState, found: BrokerOffset) -> Iterator[str]:
        done = self.store.summary(self.shard, lane.lane, lane.offset, found.offset)
        change = Change(
            lanes=[replace(lane, offset=found.offset, watermark=found.offset)],
            tally={key: -n for key, n in done.tally.items()},
        )
        count = done.count - len(found.failed)
        batch = Batch(self._next_seq(), lane.lane, lane.offset, found.offset, count, done.bytes, self.now_ms)
        change.batches.append(batch)
        for row_id, reason in found.failed.items():
            change.moves.append(Move(row_id, REST, self.now_ms, self._next_seq()))
            change.outcomes.append(Outcome(self._next_seq(), row_id, "rejected", reason, "broker", self.now_ms))
        change.seq = self._seq
        yield "settlement made"
        self.store.apply(self.shard, self.epoch, change)
        logger.info(
            "settled %d tasks of lane %d that the former holder had dispatched",
            count,
            lane.lane,
            extra={"action": "settle", "shard": self.shard, "lane": lane.lane, "count": count},
        )
        yield "settled up to the broker's offset"

    def _roll_back(self, lane: LaneState, found: Position) -> Iterator[str]:
        start = lane.offset
        if self.limits.replay_on_rollback:
            since_ms = self.now_ms - self.limits.rollback_window_ms
            earliest = self.store.batch_start(self.shard, lane.lane, lane.offset, since_ms)
            if earliest is not None:
                start = max(found, earliest)
        redelivered = self.store.summary(self.shard, lane.lane, start, lane.offset)
        left = self.store.count(self.shard, lane.lane, found, start)
        logger.error(
            "the broker lost writes: lane %d stood at %s there and at %s here; %d tasks leave once more, "
            "%d are not sent again by themselves; check the broker's persistence",
            lane.lane,
            tuple(found),
            tuple(lane.offset),
            redelivered.count,
            left,
            extra={
                "action": "rollback",
                "shard": self.shard,
                "lane": lane.lane,
                "again": redelivered.count,
                "left": left,
            },
        )
        yield "rollback seen"
        if start < lane.offset:
            change = Change(lanes=[replace(lane, offset=start, watermark=start)], tally=redelivered.tally)
            self.store.apply(self.shard, self.epoch, change)
            yield "offset moved back in the store"
        self.broker.set_offset(self.shard, self.epoch, lane.lane, start)
        self.rollbacks += 1
        yield "offset set in the broker"
