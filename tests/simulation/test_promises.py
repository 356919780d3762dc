"""Hundreds of small histories, each from a seed. To see one again: ``python -m tests.simulation SEED``.

The same histories on RabbitMQ, where rows in doubt are published again with a mark.

The same histories with recurring schedules: each instant runs once, or has a skip with its reason.

Packs of the inbox: each of their messages is accepted once, whichever way it comes as well, and none is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from celery_wheel.engine import ingest
from celery_wheel.engine.intake.inbox import parse
from celery_wheel.store.model import Change, InboxItem
from tests.simulation.fleet import Fleet
from tests.simulation.happenings import Violation
from tests.simulation.model_store import ModelStore
from tests.simulation.rabbit_world import PackWorld, RabbitPackWorld, RabbitWorld
from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.seeds import as_long_as_it_takes, seeds
from tests.simulation.world import World

#: The least number of seeds on any machine: each planted bug shows in one of them, and every event of ``HAPPENS``.
LEAST_SEEDS = 170


@as_long_as_it_takes
def test_no_seed_breaks_a_promise() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS, 1_000, budget_s=12):
        happened += World(seed).run().happened()
    never = [what for what in HAPPENS if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


#: Events that must happen in a thousand seeds, or an oracle has no event to judge.
HAPPENS = [
    "accepted",
    "known",
    "rejected",
    "cancelled",
    "moved",
    "done",
    "already",
    "too_late",
    "unknown",
    "withdrawn",
    "requeue: done",
    "requeue: too_late",
    "replay: done",
    "replay: too_late",
    "told",
    "told twice",
    "completed",
    "completed by a key",
    "too late for a key",
    "watched by nobody",
    "cancelled, another waits",
    "rejected, another waits",
    "replaced",
    "replaced at once",
    "dispatched",
    "loads committed",
    "loads aborted",
    "loaded already",
    "writers fenced",
    "adoptions",
    "rollbacks",
    "emptied",
    "broker_errors",
    "store_errors",
    "clocks disputed",
    "clocks followed",
    "lanes beside the main one",
    "lost by redis",
    "forgotten",
    "pushed while busy",
    "pushed while busy, after a wait",
]


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_while_schedulers_share_shards() -> None:
    fleets = [Fleet(seed).run() for seed in seeds(20, 60, budget_s=6)]
    assert sum(fleet.sent for fleet in fleets) > 15 * len(fleets)
    assert {len(fleet.schedulers) for fleet in fleets} == {1, 2, 3}


@pytest.mark.parametrize("world", [World, RabbitWorld])
def test_a_seed_replays_exactly(world: type[World]) -> None:
    for seed in (1, 2, 3):
        assert list(world(seed).run().log) == list(world(seed).run().log)


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_on_rabbitmq() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS, 1_000, budget_s=12):
        happened += RabbitWorld(seed).run().happened()
    never = [what for what in HAPPENS_ON_RABBITMQ if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


HAPPENS_ON_RABBITMQ = [what for what in HAPPENS if what not in ("rollbacks", "lost by redis", "emptied")]
HAPPENS_ON_RABBITMQ += ["refused", "sent twice"]


#: Each event of ``HAPPENS_TO_SCHEDULES`` is in one of these.
LEAST_SEEDS_OF_SCHEDULES = 20


@as_long_as_it_takes
@pytest.mark.parametrize("world", [RecurringWorld, RecurringRabbitWorld])
def test_no_seed_breaks_a_promise_of_schedules(world: type[RecurringWorld]) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS_OF_SCHEDULES, 400, budget_s=4):
        happened += world(seed).run().happened()
    never = [event for event in HAPPENS_TO_SCHEDULES if not happened[event]]
    assert not never, f"the simulation no longer reaches: {never}"


HAPPENS_TO_SCHEDULES = [
    "adoptions",
    "instants made",
    "runs with jitter",
    "guarded runs",
    "runs cancelled for a later one",
    "skipped, missed",
    "skipped, overlapped",
    "skipped, paused",
    "too late for a change",
    "create: done",
    "create: already",
    "update: done",
    "update: already",
    "update: unknown",
    "pause: done",
    "pause: already",
    "resume: done",
    "resume: already",
    "delete: done",
    "trigger: done",
    "backfill: done",
    "moves",
    "restore: done",
    "restore: already",
    "instants made after a move",
    "runs of a herd",
    "ends of runs",
    "queued instants",
]


@as_long_as_it_takes
@pytest.mark.parametrize("world", [PackWorld, RabbitPackWorld])
def test_no_seed_breaks_a_promise_with_packs(world: type[PackWorld | RabbitPackWorld]) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(30, 1_000, budget_s=6):
        happened += world(seed).run().happened()
    never = [what for what in ("packed", "sent again in a pack", "known", "cancelled") if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


def accepted_in_part(item: InboxItem, decode: Any, derived_id: Any) -> Any:
    """The first message of a pack is accepted, and the whole item is deleted."""
    meaning = parse(item, decode, derived_id)
    return meaning[:1] if isinstance(meaning, list) else meaning


def test_a_pack_that_is_accepted_in_part_is_found() -> None:
    with mock.patch.object(ingest, "parse", accepted_in_part):
        assert is_found(PackWorld)


class Forgetful(ModelStore):
    """Compares the envelopes with all that are stored but the latest."""

    def known(self, shard: int, envelope_ids: Sequence[str]) -> dict[str, str]:
        latest = max(self.disk.shard(shard).envelopes, default="")
        return {id_: task_id for id_, task_id in super().known(shard, envelope_ids).items() if id_ != latest}

    def apply(self, shard: int, epoch: int, change: Change) -> None:
        with self.disk.lock:
            for row in change.rows:
                self.disk.shard(shard).envelopes.pop(row.message.envelope_id, None)
            super().apply(shard, epoch, change)


def test_a_message_that_is_accepted_twice_is_found() -> None:
    class Broken(PackWorld):
        store_class = Forgetful

    assert is_found(Broken)


def is_found(world: Callable[[int], PackWorld]) -> bool:
    for seed in range(200):
        try:
            world(seed).run()
        except Violation:
            return True
    return False
