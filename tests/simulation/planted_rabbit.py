"""Planted bugs that matter where the broker keeps no offset, or where messages come in packs; see ``planted``."""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from celery_wheel.engine import commands, dispatch, ingest
from celery_wheel.engine.delivery import ConfirmedDelivery
from celery_wheel.engine.round import Context
from celery_wheel.engine.state.lane import InFlight, Lane, Lanes
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.window import Window
from celery_wheel.store.model import Change, LaneState, Position, Row
from tests.simulation.happenings import Scheduler
from tests.simulation.model_rabbit import ModelRabbit
from tests.simulation.model_store import ModelStore
from tests.simulation.planted import instead, otherwise, planted, replaces
from tests.simulation.rabbit_world import FULL, PackWorld, RabbitWorld
from tests.simulation.world import World


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


@replaces(dispatch, "settle_now", seed=8, world=RabbitWorld)
def unannounced_chunk(right: Any, ctx: Context, state: ShardState, announced: InFlight | None = None) -> Iterator[str]:
    """A chunk is published before the store knows its end."""
    return right(ctx, state, None if announced is None or not announced.changes_store else announced)


@replaces(Lane, "state", seed=50, world=GivingWorld)
def end_of_a_chunk_stored_too_early(right: Any, self: Lane, offset: Position | None = None) -> LaneState:
    """A holder that stands down stores the end of a chunk whose diverted rows have not moved yet."""
    found = right(self, offset)
    return replace(found, watermark=max(found.watermark, self.watermark))


# A task is unknown while its message is under way to the consumer and the queue looks empty.
_at_once = (ConfirmedDelivery, "transit_ms", 0)
instead("unknown_while_a_message_is_under_way", _at_once, seed=7, world=RabbitWorld)
# A holder that was suspended past its lease publishes the chunk that it had in flight.
_sending = (ConfirmedDelivery, "_may_send", lambda *_: lambda: True)
instead("lease_not_looked_at", _sending, seed=7, world=SuspendedWorld)
# A row that was cancelled while it moved to another lane comes back into the window.
instead("placed_though_withdrawn", (Window, "track_removed", lambda *_: set()), seed=34, world=RabbitWorld)


@replaces(commands, "earlier_are_accepted", seed=1195, world=RabbitWorld)
def cancel_answered_by_a_stale_look(
    right: Any, ctx: Context, state: ShardState, item_id: int, empty_at_ms: int | None
) -> bool:
    """A peek at the wheel queue counts as soon as the command is old enough, however old the peek is."""
    return right(ctx, state, item_id, None if empty_at_ms is None else ctx.clock.monotonic_ms())


@planted(seed=35)
def refused_rows_are_overtaken() -> Iterator[type[RabbitWorld]]:
    """A row for a refusing destination does not go behind the rows that wait for it."""
    with mock.patch.object(Lanes, "busy", property(lambda _: set(), lambda *_: None), create=True):
        yield RabbitWorld


# Rows in doubt are published again without a mark.
_unmarked = functools.partial(replace, redelivered=False)
otherwise("nothing_is_marked", ModelRabbit, "publish", 1, _unmarked, seed=9, world=RabbitWorld)


@replaces(Lane, "leaving", seed=17, world=RefusingWorld)
def refused_row_looks_published(_: Any, lane: Lane) -> Iterator[Row]:
    """A row that its queue refused counts as published until the settlement that moves it is applied."""
    return iter([row for row, _ in lane.in_flight.diverted] if lane.in_flight is not None else [])


@replaces(ingest, "parse", seed=0, world=PackWorld)
def pack_accepted_in_part(right: Any, *args: Any, **how: Any) -> Any:
    """The first message of a pack is accepted, and the whole item is deleted."""
    meaning = right(*args, **how)
    return meaning[:1] if isinstance(meaning, list) else meaning


@planted(seed=1)
def message_accepted_twice() -> Iterator[type[World]]:
    """Envelopes are compared with all that are stored but the latest."""
    known, apply = ModelStore.known, ModelStore.apply

    def forgetful(self: ModelStore, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        latest = max(self.disk.shard(shard).envelopes, default="")
        return {id_: task_id for id_, task_id in known(self, shard, envelope_ids).items() if id_ != latest}

    def careless(self: ModelStore, shard: int, epoch: int, change: Change) -> None:
        with self.disk.lock:
            for row in change.rows:
                self.disk.shard(shard).envelopes.pop(row.message.envelope_id, None)
            apply(self, shard, epoch, change)

    with mock.patch.object(ModelStore, "known", forgetful), mock.patch.object(ModelStore, "apply", careless):
        yield PackWorld
