"""Defects, each of which a real scheduler could have, to show that the simulation finds them.

Each is a way to build a ``World`` with one line of the protocol broken; nothing of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from celery_wheel.engine import adoption, dispatch, load
from celery_wheel.engine.context import Context, Steps
from celery_wheel.engine.dispatch import Dispatcher
from celery_wheel.engine.lane import END, Lane
from celery_wheel.engine.port import Since
from celery_wheel.engine.term import Term
from celery_wheel.engine.window import Window
from celery_wheel.store.model import Position, Row
from tests.simulation.model_redis import ModelRedis
from tests.simulation.model_store import ModelStore
from tests.simulation.world import World


@contextmanager
def position_outside_reservation() -> Iterator[type[World]]:
    """Rows get positions, but nothing keeps dispatch from passing them before they are committed."""

    class Broken(Term):
        def reserve(self, *args: object) -> object:
            with mock.patch.object(Term, "_open_reservation", _reserve_nothing):
                return super().reserve(*args)  # type: ignore[arg-type]

    with mock.patch.object(adoption, "Term", Broken):
        yield World


@contextmanager
def outcome_after_the_chunk() -> Iterator[type[World]]:
    """A cancelled row's position is not kept until its outcome is in the store."""

    class Broken(Term):
        def withdraw(self, *args: object) -> object:
            with mock.patch.object(Term, "_open_reservation", _reserve_nothing):
                return super().withdraw(*args)  # type: ignore[arg-type]

    with mock.patch.object(adoption, "Term", Broken):
        yield World


def _reserve_nothing(_term: Term, lane: Lane, _lowest: Position) -> int:
    return lane.reserve(END)


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
        lane.confirm(chunk, {}, now_ms)
        return publish(self, term, chunk, now_ms, since)

    def confirmed(self: Lane, chunk: dispatch.Chunk, failed: dict[int, str], now_ms: int) -> None:
        if self.in_flight is not None:
            confirm(self, chunk, failed, now_ms)

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

    def eager(self: Lane, rows: dict[int, Row], now_ms: int, max_count: int, max_bytes: int) -> dispatch.Chunk | None:
        return take(self, rows, now_ms + 5, max_count, max_bytes)

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
    no_epoch_check,
    five_ms_early,
]
