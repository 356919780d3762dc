"""Hundreds of small histories, each from a seed. To see one again: ``python -m tests.simulation seed SEED``."""

from collections import Counter

import pytest

from tests.simulation.fleet import Fleet
from tests.simulation.fleet_in_step import FleetInStep
from tests.simulation.group_world import GroupRabbitWorld, GroupWorld
from tests.simulation.rabbit_world import PackWorld, RabbitPackWorld, RabbitWorld
from tests.simulation.recurring_world import RecurringRabbitWorld, RecurringWorld
from tests.simulation.schedule_fleet import ScheduleFleet
from tests.simulation.seeds import as_long_as_it_takes, seeds
from tests.simulation.world import World

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
    "earlier by a bound",
    "accepted after a window",
    "follows",
    "joined",
    "full",
    "lanes beside the main one",
    "lost by redis",
    "forgotten",
    "pushed while busy",
    "pushed while busy, after a wait",
]


HAPPENS_ON_RABBITMQ = [what for what in HAPPENS if what not in ("rollbacks", "lost by redis", "emptied", "joined")]
HAPPENS_ON_RABBITMQ += ["refused", "sent twice"]


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
    *(f"{do}: done" for do in ("create", "update", "pause", "resume", "delete", "trigger", "backfill", "restore")),
    *(f"{do}: already" for do in ("create", "update", "pause", "resume", "restore")),
    "update: unknown",
    "moves",
    "instants made after a move",
    "runs of a herd",
    "ends of runs",
    "queued instants",
]

HAPPENS_TO_GROUPS = [
    *("accepted", "cancelled", "moved", "dispatched", "adoptions", "lanes beside the main one"),
    *("reports", "workers killed", "released", "pushed after a wait for its group", "most in flight"),
    *("pushed by a rate", "limits raised", "limits lowered", "limits withdrawn", "groups paused"),
]

HAPPENS_TO_MOVED_SCHEDULES = [
    *("occurrences of groups", "shards of a schedule", "changes", "requested", "withdrawn", "faults"),
]

HAPPENS_WITH_PACKS = ["packed", "sent again in a pack", "known", "cancelled"]

#: Numbers of seeds: each planted bug shows in one of them, and every event of the list.
SEEDS, SEEDS_OF_SCHEDULES, SEEDS_WITH_PACKS, SEEDS_OF_GROUPS = 170, 20, 30, 40


@as_long_as_it_takes
@pytest.mark.parametrize(
    ("world", "count", "events"),
    [
        pytest.param(World, SEEDS, HAPPENS, marks=pytest.mark.slow),
        pytest.param(RabbitWorld, SEEDS, HAPPENS_ON_RABBITMQ, marks=pytest.mark.slow),
        (RecurringWorld, SEEDS_OF_SCHEDULES, HAPPENS_TO_SCHEDULES),
        pytest.param(RecurringRabbitWorld, SEEDS_OF_SCHEDULES, HAPPENS_TO_SCHEDULES, marks=pytest.mark.slow),
        (GroupWorld, SEEDS_OF_GROUPS, HAPPENS_TO_GROUPS),
        pytest.param(GroupRabbitWorld, SEEDS_OF_GROUPS, HAPPENS_TO_GROUPS, marks=pytest.mark.slow),
        (PackWorld, SEEDS_WITH_PACKS, HAPPENS_WITH_PACKS),
        pytest.param(RabbitPackWorld, SEEDS_WITH_PACKS, HAPPENS_WITH_PACKS, marks=pytest.mark.slow),
    ],
)
def test_no_promise_breaks(world: type[World], count: int, events: list[str]) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(count):
        happened += world(seed).run().happened()
    never = [event for event in events if not happened[event]]
    assert not never, f"the simulation no longer reaches: {never}"


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_while_schedulers_share_shards() -> None:
    fleets = [Fleet(seed).run() for seed in seeds(20)]
    assert sum(fleet.sent for fleet in fleets) > 15 * len(fleets)
    assert {len(fleet.schedulers) for fleet in fleets} == {1, 2, 3}


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_while_shards_share_their_calls() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(10):
        happened += FleetInStep(seed).run().happened()
    assert happened["calls of several shards"] > 500
    assert happened["faults"] > 10


@as_long_as_it_takes
def test_no_seed_breaks_a_promise_while_schedules_move_to_the_shards_of_their_groups() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(10):
        happened += ScheduleFleet(seed).run().happened()
    never = [event for event in HAPPENS_TO_MOVED_SCHEDULES if not happened[event]]
    assert not never, f"the simulation no longer reaches: {never}"


@pytest.mark.parametrize("world", [World, RabbitWorld, RecurringRabbitWorld, GroupRabbitWorld, RabbitPackWorld])
def test_a_seed_replays_exactly(world: type[World]) -> None:
    """The worlds whose many seeds are slow, so that ``make test`` has a few of each."""
    for seed in (1, 2, 3):
        assert list(world(seed).run().log) == list(world(seed).run().log)
