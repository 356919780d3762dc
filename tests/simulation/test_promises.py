"""Hundreds of small histories, each from a seed. To see one again: ``python -m tests.simulation SEED``."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.fleet import Fleet
from tests.simulation.rabbit_world import RabbitWorld
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
