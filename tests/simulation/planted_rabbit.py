"""Defects that matter where the broker keeps no offset; see ``planted``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from celery_wheel.engine import dispatch, settle
from celery_wheel.engine.context import Context
from celery_wheel.engine.delivery import ConfirmedDelivery
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.engine.state import lanes
from celery_wheel.engine.state.lane import InFlight
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.window import Window
from tests.simulation.model_rabbit import ModelRabbit
from tests.simulation.rabbit_world import RabbitWorld


@contextmanager
def chunk_not_announced() -> Iterator[type[RabbitWorld]]:
    """A chunk leaves, and the store does not know how far it goes."""

    def settle_now(ctx: Context, state: ShardState, announced: InFlight | None = None) -> Iterator[str]:
        return settle_all(ctx, state, None if announced is None or not announced.changes_store else announced)

    settle_all = settle.settle_now
    with mock.patch.object(dispatch, "settle_now", settle_now):
        yield RabbitWorld


@contextmanager
def lease_not_looked_at() -> Iterator[type[RabbitWorld]]:
    """A holder that was suspended past its lease sends the chunk that it had in flight."""
    with mock.patch.object(ConfirmedDelivery, "_may_send", return_value=lambda: True):
        yield RabbitWorld


@contextmanager
def refused_rows_are_overtaken() -> Iterator[type[RabbitWorld]]:
    """A row that becomes due for a destination that waits does not queue up behind the rows that wait."""
    with mock.patch.object(lanes.Lanes, "busy", set()):
        yield RabbitWorld


@contextmanager
def nothing_is_marked() -> Iterator[type[RabbitWorld]]:
    """What was in doubt leaves again like anything else."""

    class Unmarked(ModelRabbit):
        def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
            return super().publish(replace(chunk, redelivered=False), may_send)

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
