"""Defects, each of which a real scheduler could have, to show that the simulation finds them.

Each is a way to build a ``World`` with one line of the protocol broken; nothing of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from celery_wheel.engine import adoption, claims, commands, completion, dispatch, ingest, load, revision
from celery_wheel.engine.context import Context, Steps
from celery_wheel.engine.dispatch import Dispatcher
from celery_wheel.engine.inbox import Command, Completion
from celery_wheel.engine.lane import END, Lane
from celery_wheel.engine.port import Since
from celery_wheel.engine.term import Term
from celery_wheel.engine.window import Window
from celery_wheel.store.model import Change, Gate, Position, Row
from tests.simulation.model_loads import ModelLoads
from tests.simulation.model_redis import ModelRedis
from tests.simulation.model_store import ModelStore
from tests.simulation.world import World


@contextmanager
def position_outside_reservation() -> Iterator[type[World]]:
    """Rows get positions, but nothing keeps dispatch from passing them before they are committed."""

    class Broken(Term):
        def reserve(self, *args: object) -> object:
            with mock.patch.object(Lane, "reserve", _reserve_nothing):
                return super().reserve(*args)  # type: ignore[arg-type]

    with mock.patch.object(adoption, "Term", Broken):
        yield World


@contextmanager
def outcome_after_the_chunk() -> Iterator[type[World]]:
    """A cancelled row's position is not kept until its outcome is in the store."""

    def careless(*args: object) -> object:
        with mock.patch.object(Lane, "reserve", _reserve_nothing):
            return withdraw(*args)  # type: ignore[arg-type]

    withdraw = commands.withdraw
    with mock.patch.object(commands, "withdraw", careless):
        yield World


@contextmanager
def moved_without_a_reservation() -> Iterator[type[World]]:
    """A row gets another place, and nothing keeps dispatch from passing it before it is committed."""

    def careless(*args: object) -> object:
        with mock.patch.object(Lane, "reserve", _reserve_nothing):
            return relocate(*args)  # type: ignore[arg-type]

    relocate = commands.relocate
    with mock.patch.object(commands, "relocate", careless):
        yield World


@contextmanager
def unknown_without_a_look() -> Iterator[type[World]]:
    """Nobody looks into the wheel queue before a task is said to be unknown."""

    def careless(
        ctx: Context, term: Term, command: Command, queue_is_empty: bool, anew: Collection[str] = ()
    ) -> Generator[str, None, bool]:
        return carry_out(ctx, term, command, True, anew)

    carry_out = commands.carry_out
    with mock.patch.object(ingest, "carry_out", careless):
        yield World


@contextmanager
def carried_out_though_taken_back() -> Iterator[type[World]]:
    """Nobody looks whether a command is still in the inbox when it is carried out."""

    class Careless(ModelStore):
        def apply(self, shard: int, epoch: int, change: Change) -> None:
            with self.disk.lock:
                change.inbox = [item for item in change.inbox if item in self.disk.shard(shard).inbox]
                super().apply(shard, epoch, change)

    class Broken(World):
        store_class = Careless

    yield Broken


@contextmanager
def done_though_handed_over() -> Iterator[type[World]]:
    """What stands before the watermark is cancelled as well."""

    def careless(term: Term, *args: object) -> object:
        watermarks = {number: lane.watermark for number, lane in term.lanes.items()}
        for lane in term.lanes.values():
            lane.watermark = lane.offset
        try:
            return withdraw(term, *args)  # type: ignore[arg-type]
        finally:
            for number, watermark in watermarks.items():
                term.lanes[number].watermark = watermark

    withdraw = commands.withdraw
    with mock.patch.object(commands, "withdraw", careless):
        yield World


@contextmanager
def no_tombstone() -> Iterator[type[World]]:
    """A task that was cancelled before it came leaves all the same."""
    with mock.patch.object(Term, "tombstone", return_value=None):
        yield World


@contextmanager
def completed_though_handed_over() -> Iterator[type[World]]:
    """What is on its way is completed as well."""
    with mock.patch.object(revision, "handed_over", return_value=False):
        yield World


@contextmanager
def key_without_a_look() -> Iterator[type[World]]:
    """A key is completed, and what was sent before is still in the wheel queue."""

    def careless(ctx: Context, term: Term, command: Completion, queue_is_empty: bool) -> Generator[str, None, bool]:
        return complete(ctx, term, command, queue_is_empty=True)

    complete = completion.complete
    with mock.patch.object(ingest, "complete", careless):
        yield World


@contextmanager
def each_alone_is_unique() -> Iterator[type[World]]:
    """Of several that come at once, each is compared with the store alone."""

    def judge(self: Any, arrivals: Sequence[Any]) -> None:
        for arrival in arrivals:
            self._came.clear()
            each(self, [arrival])

    each = claims._Contest.judge
    with mock.patch.object(claims._Contest, "judge", judge):
        yield World


@contextmanager
def what_left_is_unique() -> Iterator[type[World]]:
    """What was handed over keeps others of its key from waiting."""
    with mock.patch.object(claims, "handed_over", return_value=False):
        yield World


@contextmanager
def closed_too_late() -> Iterator[type[World]]:
    """A pause is answered, and forgotten by whoever takes the shard next."""

    class Forgetful(ModelStore):
        def gates(self, shard: int) -> list[Gate]:
            return []

    class Broken(World):
        store_class = Forgetful

    yield Broken


@contextmanager
def loads_without_a_fence() -> Iterator[type[World]]:
    """Whoever loads does not look whether the load is still open, and the part still its own."""

    class Careless(ModelLoads):
        fenced = False

    class Broken(World):
        loads_class = Careless

    yield Broken


@contextmanager
def chunks_gone_before_their_rows() -> Iterator[type[World]]:
    """Chunks of a load are removed in a transaction of their own."""

    class Careless(ModelStore):
        def apply(self, shard: int, epoch: int, change: Change) -> None:
            self._held(shard, epoch)
            self.disk.loads.take_in(change.loaded)
            super().apply(shard, epoch, change)

    class Broken(World):
        store_class = Careless

    yield Broken


def _reserve_nothing(lane: Lane, _lowest: Position) -> int:
    return _reserve(lane, END)


_reserve = Lane.reserve


@contextmanager
def slice_before_the_edge_moves() -> Iterator[type[World]]:
    """What is committed between the read and the edge is in neither the slice nor the window."""

    def read_slice(ctx: Context, term: Term, lane: Lane, after: Position, upto: Position) -> Steps:
        rows = ctx.store.slice(ctx.shard, lane.number, after, upto)
        yield "sliced"
        with term.active():
            slice_ = term.window.begin_load(lane, after, upto)
        yield "edge moved"
        if slice_ is not None:
            with term.active():
                term.window.finish_load(lane, slice_, rows)
                term.window.evict(term.lanes)
            yield "loaded"

    with mock.patch.object(load, "_read_slice", read_slice):
        yield World


@contextmanager
def hand_before_the_publish() -> Iterator[type[World]]:
    """The chunk counts as sent, and is settled, before the broker has answered."""

    publish = Dispatcher._publish

    def hasty(self: Dispatcher, term: Term, chunk: dispatch.Chunk, now_ms: int, since: Since | None) -> dict[int, str]:
        lane = term.lanes[chunk.lane]
        lane.confirm(chunk, now_ms)
        return publish(self, term, chunk, now_ms, since)

    def confirmed(self: Lane, chunk: dispatch.Chunk, now_ms: int, refused: Collection[int] = ()) -> None:
        if self.in_flight is not None:
            confirm(self, chunk, now_ms, refused)

    confirm = Lane.confirm
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Dispatcher, "_publish", hasty))
        stack.enter_context(mock.patch.object(Lane, "confirm", confirmed))
        yield World


@contextmanager
def trim_by_count() -> Iterator[type[World]]:
    """As many messages go from the wheel queue as were peeked, whichever they are by now."""

    class Careless(ModelRedis):
        trim_by_content = False

    class Broken(World):
        redis_class = Careless

    yield Broken


@contextmanager
def no_epoch_check() -> Iterator[type[World]]:
    """A former holder that wakes up goes on as if nothing had happened."""

    class OpenStore(ModelStore):
        check_epoch = False

    class OpenRedis(ModelRedis):
        check_epoch = False

    class Broken(World):
        store_class = OpenStore
        redis_class = OpenRedis

    yield Broken


@contextmanager
def five_ms_early() -> Iterator[type[World]]:
    """What is nearly due leaves as well."""
    take = Lane.take

    def eager(self: Lane, rows: dict[int, Row], now_ms: int, *rest: Any) -> dispatch.Chunk | None:
        return take(self, rows, now_ms + 5, *rest)

    def reap(self: Window, lanes: dict[int, Lane], now_ms: int) -> None:
        advance(self, lanes, now_ms + 5)

    advance = Window.reap
    with mock.patch.object(Lane, "take", eager), mock.patch.object(Window, "reap", reap):
        yield World


PLANTED: list[Callable[[], object]] = [
    position_outside_reservation,
    slice_before_the_edge_moves,
    hand_before_the_publish,
    trim_by_count,
    outcome_after_the_chunk,
    moved_without_a_reservation,
    unknown_without_a_look,
    carried_out_though_taken_back,
    done_though_handed_over,
    no_tombstone,
    closed_too_late,
    completed_though_handed_over,
    key_without_a_look,
    each_alone_is_unique,
    what_left_is_unique,
    loads_without_a_fence,
    chunks_gone_before_their_rows,
    no_epoch_check,
    five_ms_early,
]
