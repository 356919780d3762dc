"""Lease, epoch and offset on Redis: holders come and go, and a chunk is published by a compare-and-set on an offset.

::

    store    epoch, lease, rows, offset        Redis    epoch, offset, the queue

    acquire ─► adopt ─► compare ─► begin ─► take ─► publish ─► settle        the answer of ``publish`` may be lost: the
                                              ▲                   │          same chunk is published again, or the next
                                              └───────────────────┘          holder finds the offset ahead

The promises: each row is in the queue once, in order, none that has an outcome; a row that the store counts as
dispatched is in the queue; every row gets there. Where Redis loses writes that it had acknowledged, the last two hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from celery_wheel.engine.state.lane import MAIN
from celery_wheel.store.model import STOPPED
from tests.model.checker import Event, Map, require
from tests.model.shard import ORIGIN, At, Chunk, Commit, Shard, ShardModel, live

PUBLISHED, ALREADY, ROLLED_BACK, FENCED, MISSING = "published", "already", "rolled back", "fenced", "missing"


@dataclass(frozen=True, slots=True)
class Redis:
    epoch: int = 0
    offsets: Map[int, At] = field(default_factory=Map)
    queue: tuple[tuple[int, At, int], ...] = ()  #: lane, position and row, oldest first


@dataclass(frozen=True, slots=True)
class State(Shard):
    redis: Redis = Redis()
    past: Redis | None = None  #: what Redis may go back to
    lost: bool = False  #: Redis has lost writes


class Lease(ShardModel):
    def __init__(self, rows: int = 2, epochs: int = 2, *, loses: bool = False) -> None:
        super().__init__(rows, epochs)
        self.loses = loses

    def initial(self) -> State:
        return State()

    # -- what Redis does -------------------------------------------------------------------------

    def adopt(self, state: State, epoch: int, answer: str) -> State:
        fenced = self.is_fenced(state, epoch)
        require(answer == (FENCED if fenced else "adopted"), f"Redis answers {answer}")
        if fenced:
            return state
        require(state.memory[epoch].stage == "acquired", "an epoch is adopted once")
        state = self._stage(state, epoch, "adopted")
        told = replace(state.memory[epoch], told=state.redis.offsets if self.loses else Map())
        redis = replace(state.redis, epoch=max(epoch, state.redis.epoch))
        return replace(state, redis=redis, memory=state.memory.put(epoch, told))

    def shown(self, state: State, epoch: int) -> int:
        """Return the epoch that Redis sees in a call."""
        return epoch

    def is_fenced(self, state: State, epoch: int) -> bool:
        return state.redis.epoch > self.shown(state, epoch)

    def set_offset(self, state: State, epoch: int, lane: int, at: At) -> State:
        require(state.redis.epoch == self.shown(state, epoch), "fenced by Redis, or another epoch")
        require(at == state.offsets.get(lane, ORIGIN) or lane not in state.offsets, "an offset that the store has not")
        again = state.lost and state.memory[epoch].stage != "holding"
        there = state.redis.offsets.get(lane, ORIGIN), state.memory[epoch].told.get(lane, ORIGIN)
        back = again and at <= max(there)
        again_the_same = state.redis.offsets.get(lane) == at  # the answer of the first call was lost
        require(lane not in state.redis.offsets or back or again_the_same, "the offset of a lane that Redis knows")
        self.check_new_lane(state, epoch, lane, at)
        return replace(state, redis=replace(state.redis, offsets=state.redis.offsets.put(lane, at)))

    def check_new_lane(self, state: State, epoch: int, lane: int, at: At) -> None:
        known = lane in state.redis.offsets or state.memory[epoch].stage == "holding"
        require(known or not live(state, lane, ORIGIN, at), "Redis does not know the lane, and rows were dispatched")

    def drop(self, state: State, epoch: int, lanes: tuple[int, ...]) -> State:
        require(state.redis.epoch == self.shown(state, epoch), "fenced by Redis, or another epoch")
        return replace(state, redis=replace(state.redis, offsets=state.redis.offsets.without(*lanes)))

    def publish(self, state: State, epoch: int, chunk: Chunk, failed: tuple[int, ...], answer: str) -> State:
        redis = state.redis
        right = self.answer(state, epoch, chunk)
        if right in (PUBLISHED, ROLLED_BACK) and self.lacks_last(state, epoch, chunk):
            right = answer if answer == MISSING else right
        require(answer == right, f"Redis answers {answer}, and {right} is right")
        if answer != PUBLISHED:
            return state
        self.check_guard(state, epoch, chunk)
        pushed = tuple((chunk.lane, state.rows[row].at, row) for row in chunk.rows if row not in failed)
        offsets = redis.offsets.put(chunk.lane, chunk.upto)
        redis = replace(redis, queue=redis.queue + pushed, offsets=offsets)
        return replace(state, redis=redis, failed=state.failed | set(failed))

    def answer(self, state: State, epoch: int, chunk: Chunk) -> str:
        found = state.redis.offsets.get(chunk.lane)
        if self.is_fenced(state, epoch):
            return FENCED
        if found is None or state.redis.epoch < self.shown(state, epoch):
            return MISSING
        if found >= chunk.upto:
            return ALREADY
        return PUBLISHED if found == chunk.after else ROLLED_BACK

    def lacks_last(self, state: State, epoch: int, chunk: Chunk) -> bool:
        """Whether Redis may have lost the chunk, of any lane, that this epoch knows to be confirmed last."""
        before = {**state.memory[epoch].taken, chunk.lane: chunk.after}
        return state.lost and any(at > state.redis.offsets.get(lane, ORIGIN) for lane, at in before.items())

    def lose(self, state: State, epoch: int, offsets: Map[int, At]) -> State:
        """Go back to what Redis had before: messages that were published since are gone."""
        queue = tuple(one for one in state.redis.queue if one[1] <= offsets.get(one[0], ORIGIN))
        surprised = {"adopted": "surprised"}
        memory = Map({of: replace(one, stage=surprised.get(one.stage, one.stage)) for of, one in state.memory.items()})
        return replace(state, redis=Redis(epoch, offsets, queue), past=None, lost=True, memory=memory)

    def keep(self, state: State) -> State:
        require(state.past is None and not state.lost and state.redis.queue, "one past is enough")
        return replace(state, past=state.redis)

    # -- what a holder does ----------------------------------------------------------------------

    def begin(self, state: State, epoch: int) -> State:
        memory = state.memory[epoch]
        require(memory.stage in ("adopted", "surprised"), "Redis has not adopted the epoch")
        if memory.stage == "adopted" and epoch == state.epoch:  # a later epoch may have moved them
            self.check_compared(state)
        return self._stage(state, epoch, "holding")

    def check_compared(self, state: State) -> None:
        for lane, at in state.offsets.items():
            require(lane < 0 or state.redis.offsets.get(lane) == at, f"the offsets of lane {lane} differ")

    def check_chunk(self, state: Shard, memory: object, chunk: Chunk, before: At) -> None:
        super().check_chunk(state, memory, chunk, before)  # type: ignore[arg-type]
        assert isinstance(state, State)
        ahead = state.redis.offsets.get(chunk.lane, ORIGIN) >= before
        require(ahead or state.lost, "the chunk before it has no answer")

    def check_guard(self, state: State, epoch: int, chunk: Chunk) -> None:
        taken = state.memory[epoch].flights.get(chunk.lane)
        require(taken == chunk, "the chunk was not taken")
        require(live(state, chunk.lane, chunk.after, chunk.upto) == chunk.rows, "the store has other rows: the guard")

    def check_offset(self, state: State, epoch: int, lane: int, offset: At, watermark: At) -> None:
        before, there = state.offsets.get(lane, ORIGIN), state.redis.offsets.get(lane, ORIGIN)
        if offset > before and lane in state.offsets:
            memory = state.memory[epoch]
            before_the_loss = max(memory.taken.get(lane, ORIGIN), memory.told.get(lane, ORIGIN))
            known = max(there, before_the_loss) if state.lost else there
            require(offset <= known, "rows are settled that were not published")
        elif offset < before:
            require(state.lost and offset >= there, "the store's offset goes back")

    def _stage(self, state: State, epoch: int, stage: str) -> State:
        require(epoch in state.memory, "nobody has that epoch")
        return replace(state, memory=state.memory.put(epoch, replace(state.memory[epoch], stage=stage)))

    # -- bounds and promises ---------------------------------------------------------------------

    def events(self, state: State) -> Iterator[Event]:
        yield from self.shard_events(state)
        redis = state.redis
        if self.loses:
            yield ("keep",)
            if state.past is not None and state.epoch < self.epochs:
                yield from (("lose", state.past.epoch, state.past.offsets), ("lose", 0, Map()))
        there = redis.offsets.get(MAIN, ORIGIN)
        for epoch, memory in state.memory.items():
            yield from (("adopt", epoch, "adopted"), ("adopt", epoch, FENCED))
            yield "set_offset", epoch, MAIN, state.offsets.get(MAIN, ORIGIN)
            yield "begin", epoch
            yield "commit", Commit(epoch, lanes=((MAIN, there, there),))
            if (chunk := memory.flights.get(MAIN)) is not None:
                yield from (("publish", epoch, chunk, (), answer) for answer in (PUBLISHED, ALREADY))
                yield "commit", Commit(epoch, lanes=((MAIN, chunk.upto, chunk.upto),))

    def broken(self, state: State) -> str | None:
        queue = state.redis.queue
        rows = {row for *_, row in queue}
        if not state.lost:
            if len(rows) < len(queue):
                return "a row is in the queue twice, and Redis has lost nothing"
            if any(state.rows[row].lane == STOPPED for row in rows):
                return "a row with an outcome was published"
            last: dict[int, At] = {}
            for lane, at, _ in queue:
                if at < last.get(lane, ORIGIN):
                    return "rows are out of order"
                last[lane] = at
        for row, (lane, at) in state.rows.items():
            stored, there = state.offsets.get(lane, ORIGIN), state.redis.offsets.get(lane, ORIGIN)
            if lane >= 0 and at <= (min(stored, there) if state.lost else stored) and row not in rows:
                return f"row {row} counts as dispatched, and is not in the queue"
        return None
