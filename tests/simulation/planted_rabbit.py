"""Planted bugs that matter where the broker keeps no offset; see ``planted``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

from celery_wheel.engine import commands, dispatch, settle
from celery_wheel.engine.delivery import ConfirmedDelivery
from celery_wheel.engine.port import Chunk, Confirmed
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.lane import InFlight, Lane, Lanes
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.window import Window
from celery_wheel.store.model import LaneState, Position, Row
from tests.simulation.happenings import Scheduler
from tests.simulation.model_rabbit import ModelRabbit
from tests.simulation.planted import planted
from tests.simulation.rabbit_world import FULL, RabbitWorld


class BiasedWorld(RabbitWorld):
    """Makes a course of events likely that is rare in ``RabbitWorld``."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.bias_rng = random.Random(seed + 21_000_003)

    def _happen(self) -> None:
        for scheduler in self.schedulers:
            state = scheduler.engine.state
            if state is not None and scheduler.frozen_until_ms <= self.clock_ms and self.bias_rng.random() < 0.5:
                self.lead(scheduler, state)
        super()._happen()

    def lead(self, scheduler: Scheduler, state: ShardState) -> None:
        """Let the events happen, where they may begin now."""


class GivingWorld(BiasedWorld):
    """Queues are paused, and a holder gives the shard up while it has rows to divert."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.gates = True

    def lead(self, scheduler: Scheduler, state: ShardState) -> None:
        if any(lane.in_flight and lane.in_flight.diverted for lane in state.lanes):
            scheduler.engine.wanted = False
            scheduler.finish("tend")
            scheduler.engine.wanted = True
        elif self.bias_rng.random() < 0.04:
            self.log.append(f"user: {self.gating.turn()}")


class SuspendedWorld(BiasedWorld):
    """A holder is suspended between the guard and the publish, past its lease, and wakes when another has adopted."""

    def lead(self, scheduler: Scheduler, state: ShardState) -> None:
        if scheduler.at.get("dispatch") == "guarded":
            self._pass_time(self.limits.lease_ms + 50)
            for other in [one for one in self.schedulers if one is not scheduler]:
                for activity in ("tend", "tend", "dispatch"):
                    other.finish(activity)
            scheduler.step("dispatch")


class RefusingWorld(BiasedWorld):
    """Queues are often full, and refuse rows while a message with a unique key is admitted."""

    def lead(self, scheduler: Scheduler, state: ShardState) -> None:
        if self.bias_rng.random() < 0.05:
            self.rabbit.full ^= {self.bias_rng.choice(FULL)}
        if scheduler.at.get("ingest") == "claimants found":
            for _ in range(12):
                scheduler.step("dispatch")
                refuses = any(lane.settling is not None and lane.settling.refused for lane in state.lanes)
                if refuses and scheduler.at["dispatch"] == "committed":
                    break
            scheduler.step("ingest")


@planted(seed=8)
def chunk_not_announced() -> Iterator[type[RabbitWorld]]:
    """A chunk is published before the store knows its end."""

    def settle_now(ctx: Context, state: ShardState, announced: InFlight | None = None) -> Iterator[str]:
        return settle_all(ctx, state, None if announced is None or not announced.changes_store else announced)

    settle_all = settle.settle_now
    with mock.patch.object(dispatch, "settle_now", settle_now):
        yield RabbitWorld


@planted(seed=50)
def end_of_a_chunk_stored_too_early() -> Iterator[type[RabbitWorld]]:
    """A holder that stands down stores the end of a chunk whose diverted rows have not moved yet."""

    def state(self: Lane, offset: Position | None = None) -> LaneState:
        found = as_stored(self, offset)
        return replace(found, watermark=max(found.watermark, self.watermark))

    as_stored = Lane.state
    with mock.patch.object(Lane, "state", state):
        yield GivingWorld


@planted(seed=7)
def unknown_while_a_message_is_under_way() -> Iterator[type[RabbitWorld]]:
    """A task is unknown while its message is under way to the consumer and the queue looks empty."""
    with mock.patch.object(ConfirmedDelivery, "transit_ms", 0):
        yield RabbitWorld


@planted(seed=1195)
def cancel_answered_by_a_stale_look() -> Iterator[type[RabbitWorld]]:
    """A peek at the wheel queue counts as soon as the command is old enough, however old the peek is."""

    def careless(ctx: Context, state: ShardState, item_id: int, empty_at_ms: int | None) -> bool:
        return earlier(ctx, state, item_id, None if empty_at_ms is None else ctx.clock.monotonic_ms())

    earlier = commands.earlier_are_accepted
    with mock.patch.object(commands, "earlier_are_accepted", careless):
        yield RabbitWorld


@planted(seed=7)
def lease_not_looked_at() -> Iterator[type[RabbitWorld]]:
    """A holder that was suspended past its lease publishes the chunk that it had in flight."""
    with mock.patch.object(ConfirmedDelivery, "_may_send", return_value=lambda: True):
        yield SuspendedWorld


@planted(seed=35)
def refused_rows_are_overtaken() -> Iterator[type[RabbitWorld]]:
    """A row for a refusing destination does not go behind the rows that wait for it."""
    with mock.patch.object(Lanes, "busy", property(lambda _: set(), lambda *_: None), create=True):
        yield RabbitWorld


@planted(seed=9)
def nothing_is_marked() -> Iterator[type[RabbitWorld]]:
    """Rows in doubt are published again without a mark."""

    class Unmarked(ModelRabbit):
        def publish(self, chunk: Chunk, may_send: Callable[[], bool]) -> Confirmed:
            return super().publish(replace(chunk, redelivered=False), may_send)

    class Broken(RabbitWorld):
        rabbit_class = Unmarked

    yield Broken


@planted(seed=34)
def placed_though_withdrawn() -> Iterator[type[RabbitWorld]]:
    """A row that was cancelled while it moved to another lane comes back into the window."""
    with mock.patch.object(Window, "track_removed", side_effect=set):
        yield RabbitWorld


@planted(seed=17)
def refused_row_looks_published() -> Iterator[type[RabbitWorld]]:
    """A row that its queue refused counts as published until the settlement that moves it is applied."""

    def leaving(lane: Lane) -> Iterator[Row]:
        return iter([row for row, _ in lane.in_flight.diverted] if lane.in_flight is not None else [])

    with mock.patch.object(Lane, "leaving", leaving):
        yield RefusingWorld
