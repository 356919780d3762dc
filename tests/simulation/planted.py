"""Planted bugs: each breaks one line of the protocol, to show that the simulation finds it.

A bug is a function that stands for another (``replaces``), or one that yields the class of a ``World`` with the bug
(``planted``). A seed has to violate a promise.
"""

import functools
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest import mock

from celery_wheel.engine import commands, housekeeping, ingest, prefetch
from celery_wheel.engine.adoption import Adoption
from celery_wheel.engine.delivery import FencedDelivery
from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.intake import admission
from celery_wheel.engine.port import BrokerOffset, FencingBroker
from celery_wheel.engine.round import Context, Steps
from celery_wheel.engine.state.lane import InFlight, Lane
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.tombstones import TombstoneFilter
from celery_wheel.engine.state.window import Window
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.errors import CommitInDoubt, RequestWithdrawn, StoreError
from celery_wheel.store.model import ORIGIN, Change, Position, Row
from tests.simulation.model_loads import ModelLoads
from tests.simulation.model_redis import ModelRedis
from tests.simulation.model_store import ModelStore
from tests.simulation.world import World

Plant = Callable[[], AbstractContextManager[type[World]]]

#: The bugs of this module and of ``planted_…``, each with the first seed that shows it.
#: A change of the engine may change the seed: then all seeds are tried, which takes longer, and
#: ``python -m tests.simulation planted`` prints the new ones.
PLANTED: list[tuple[Plant, int]] = []


def planted(seed: int) -> Callable[[Callable[[], Iterator[type[World]]]], Plant]:
    def added(bug: Callable[[], Iterator[type[World]]]) -> Plant:
        PLANTED.append((contextmanager(bug), seed))
        return PLANTED[-1][0]

    return added


def replaces(owner: Any, name: str, *, seed: int, world: type[World] = World) -> Callable[[Callable[..., Any]], Plant]:
    """Plant a bug in place of a function of ``owner``; the bug gets that function as its first argument."""
    right = getattr(owner, name)

    def added(bug: Callable[..., Any]) -> Plant:
        @functools.wraps(bug)
        def plant() -> Iterator[type[World]]:
            with mock.patch.object(owner, name, lambda *args, **named: bug(right, *args, **named)):
                yield world

        return planted(seed)(plant)

    return added


def otherwise(
    bug: str, owner: Any, name: str, place: int, change: Callable[[Any], Any], *, seed: int, world: type[World] = World
) -> None:
    """Plant a bug by which a function gets another argument at a place."""

    def changed(right: Any, *args: Any, **named: Any) -> Any:
        return right(*args[:place], change(args[place]), *args[place + 1 :], **named)

    changed.__name__ = bug
    replaces(owner, name, seed=seed, world=world)(changed)


def instead(bug: str, *places: tuple[Any, str, Any], seed: int, world: type[World] = World) -> None:
    """Plant a bug by other attributes of these owners."""

    def plant() -> Iterator[type[World]]:
        with ExitStack() as stack:
            for owner, name, wrong in places:
                stack.enter_context(mock.patch.object(owner, name, wrong))
            yield world

    plant.__name__ = bug
    planted(seed)(plant)


def _without_reservations(concerns: Callable[[UnitOfWork], object]) -> tuple[Any, str, Any]:
    def careless(self: UnitOfWork) -> None:
        if concerns(self):
            self._lowest.clear()
        reserve(self)

    reserve = UnitOfWork.reserve
    return UnitOfWork, "reserve", careless


# Rows get positions without a reservation: dispatch may pass them before they are committed.
instead("position_outside_reservation", _without_reservations(lambda work: work.change.rows), seed=8)
# The position of a cancelled row is not reserved until its outcome is in the store.
instead("outcome_after_the_chunk", _without_reservations(lambda work: work.rows and not work._moved), seed=122)
# A row moves without a reservation: dispatch may pass its new position before it is committed.
instead("moved_without_a_reservation", _without_reservations(lambda work: work.rows and work._moved), seed=10)


# A task is unknown, and a key is completed, while messages that were sent before are in the wheel queue.
otherwise("unknown_without_a_look", ingest, "cancel_or_move", 3, lambda _: 2**62, seed=10)
otherwise("key_without_a_look", ingest, "complete", 3, lambda _: 2**62, seed=1)


@replaces(ingest, "_read", seed=228)
def queue_peeked_before_the_inbox_is_read(right: Any, ctx: Context) -> Generator[str, None, Any]:
    """A command is answered by an older peek at the wheel queue: the result of a task sent in between is unknown."""
    seen_at_ms = ctx.clock.monotonic_ms()
    seen = ctx.broker.peek(ctx.shard, ctx.limits.intake_count, ctx.limits.intake_bytes)
    yield "peeked"
    intake = yield from right(ctx)
    newer = len(intake.peeked.arrivals)
    del intake.arrivals[len(intake.accepted) : len(intake.accepted) + newer]
    intake.arrivals += seen.arrivals
    intake.peeked, intake.peeked_at_ms = seen, seen_at_ms
    return intake


@replaces(commands, "relocate", seed=1)
def move_that_is_only_answered(right: Any, work: UnitOfWork, row: Row, eta_ms: int | None, *by: str) -> None:
    """A move is answered, and the task keeps its due time."""
    right(work, row, eta_ms and row.eta_ms, *by)


# A command finds a row at a position that dispatch has passed, and the row is in the lane of a gate by now.
instead("row_diverted_after_it_was_read", (ShardState, "may_be_diverted", lambda *_: False), seed=14)
# Rows before the watermark are cancelled as well.
instead("done_though_handed_over", (Lane, "may_be_published", lambda lane, at: at <= lane.offset), seed=4)
# A task that was cancelled before its message arrived is published.
instead("no_tombstone", (TombstoneFilter, "candidates", lambda *_: []), seed=20)
# A pause is answered, and the next holder does not read it.
instead("closed_too_late", (ModelStore, "gates", lambda *_: []), seed=1)
# A writer of a bulk load does not check that the load is open and that it still owns the part.
instead("loads_without_a_fence", (ModelLoads, "fenced", False), seed=7)
# A trim removes as many messages as were peeked, whichever they are by now.
instead("trim_by_count", (ModelRedis, "trim_by_content", False), seed=140)
# A former holder is not fenced.
instead("no_epoch_check", (ModelStore, "check_epoch", False), (ModelRedis, "check_epoch", False), seed=5)
# The horizon has moved past rows that could not be read, and the holder goes on.
instead("memory_kept_after_a_slice_that_failed", (prefetch, "CommitInDoubt", StoreError), seed=17)
# Due time is the wall clock.
instead("wall_clock_followed_without_asking", (DueClock, "now_ms", DueClock.wall_ms), seed=85)


@replaces(ModelStore, "apply", seed=33)
def carried_out_though_withdrawn(right: Any, self: ModelStore, shard: int, epoch: int, change: Change) -> None:
    """A command is carried out that was withdrawn from the inbox."""
    with self.disk.lock:
        change.inbox = [item for item in change.inbox if item in self.disk.shard(shard).inbox]
        right(self, shard, epoch, change)


@replaces(commands, "_complete_rows", seed=0)
def completed_though_handed_over(right: Any, *args: object) -> None:
    """Rows of a chunk in flight are completed as well."""
    with mock.patch.object(ShardState, "may_be_published", return_value=False):
        right(*args)


@replaces(admission._Contest, "decide", seed=1)
def each_alone_is_unique(right: Any, self: Any, arrivals: Sequence[Any]) -> None:
    """Several messages of one commit are compared with the store only, and not with each other."""
    for arrival in arrivals:
        stored = {key: [one for one in found if isinstance(one.task, Row)] for key, found in self._pending.items()}
        self._pending = {key: found for key, found in stored.items() if found}
        right(self, [arrival])


@replaces(admission._Contest, "__init__", seed=1)
def what_left_is_unique(right: Any, *args: Any) -> None:
    """A published task keeps other tasks of its unique key from being accepted."""
    with mock.patch.object(ShardState, "may_be_published", return_value=False):
        right(*args)


@replaces(ModelStore, "apply", seed=198)
def chunks_gone_before_their_rows(right: Any, self: ModelStore, shard: int, epoch: int, change: Change) -> None:
    """Chunks of a load are removed in a transaction of their own."""
    self._held(shard, epoch)
    self.disk.loads.accept(change.loaded)
    right(self, shard, epoch, change)


@replaces(prefetch, "_read_slice", seed=9)
def slice_before_the_horizon_moves(
    _: Any, ctx: Context, state: ShardState, lane: Lane, after: Position, upto: Position
) -> Steps:
    """A row that is committed between the read and the move is in neither the slice nor the window."""
    rows = ctx.store.slice(ctx.shard, lane.number, after, upto)
    ctx.fence(state.epoch, state.accepted)
    yield "sliced"
    with state.active():
        slice_ = state.window.begin_prefetch(lane, after, upto)
    yield "horizon moved"
    if slice_ is not None:
        with state.active():
            state.window.place_prefetched(lane, slice_, rows)
            state.window.finish_prefetch(lane, slice_)
            state.window.evict(state.lanes)
        yield "prefetched"


@planted(seed=1)
def offset_before_the_publish() -> Iterator[type[World]]:
    """The chunk counts as published, and is settled, before the broker has answered."""
    publish, confirm = FencedDelivery.publish, Lane.confirm

    def hasty(self: FencedDelivery, state: ShardState, lane: Lane, flight: InFlight, now_ms: int, ask: Any) -> Any:
        lane.confirm(flight, now_ms)
        return publish(self, state, lane, flight, now_ms, ask)

    def confirmed(self: Lane, flight: InFlight, now_ms: int, refused: Collection[int] = ()) -> None:
        if self.in_flight is not None:
            confirm(self, flight, now_ms, refused)

    with mock.patch.object(FencedDelivery, "publish", hasty), mock.patch.object(Lane, "confirm", confirmed):
        yield World


@planted(seed=12)
def five_ms_early() -> Iterator[type[World]]:
    """Rows are published up to 5 ms before they are due."""
    take, advance = Lane.take, Window.reap

    def eager(self: Lane, rows: dict[int, Row], now_ms: int, *rest: Any) -> InFlight | None:
        return take(self, rows, now_ms + 5, *rest)

    def reap(self: Window, lanes: Any, now_ms: int) -> None:
        advance(self, lanes, now_ms + 5)

    with mock.patch.object(Lane, "take", eager), mock.patch.object(Window, "reap", reap):
        yield World


class ClosingWorld(World):
    """Idle lanes are closed at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.limit(lane_idle_ms=0)


# A lane is put to sleep, and closed, while rows of it are only in the store, or in flight.
_asleep = (Lane, "is_idle", lambda lane: lane.number % 512 > 0)
instead("closed_with_rows_in_it", _asleep, (housekeeping, "END", ORIGIN), seed=12, world=ClosingWorld)


class Unfenced(Context):
    def fence(self, epoch: int, known: int) -> None:
        return


def _unfenced(ctx: Context) -> Context:
    return Unfenced(**{one.name: getattr(ctx, one.name) for one in fields(ctx) if one.init})


# A former holder reads a slice with rows of the next holder.
otherwise("rows_of_a_later_epoch_in_memory", prefetch, "_read_slice", 0, _unfenced, seed=334)


@replaces(UnitOfWork, "_write", seed=80)
def memory_kept_after_a_commit_without_an_answer(right: Any, self: UnitOfWork, ctx: Context) -> Steps:
    """A commit has no answer, and the holder goes on as if the change were not in the store."""
    try:
        yield from right(self, ctx)
    except CommitInDoubt as error:
        raise RequestWithdrawn from error


@replaces(Adoption, "_compare", seed=7)
def emptied_broker_taken_for_a_new_one(
    right: Any, self: Adoption, broker: FencingBroker, offsets: dict[int, BrokerOffset]
) -> Steps:
    """A broker without any offset gets those of the store, and nothing of what it had."""
    found = offsets or {lane.lane: BrokerOffset(lane.offset) for lane in self.store.lanes(self.shard)}
    for lane, one in found.items() if not offsets else ():
        broker.set_offset(self.shard, self.epoch, lane, one.offset)
    yield from right(self, broker, found)


class ForgettingWorld(World):
    """History is kept for a moment, and a holder ends between the settlements of two chunks of one checksum."""

    def make_server(self) -> None:
        super().make_server()
        if not self.loses and not self.clock_steps:
            self.limits = replace(self.limits, retention_ms=0)

    def _happen(self) -> None:
        for scheduler in list(self.schedulers):
            state = scheduler.engine.state
            lanes = () if state is None or self.loses or self.clock_steps else state.lanes
            if any(lane.checksum_after < lane.offset and (lane.in_flight or lane.unsettled) for lane in lanes):
                scheduler.finish("keep_house")
                self._crash(scheduler)
        super()._happen()


# Settled rows are forgotten while the checksum that the broker keeps covers them.
_replayable = (Lane, "replayable", property(lambda lane: lane.offset))
instead("forgotten_rows_that_an_adoption_compares", _replayable, seed=5, world=ForgettingWorld)
