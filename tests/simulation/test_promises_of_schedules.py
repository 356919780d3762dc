"""The same histories with recurring schedules: each instant runs once, or has a skip with its reason."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.seeds import as_long_as_it_takes, seeds

#: Each event of ``HAPPENS_TO_SCHEDULES`` is in one of these.
LEAST_SEEDS = 20


@as_long_as_it_takes
@pytest.mark.parametrize("world", [RecurringWorld, RecurringRabbitWorld])
def test_no_seed_breaks_a_promise_of_schedules(world: type[RecurringWorld]) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS, 400, budget_s=4):
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
