"""Thousands of small histories, each from a seed. To see one again: ``python -m tests.simulation SEED``."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.fleet import Fleet
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import World

#: More seeds than every run needs, for a long night: WHEEL_SEEDS=100000 pytest tests/simulation
SEEDS = int(os.environ.get("WHEEL_SEEDS", "1000"))


@pytest.mark.timeout(300 if SEEDS <= 1000 else 0)  # 10 s on a quiet machine
def test_no_seed_breaks_a_promise() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += World(seed).run().happened()
    never = [what for what in HAPPENS if not happened[what]]
    assert not never, f"the simulation no longer reaches: {never}"


#: What has to come about somewhere in a thousand seeds, or the oracles have nothing to judge.
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


@pytest.mark.timeout(180)
def test_no_seed_breaks_a_promise_while_schedulers_share_shards() -> None:
    fleets = [Fleet(seed).run() for seed in range(60)]
    assert sum(fleet.sent for fleet in fleets) > 1_000
    assert {len(fleet.schedulers) for fleet in fleets} == {1, 2, 3}


@pytest.mark.parametrize("world", [World, RabbitWorld])
def test_a_seed_replays_exactly(world: type[World]) -> None:
    for seed in (1, 2, 3):
        assert list(world(seed).run().log) == list(world(seed).run().log)
