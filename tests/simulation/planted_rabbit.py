"""Defects that matter where the broker keeps no offset; see ``planted``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from celery_wheel.engine import dispatch
from celery_wheel.engine.context import Context
from celery_wheel.engine.dispatch import Dispatcher
from celery_wheel.engine.lane import Chunk, Lane
from celery_wheel.engine.term import Term
from celery_wheel.engine.window import Window
from celery_wheel.store.model import Row
from tests.simulation.model_rabbit import ModelRabbit
from tests.simulation.rabbit_world import RabbitWorld


@contextmanager
def chunk_not_announced() -> Iterator[type[RabbitWorld]]:
    """A chunk leaves, and the store does not know how far it goes."""

    def settle_now(ctx: Context, term: Term, announced: Chunk | None = None) -> Iterator[str]:
        if announced is not None:
            for lane in term.lanes.values():
                lane.edge = max(lane.edge, announced.to)
        return settle(ctx, term, None if announced is None or not announced.diverted else announced)

    settle = dispatch.settle_now
    with mock.patch.object(dispatch, "settle_now", settle_now):
        yield RabbitWorld


@contextmanager
def lease_not_looked_at() -> Iterator[type[RabbitWorld]]:
    """A holder that was suspended past its lease sends the chunk that it had in hand."""
    publish = Dispatcher._publish

    def hasty(self: Dispatcher, term: Term, *args: object) -> object:
        with mock.patch.object(term, "lease_until_ms", 2**62):
            return publish(self, term, *args)  # type: ignore[arg-type]

    with mock.patch.object(Dispatcher, "_publish", hasty):
        yield RabbitWorld


@contextmanager
def refused_rows_are_overtaken() -> Iterator[type[RabbitWorld]]:
    """What becomes due for a destination that waits does not queue up behind what waits."""

    def busy(self: Lane, rows: dict[int, Row], now_ms: int) -> bool:
        return False

    with mock.patch.object(Lane, "busy", busy):
        yield RabbitWorld


@contextmanager
def nothing_is_marked() -> Iterator[type[RabbitWorld]]:
    """What was in doubt leaves again like anything else."""

    class Unmarked(ModelRabbit):
        def publish(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            *rest, _redelivered = args
            return super().publish(*rest, False)  # type: ignore[arg-type]

    class Broken(RabbitWorld):
        rabbit_class = Unmarked

    yield Broken


@contextmanager
def placed_though_withdrawn() -> Iterator[type[RabbitWorld]]:
    """A row that was cancelled while it moved to another lane comes back into the window."""
    with mock.patch.object(Window, "watch", side_effect=set):
        yield RabbitWorld


PLANTED: list[Callable[[], object]] = [
    chunk_not_announced,
    lease_not_looked_at,
    refused_rows_are_overtaken,
    nothing_is_marked,
    placed_though_withdrawn,
]
