"""The part that the models of both brokers share: a shard in the store, its lease, and the commits of its holders.

::

    acquire ─► epoch + 1, and the lease      lapse: the lease is over      crash: a process ends, with its memory
    commit     one transaction of a holder: new rows, moved rows, offsets and watermarks of lanes

A holder's memory is kept by its epoch. A process that was suspended still has the memory of an epoch that is over: the
events of every epoch may come at any time. A position is a pair (due, seq) as in the product; there is no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from celery_wheel.engine.state.lane import MAIN
from celery_wheel.store.model import STOPPED
from tests.model.checker import Map, Model, require

At = tuple[int, int]
ORIGIN: At = (0, 0)


class Place(NamedTuple):
    lane: int
    at: At


class Chunk(NamedTuple):
    lane: int
    after: At
    upto: At
    rows: tuple[int, ...]


class Commit(NamedTuple):
    epoch: int
    new: tuple[tuple[int, Place], ...] = ()  #: rows
    moved: tuple[tuple[int, Place], ...] = ()  #: rows; to lane STOPPED with an outcome
    lanes: tuple[tuple[int, At, At], ...] = ()  #: lane, offset, watermark
    closed: tuple[int, ...] = ()  #: lanes


@dataclass(frozen=True, slots=True)
class Memory:
    who: str
    stage: str = "acquired"  #: then adopted, then holding
    taken: Map[int, At] = field(default_factory=Map)  #: lane → the position up to which it was taken
    flights: Map[int, Chunk] = field(default_factory=Map)  #: lane → the last chunk that was taken
    told: Map[int, At] = field(default_factory=Map)  #: lane → the offset that the broker had at the adoption


@dataclass(frozen=True, slots=True)
class Shard:
    epoch: int = 0
    holder: str = ""  #: whose lease is not over
    rows: Map[int, Place] = field(default_factory=Map)  #: those with an outcome are in lane STOPPED
    offsets: Map[int, At] = field(default_factory=lambda: Map({MAIN: ORIGIN}))
    memory: Map[int, Memory] = field(default_factory=Map)  #: by epoch
    failed: frozenset[int] = frozenset()  #: rows that the broker could not put into a queue


S = TypeVar("S", bound=Shard)


def live(state: Shard, lane: int, after: At, upto: At) -> tuple[int, ...]:
    """Return the rows of a lane in (after, upto], in order."""
    found = sorted((place.at, row) for row, place in state.rows.items() if place.lane == lane)
    return tuple(row for at, row in found if after < at <= upto)


class ShardModel(Model):
    """``rows`` rows and ``epochs`` acquisitions by two processes are the bounds of the search."""

    def __init__(self, rows: int = 2, epochs: int = 2) -> None:
        self.row_count, self.epochs = rows, epochs

    # -- the lease -------------------------------------------------------------------------------

    def acquire(self, state: S, who: str) -> S:
        self.check_lease(state, who)
        epoch = state.epoch + 1
        return replace(state, epoch=epoch, holder=who, memory=state.memory.put(epoch, Memory(who)))

    def check_lease(self, state: Shard, who: str) -> None:
        require(state.holder in ("", who), "the lease of another process is not over")

    def renew(self, state: S, epoch: int) -> S:
        self.check_epoch(state, epoch)
        return replace(state, holder=state.memory[epoch].who)

    def lapse(self, state: S) -> S:
        require(state.holder, "no lease")
        return replace(state, holder="")

    def free(self, state: S, epoch: int) -> S:
        return replace(state, holder="") if epoch == state.epoch else state

    def crash(self, state: S, who: str) -> S:
        left = [epoch for epoch, memory in state.memory.items() if memory.who == who]
        holder = "the dead" if state.holder == who else state.holder
        return replace(state, holder=holder, memory=state.memory.without(*left))

    # -- commits ---------------------------------------------------------------------------------

    def check_epoch(self, state: Shard, epoch: int) -> None:
        require(epoch == state.epoch, "fenced by the store")

    def commit(self, state: S, change: Commit) -> S:
        self.check_epoch(state, change.epoch)
        holds = state.memory[change.epoch].stage == "holding"
        require(holds or not (change.new or change.moved) or change.lanes, "it does not hold the shard yet")
        for row, place in change.new:
            require(row not in state.rows, f"row {row} is in the store")
            self.check_position(state, change.epoch, row, place)
        for row, place in change.moved:
            self.check_move(state, change.epoch, row)
            self.check_position(state, change.epoch, row, place)
        state = replace(state, rows=Map({**state.rows, **dict(change.new), **dict(change.moved)}))
        for lane, offset, watermark in change.lanes:
            self.check_offset(state, change.epoch, lane, offset, watermark)
        offsets = {**state.offsets, **{lane: offset for lane, offset, _ in change.lanes}}
        return replace(state, offsets=Map(offsets).without(*change.closed))

    def watermark(self, state: Any, epoch: int, lane: int) -> At:
        """Return the position up to which rows may have been published."""
        return max(state.memory[epoch].taken.get(lane, ORIGIN), state.offsets.get(lane, ORIGIN))

    def check_position(self, state: Shard, epoch: int, row: int, place: Place) -> None:
        passed = place.at <= self.watermark(state, epoch, place.lane)
        require(place.lane == STOPPED or not passed, f"row {row} gets a position that was taken before")

    def check_move(self, state: Shard, epoch: int, row: int) -> None:
        require(row in state.rows, f"row {row} is not in the store")
        lane, at = state.rows[row]
        flight = state.memory[epoch].flights.get(lane)
        left_out = flight is not None and flight.after < at <= flight.upto and row not in flight.rows
        may_leave = at > self.watermark(state, epoch, lane) or left_out or row in state.failed or lane == STOPPED
        require(may_leave, f"row {row} moves, and was taken to be published")

    def check_offset(self, state: Any, epoch: int, lane: int, offset: At, watermark: At) -> None:
        raise NotImplementedError

    # -- chunks ----------------------------------------------------------------------------------

    def take(self, state: S, epoch: int, chunk: Chunk) -> S:
        memory = state.memory.get(epoch)
        require(memory is not None and memory.stage == "holding", "it does not hold the shard")
        assert memory is not None
        before = memory.taken.get(chunk.lane, state.offsets.get(chunk.lane, ORIGIN))
        if epoch == state.epoch:  # a former holder takes what its memory has: the guard and the fences are before it
            self.check_chunk(state, memory, chunk, before)
        memory = replace(
            memory,
            taken=memory.taken.put(chunk.lane, max(before, chunk.upto)),
            flights=memory.flights.put(chunk.lane, chunk),
        )
        return replace(state, memory=state.memory.put(epoch, memory))

    def check_chunk(self, state: Shard, memory: Memory, chunk: Chunk, before: At) -> None:
        require(chunk.after >= before, "a chunk begins before the end of the one before it")
        rows = live(state, chunk.lane, chunk.after, chunk.upto)
        require([row for row in rows if row in chunk.rows] == [*chunk.rows], "a chunk has rows that are not there")

    # -- bounds ----------------------------------------------------------------------------------

    def shard_events(self, state: Shard) -> Any:
        if state.epoch < self.epochs:
            yield from (("acquire", who) for who in ("a", "b")[: state.epoch + 1])
        yield ("lapse",)
        # The holder of the last epoch within the bounds lives: after it nobody could take over.
        last = state.memory[self.epochs].who if self.epochs in state.memory else ""
        yield from (("crash", who) for who in sorted({one.who for one in state.memory.values()} - {last}))
        last_at = max([at for _, at in state.rows.values()], default=ORIGIN)
        for epoch, memory in state.memory.items():
            yield from (("renew", epoch), ("free", epoch))
            for row in range(1, self.row_count + 1):
                for at in {(row, 0), max((row, 0), (last_at[0] + 1, 0))}:
                    yield "commit", Commit(epoch, new=((row, Place(MAIN, at)),))
                if row in state.rows and state.rows[row].lane != STOPPED:
                    yield "commit", Commit(epoch, moved=((row, Place(STOPPED, ORIGIN)),))
            if memory.stage == "holding":
                after = memory.taken.get(MAIN, state.offsets.get(MAIN, ORIGIN))
                ends = sorted(place.at for place in state.rows.values() if place.lane == MAIN and place.at > after)
                for upto in ends:
                    yield "take", epoch, Chunk(MAIN, after, upto, live(state, MAIN, after, upto))

    def is_done(self, state: Any) -> bool:
        rows = state.rows
        return len(rows) == self.row_count and all(
            place.lane == STOPPED or place.at <= state.offsets.get(place.lane, ORIGIN) for place in rows.values()
        )
