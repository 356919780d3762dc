"""Adoption: a new holder makes the store and the broker agree, and makes its state from the store.

::

    1. store.acquire      a new epoch; calls of the former holder are fenced in the store
    2. delivery.adopt     the same in a broker that fences, which answers with its offsets
    3. for each lane      broker's offset   against   store's offset
                          missing         a lane without dispatched rows is new: its offset is set; any other: as behind
                          ahead           the former holder ended between publish and settle:
                                          the store is settled up to it, failed rows are rejected
                          ahead, and its  as before, and the log says that the store was restored from an older copy
                          checksum later  or lost its last commits
                          ahead, but      a rollback to the position where both agreed: the broker lost an epoch with
                          other rows      its writes, or the store was restored from an older copy
                          behind          the broker lost acknowledged writes: "replay" moves the store's offset back,
                                          at most by the settlements of ``rollback_window``; "warn" only logs it
                          not in store    the lane was closed: the broker forgets it
    4. accepted           the store has accepted fewer messages than the broker or this process knows: it was rolled
                          back to an earlier state; the log says how many are gone; on a broker without offsets, the
                          rows that are due are in doubt
    5. a state            offset = watermark = horizon in every lane; the window is empty and fills from the store

A broker that keeps no offsets skips step 3: its (offset, watermark] is in doubt, and dispatch begins with those rows.
It keeps no number either: there a loss is found only by the process that held the shard before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from celery_wheel.engine.delivery import FencedDelivery
from celery_wheel.engine.port import BrokerOffset, FencingBroker, RangeChecksum
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.gates import ALL, GROUP, Gates
from celery_wheel.engine.state.groups import Groups
from celery_wheel.engine.state.lane import END, Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.tombstones import TombstoneFilter
from celery_wheel.engine.state.window import Window
from celery_wheel.errors import Fenced
from celery_wheel.store import model
from celery_wheel.store.schedule_model import Run
from celery_wheel.timing import TimingWheel
from celery_wheel.values.format import format_utc
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Values: the lane, the broker's offset, the store's. A store dispatches to a new broker only after ``claim-broker``,
#: which gives the broker the store's offsets: so a broker without any offset had them.
EMPTIED = (
    "the broker was emptied (FLUSHALL, or a start without its data): it has no offset of lane {0} of this store, and "
    "the store has {2}; messages that it had not accepted yet are lost"
)
LOST_WRITES = "the broker lost writes: the offset of lane {0} is {1} there and {2} in the store"
OTHER_ROWS = (
    "the broker has published rows of lane {0} up to {1} that the store does not have, whose offset is {2}: the broker "
    "lost writes, or the store was restored from an older copy; then the tasks of the copy that were dispatched since "
    "are dispatched again when they are due"
)
OLDER_STORE = (
    "the store is older than its broker: the offset of lane %d is %s there and %s in the store, which was restored "
    "from an older copy, or lost its last commits; tasks of the copy up to the broker's offset count as dispatched; "
    "tasks and requests that were accepted since the copy are lost"
)
STORE_LOST = (
    "shard %d: the store was rolled back: %d messages that it had accepted are gone, and so is what was answered and "
    "recorded, since about %s (it has accepted %d messages, and had confirmed %d): a replica was promoted without the "
    "last commits, or an older copy was put in its place; those of the messages that were not dispatched yet are lost, "
    "unless they are sent again: celery-wheel-pipeline reconcile finds them in your own log of what was sent; the "
    "scheduler goes on"
)


class Adoption:
    """Steps 2 to 5, for an acquired epoch."""

    def __init__(self, ctx: Context, epoch: int) -> None:
        self.shard = ctx.shard
        self.epoch = epoch
        self.store = ctx.store
        self.delivery = ctx.delivery
        self.limits = ctx.limits
        self.ctx = ctx
        self.clock = ctx.clock
        self.now_ms = ctx.clock.now_ms()
        self.monotonic_ms = ctx.clock.monotonic_ms()
        self.rollbacks = 0  #: lanes on which the broker had lost writes
        self.emptied = 0  #: 1: the broker had no offset at all, and had had some
        self.store_lost = 0  #: messages that the store had accepted and lacks
        self._known = ctx.accepted
        self.groups = self._groups()
        self._seq = 0

    def _groups(self) -> Groups:
        """Return the groups with their limits; a drain publishes every pending row, whatever is limited."""
        limits = self.limits
        if limits.ahead_ms:
            return Groups()
        return Groups(
            limits.groups,
            self.ctx.depths,
            self.store.limits(self.shard),
            lowest_first=not self.delivery.prepares,
            now_ms=self.monotonic_ms,
        )

    def steps(self) -> Iterator[str]:
        """Run steps 2 to 4; after a crash between any two steps the next adoption runs them again."""
        try:
            offsets = self.delivery.adopt(self.shard, self.epoch)
        except Fenced as error:
            raise Fenced(
                f"{error}; where no other scheduler runs, the store was restored from an older copy, and tasks that "
                "were accepted since are lost; each try has a newer epoch, until one passes that of the broker"
            ) from error
        yield "adopted in the broker"
        if self.groups:
            self.groups.adopt_rates(self.store.rates(self.shard), *self._times())
        found = self.store.state(self.shard)
        self._seq = found.seq
        broker = self.delivery.broker if isinstance(self.delivery, FencedDelivery) else None
        if offsets is not None and broker is not None:
            yield from self._compare(broker, offsets)
        yield from self._look_for_losses(broker, found)

    def _times(self) -> tuple[int, int]:
        """Return now in due time and in monotonic time: later than any publication of a former holder."""
        return self.clock.now_ms(), self.clock.monotonic_ms()

    def _compare(self, broker: FencingBroker, offsets: dict[int, BrokerOffset]) -> Iterator[str]:
        lanes = self._published_lanes()
        if closed := sorted(offsets.keys() - {lane.lane for lane in lanes}):
            broker.drop_lanes(self.shard, self.epoch, closed)
            yield "closed lanes dropped in the broker"
        for lane in lanes:
            found = offsets.get(lane.lane, BrokerOffset(model.ORIGIN))
            if lane.lane not in offsets and lane.offset == model.ORIGIN:
                broker.set_offset(self.shard, self.epoch, lane.lane, lane.offset)
                yield "offset set in the broker"
            elif found.offset > lane.offset:
                if found.checksum is None or self._matches(lane, found.offset, found.checksum):
                    if found.checksum is None or found.checksum.after > lane.offset:
                        extra = {"action": "older_store", "shard": self.shard, "lane": lane.lane}
                        logger.error(OLDER_STORE, lane.lane, tuple(found.offset), tuple(lane.offset), extra=extra)
                    yield from self._settle(lane, found)
                else:
                    start = min(lane.offset, found.checksum.after)
                    yield from self._roll_back(broker, lane, start, _reason(OTHER_ROWS, lane, found))
            elif found.offset < lane.offset:
                lost = LOST_WRITES if offsets else EMPTIED
                yield from self._roll_back(broker, lane, found.offset, _reason(lost, lane, found))
        if not offsets and self.rollbacks:
            self.rollbacks, self.emptied = 0, 1

    def _look_for_losses(self, broker: FencingBroker | None, found: model.ShardRecord) -> Iterator[str]:
        """Report messages that the store had accepted and lacks. Every later adoption compares with what is left.

        Where the broker keeps no offsets, all rows that are due are in doubt now: the store does not know which of them
        were dispatched in the commits that it lost.
        """
        # The broker's number goes before this process's own: another holder may have found and told the loss meanwhile.
        known = (0 if broker is None else broker.accepted(self.shard)) or self._known
        if known <= found.accepted:
            return
        self.store_lost = known - found.accepted
        since = "an unknown time" if found.snapshot_at_ms is None else format_utc(found.snapshot_at_ms)
        extra = {"action": "store_rolled_back", "shard": self.shard, "lost": self.store_lost}
        extra |= {"accepted": found.accepted, "known": known}
        logger.error(STORE_LOST, self.shard, self.store_lost, since, found.accepted, known, extra=extra)
        if broker is not None:
            broker.set_accepted(self.shard, self.epoch, found.accepted)
            return
        upto = model.Position(self.now_ms, found.seq)  # a late row gets a later seq in this millisecond
        lanes = [lane for lane in self._published_lanes() if lane.target is None and lane.watermark < upto]
        yield "loss found"
        change = model.Change(lanes=[replace(lane, watermark=upto) for lane in lanes])
        self.store.apply(self.shard, self.epoch, change)
        yield "due rows in doubt"

    def state(self) -> ShardState:
        """Return the state: step 5."""
        lanes = [self._lane(lane) for lane in self._published_lanes()]
        self._adopt_groups(lanes)
        limits = self.limits
        window = Window(
            TimingWheel(limits.tick_ms, limits.wheel_size, start_ms=self.now_ms),
            span_ms=limits.window_ms,
            max_count=limits.window_count,
            max_bytes=limits.window_bytes,
        )
        found = self.store.state(self.shard)
        gates = Gates({} if limits.ahead_ms else limits.rates, self.monotonic_ms)
        # A drain publishes every pending row, whatever is paused or limited.
        for gate in [] if limits.ahead_ms else self.store.gates(self.shard):
            gates.set(gate, self._backlog(lanes, gate), self.now_ms, self.monotonic_ms)
        return ShardState(
            self.shard,
            self.epoch,
            found.seq,
            lanes,
            window,
            gates=gates,
            groups=self.groups,
            tombstones=TombstoneFilter(list(self.store.tombstone_ids(self.shard))),
            stamps=self.ctx.stamps,
            adopted_ms=self.now_ms,
            accepted=found.accepted,
        )

    def _published_lanes(self) -> list[model.LaneState]:
        """Return the lanes that publish."""
        return [lane for lane in self.store.lanes(self.shard) if lane.lane != model.WAITING]

    def _adopt_groups(self, lanes: list[Lane]) -> None:
        """Count the rows that wait, and those that a former holder has published or may have."""
        groups = self.groups
        groups.adopt(self.store.lines(self.shard))
        if groups:
            for run in self.store.open_runs(self.shard, self.now_ms):
                groups.adopt_run(run.timer_id, run.group or "", run.until_ms or 0)
            for lane in lanes:
                if lane.is_in_doubt:
                    rows = self.store.slice(self.shard, lane.number, lane.in_doubt_after, lane.in_doubt_upto)
                    for row in rows:
                        if row.group is not None and not groups.limit_of(row.group).has_none:
                            groups.adopt_run(row.id, row.group, None)

    def _runs(self, rows: Iterable[model.Row]) -> Iterator[Run]:
        """Yield the runs of published rows whose groups limit how many are in flight."""
        for row in rows:
            if row.group is not None and (limit := self.groups.limit_of(row.group)).concurrency is not None:
                yield Run(row.id, group=row.group, until_ms=self.now_ms + limit.max_runtime_ms)

    def _lane(self, found: model.LaneState) -> Lane:
        lane = self.delivery.lane(found)
        lane.last_due_ms = self._last_due_ms(found)
        return lane

    def _last_due_ms(self, lane: model.LaneState) -> int:
        """Return a lane's latest due time, as far as it matters: a holder with a clock ahead has rows beyond now."""
        last_ms = self.now_ms + self.limits.ahead_ms
        beyond = model.Position(last_ms, model.MAX_SEQ)
        if lane.redelivered and self.store.count(self.shard, lane.lane, max(lane.offset, beyond), END):
            return END.due_ms
        return last_ms

    def _backlog(self, lanes: list[Lane], gate: model.Gate) -> int:
        if gate.state == model.PAUSED:
            return 0
        if gate.scope == GROUP:
            return self.groups.waiting(gate.name)
        behind = [lane for lane in lanes if gate.scope == ALL or lane.place == (gate.scope, gate.name)]
        due = model.Position(self.now_ms, model.MAX_SEQ)
        return sum(self.store.count(self.shard, lane.number, lane.offset, max(lane.offset, due)) for lane in behind)

    def _next_seq(self) -> int:
        self._seq = ((self._seq >> model.SHARD_BITS) + 1) << model.SHARD_BITS | self.shard
        return self._seq

    def _matches(self, lane: model.LaneState, offset: model.Position, checksum: RangeChecksum) -> bool:
        """Whether the store's rows up to the broker's offset are the rows that were published."""
        rows = self.store.slice(self.shard, lane.lane, checksum.after, offset)
        return len(rows) == checksum.rows and sum(row.id for row in rows) == checksum.ids

    def _settle(self, lane: model.LaneState, found: BrokerOffset) -> Iterator[str]:
        done = self.store.summary(self.shard, lane.lane, lane.offset, found.offset)
        change = model.Change(
            lanes=[replace(lane, offset=found.offset, watermark=found.offset)],
            tally={key: -n for key, n in done.tally.items()},
        )
        if self.groups:
            rows = self.store.slice(self.shard, lane.lane, lane.offset, found.offset)
            rows = [row for row in rows if row.id not in found.failed]
            change.runs += self._runs(rows)
            change.rates = self.groups.adopt_published([row.group for row in rows if row.group], *self._times())
        count = done.count - len(found.failed)
        one = model.Settlement(self._next_seq(), lane.lane, lane.offset, found.offset, count, done.bytes, self.now_ms)
        change.settlements.append(one)
        for row_id, reason in found.failed.items():
            change.moves.append(model.Move(row_id, model.STOPPED, self.now_ms, self._next_seq()))
            change.outcomes.append(model.Outcome(self._next_seq(), row_id, "rejected", reason, "broker", self.now_ms))
        change.seq = self._seq
        yield "settlement made"
        self.store.apply(self.shard, self.epoch, change)
        extra = {"action": "settle", "shard": self.shard, "lane": lane.lane, "count": count}
        logger.info("settled %d tasks of lane %d that the former holder had dispatched", count, lane.lane, extra=extra)
        yield "settled up to the broker's offset"

    def _roll_back(
        self, broker: FencingBroker, lane: model.LaneState, found: model.Position, reason: str
    ) -> Iterator[str]:
        start = lane.offset
        if self.limits.replay_on_rollback:
            since_ms = self.now_ms - self.limits.rollback_window_ms
            earliest = self.store.settlement_start(self.shard, lane.lane, lane.offset, since_ms)
            if earliest is not None:
                start = max(found, earliest)
        redelivered = self.store.summary(self.shard, lane.lane, start, lane.offset)
        left = self.store.count(self.shard, lane.lane, found, start)
        since = "<time>" if found == model.ORIGIN else format_utc(found.due_ms)  # nobody wants all of a week again
        logger.error(
            "%s; %d tasks are published again; %d older tasks are not, until you run celery -A proj wheel replay "
            "--shard %d --from %s --to %s; check the broker's persistence",
            reason,
            redelivered.count,
            left,
            self.shard,
            since,
            format_utc(start.due_ms + 1),
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
            change = model.Change(lanes=[replace(lane, offset=start, watermark=start)], tally=redelivered.tally)
            self.store.apply(self.shard, self.epoch, change)
            yield "offset moved back in the store"
        broker.set_offset(self.shard, self.epoch, lane.lane, start)
        self.rollbacks += 1
        yield "offset set in the broker"


def _reason(text: str, lane: model.LaneState, found: BrokerOffset) -> str:
    return text.format(lane.lane, tuple(found.offset), tuple(lane.offset))
