"""The same histories with recurring schedules: each instant runs once, or has a skip with its reason."""

from __future__ import annotations

from collections import Counter

from tests.simulation.recurring_world import RecurringWorld
from tests.simulation.seeds import as_long_as_it_takes, seeds

#: Each event of ``HAPPENS_TO_SCHEDULES`` is in one of these.
LEAST_SEEDS = 40


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_of_schedules() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(LEAST_SEEDS, 400, budget_s=12):
        happened += RecurringWorld(seed).run().happened()
    never = [event for event in HAPPENS_TO_SCHEDULES if not happened[event]]
    assert not never, f"the simulation no longer reaches: {never}"


HAPPENS_TO_SCHEDULES = [
    "adoptions",
    "instants made",
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
]
