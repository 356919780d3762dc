"""In doubt on RabbitMQ: the broker keeps no offset, so the store learns the end of each chunk before it is published.

::

    store    epoch, lease, rows, offset, watermark        RabbitMQ    the queue

    acquire ─► begin ─► take ─► prepare ─► send, row by row ─► settle, with the next prepare
               (offset, watermark] of a lane is in doubt: it is sent first, with the mark ``wheel_redelivered``

The promises: the second copy of a row is marked; the first copies are in order; none of them has an outcome; a row that
the store counts as dispatched is in the queue; every row gets there.

Left out: the look at the lease and the write are one step. A process that is suspended between the two is a documented
limit (docs/promises.md), and one of the variants in ``broken`` that the search refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from celery_wheel.engine.state.lane import MAIN
from celery_wheel.store.model import STOPPED
from tests.model.checker import Event, Map, require
from tests.model.shard import ORIGIN, At, Commit, Shard, ShardModel, live


@dataclass(frozen=True, slots=True)
class State(Shard):
    watermarks: Map[int, At] = field(default_factory=Map)
    doubt: Map[int, At] = field(default_factory=Map)  #: lane → the watermark that the holder has found
    queue: tuple[tuple[int, At, int, bool, int], ...] = ()  #: lane, position, row, whether it is marked, the epoch


def chunk_before(rows: tuple[int, ...], row: int) -> tuple[int, ...]:
    return rows[: rows.index(row)]


class Doubt(ShardModel):
    def initial(self) -> State:
        return State()

    def acquire(self, state: State, who: str) -> State:
        return replace(super().acquire(state, who), doubt=state.watermarks)

    def watermark(self, state: State, epoch: int, lane: int) -> At:
        return max(super().watermark(state, epoch, lane), state.doubt.get(lane, ORIGIN))

    def begin(self, state: State, epoch: int) -> State:
        require(state.memory[epoch].stage == "acquired", "an epoch begins once")
        return replace(state, memory=state.memory.put(epoch, replace(state.memory[epoch], stage="holding")))

    def commit(self, state: State, change: Commit) -> State:
        after = super().commit(state, change)
        watermarks = {**state.watermarks, **{lane: watermark for lane, _, watermark in change.lanes}}
        return replace(after, watermarks=Map(watermarks))

    def check_offset(self, state: State, epoch: int, lane: int, offset: At, watermark: At) -> None:
        before = state.offsets.get(lane, ORIGIN)
        require(before <= offset <= watermark, "an offset goes back, or is beyond its watermark")
        self.check_settled(state, lane, before, offset)
        flight = state.memory[epoch].flights.get(lane)
        taken = state.memory[epoch].taken.get(lane, ORIGIN)
        known = max(state.watermarks.get(lane, ORIGIN), taken, flight.upto if flight else ORIGIN)
        new = lane not in state.watermarks
        require(watermark >= state.watermarks.get(lane, ORIGIN), "a watermark goes back")
        require(new or watermark <= max(known, offset), "a watermark is beyond what was taken")

    def check_settled(self, state: State, lane: int, before: At, offset: At) -> None:
        sent = {one[2] for one in state.queue}
        unsent = [row for row in live(state, lane, before, offset) if row not in sent]
        require(not unsent, f"rows {unsent} are settled that were not sent")

    def send(self, state: State, epoch: int, row: int, marked: bool) -> State:
        lane, at = state.rows[row]
        self.check_holds(state, epoch)
        flight = state.memory[epoch].flights.get(lane)
        require(flight is not None and row in flight.rows, f"row {row} was not taken")
        sent = {one[2] for one in state.queue} | state.failed
        require(sent.issuperset(chunk_before(flight.rows, row)), f"an earlier row than {row} was not sent")
        self.check_prepared(state, lane, at)
        require(
            marked or not self.may_be_second(state, epoch, row), f"row {row} may be a second copy, and is not marked"
        )
        return replace(state, queue=(*state.queue, (lane, at, row, marked, epoch)))

    def check_holds(self, state: State, epoch: int) -> None:
        require(epoch in state.memory and state.holder == state.memory[epoch].who, "the lease is over")
        require(epoch == state.epoch, "a newer epoch has the lease")

    def check_prepared(self, state: State, lane: int, at: At) -> None:
        ready = state.offsets.get(lane, ORIGIN) < at <= state.watermarks.get(lane, ORIGIN)
        require(ready, "the store does not know the end of the chunk")

    def may_be_second(self, state: State, epoch: int, row: int) -> bool:
        """Whether the holder knows that the row may be there: it was in doubt, or the holder has sent it before."""
        lane, at = state.rows[row]
        in_doubt = epoch == state.epoch and at <= state.doubt.get(lane, ORIGIN)
        return in_doubt or any((one[2], one[4]) == (row, epoch) for one in state.queue)

    def refuse(self, state: State, row: int) -> State:
        """A queue is full, or is missing: the row moves to another lane, or gets an outcome."""
        return replace(state, failed=state.failed | {row})

    # -- bounds and promises ---------------------------------------------------------------------

    def events(self, state: State) -> Iterator[Event]:
        if len(state.queue) > 2 * self.row_count:
            return  # a broker that is cut off again and again gets more copies, and no new kind of them
        yield from self.shard_events(state)
        offset = state.offsets.get(MAIN, ORIGIN)
        for epoch, memory in state.memory.items():
            yield "begin", epoch
            if (chunk := memory.flights.get(MAIN)) is not None:
                watermark = max(chunk.upto, state.watermarks.get(MAIN, ORIGIN))
                yield "commit", Commit(epoch, lanes=((MAIN, chunk.after, watermark),))
                yield "commit", Commit(epoch, lanes=((MAIN, offset, watermark),))
                yield "commit", Commit(epoch, lanes=((MAIN, chunk.upto, watermark),))
                for row in chunk.rows:
                    yield from (("send", epoch, row, marked) for marked in (False, True))

    def is_done(self, state: State) -> bool:
        return super().is_done(state) or len(state.queue) > 2 * self.row_count

    def broken(self, state: State) -> str | None:
        sent, last = set[int](), dict[int, At]()
        for lane, at, row, marked, _ in state.queue:
            if row in sent and not marked:
                return f"row {row} is in the queue twice, and the second copy is not marked"
            if state.rows[row].lane == STOPPED and row not in state.failed:
                return f"row {row} has an outcome, and was sent"
            if not marked and at < last.get(lane, ORIGIN):
                return "rows are out of order"
            if not marked:
                last[lane] = at
            sent.add(row)
        for row, (lane, at) in state.rows.items():
            if lane >= 0 and at <= state.offsets.get(lane, ORIGIN) and row not in sent:
                return f"row {row} counts as dispatched, and is not in the queue"
        return None
