"""kill -9 of scheduler, broker and database, at random moments under load, for every kind of store and of broker.

The judge compares scheduled tasks with executions. Redis keeps acknowledged writes (appendfsync always). Each instant
of a schedule is sent once, and a cut on RabbitMQ costs no more second copies than a publish has messages.
``python -m tests.faults.recurring`` takes any number of kills.
"""

import os
import random
import uuid
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.faults import groups
from tests.faults.copies import CUTS, Cut
from tests.faults.in_flight import judge_flights
from tests.faults.instants import Arrival, Plan, judge_instants
from tests.faults.killing import LEASE_S, SHARDS
from tests.faults.load import SCHEDULERS
from tests.faults.recurring import StackWithSchedules, now_ms, stack_on
from tests.faults.turns import kills
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.proxy import Proxy
from tests.kit.servers.rabbit import ON_RABBITMQ, RabbitServer
from tests.kit.servers.redis import RedisServer

SEED = int(os.environ.get("WHEEL_FAULT_SEED", "7"))
#: One of each role.
FAULTS = 4

#: Kills of schedulers that have schedules.
KILLS = 5

#: Messages of a publish.
CHUNK = 50


@pytest.mark.slow
@pytest.mark.parametrize(("store", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq")])
def test_no_task_is_lost_or_early_and_second_copies_are_marked(tmp_path: Path, store: str, broker: str) -> None:
    """Each store and each broker is in one pair; ``make faults`` has all four."""
    turn = kills(store, broker, tmp_path, SEED, FAULTS)
    print(f"seed {SEED}: {turn.said}")
    assert turn.is_clean, turn.said


@pytest.mark.slow
@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_costs_one_chunk_at_most(tmp_path: Path, rabbit_server: RabbitServer, kind: str) -> None:
    with Proxy(tmp_path, rabbit_server.port) as proxy:
        cut = Cut(tmp_path / "cut", rabbit_server.fresh(), rabbit_server.port, proxy, CHUNK)
        try:
            found = cut.run(kind, 3, 4_000, 0, random.Random(7))
        finally:
            cut.close()
        assert found.of_cuts
        # A slow consumer counts a copy for a later cut, so the sums are compared.
        sums = enumerate(accumulate(found.of_cuts), 1)
        assert all(copies <= cuts * CHUNK for cuts, copies in sums), str(found)
        assert found.unmarked == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_instant_is_sent_once_over_kills(tmp_path: Path, kind: str) -> None:
    with stack_on(kind, tmp_path, SEED) as stack:
        while stack.kills < KILLS:
            stack.kill_after_a_pause()
        verdict = stack.settle()
        assert verdict.is_clean, f"seed {SEED}: {verdict}"
        assert verdict.expected > 2 * KILLS, "the schedules went on between the kills"
        assert not stack.skips()


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["redis-sqlite", pytest.param("rabbitmq-postgresql", marks=ON_RABBITMQ)])
def test_no_group_has_more_in_flight_than_its_limit_over_kills(
    tmp_path: Path, request: pytest.FixtureRequest, pair: str
) -> None:
    with ExitStack() as servers:
        if pair.startswith("redis"):
            server: Any = servers.enter_context(groups.redis_with_log(tmp_path))
            store = f"sqlite:///{tmp_path}/wheel.sqlite3"
        else:
            server = request.getfixturevalue("rabbit_server").fresh()
            store = request.getfixturevalue("postgres").new_database()
        rng = random.Random(SEED)
        stack = servers.enter_context(groups.StackWithGroups(tmp_path, server, store, rng, groups.SHORT))
        while stack.kills < groups.SHORT.kills:
            stack.kill_once()
        verdict = stack.settle()
        print(f"seed {SEED}: {verdict}")
        assert verdict.broken() == {}, f"seed {SEED}: {verdict}"
        assert verdict.at_limit > 10, "the limits were reached"


@pytest.mark.slow
def test_a_scheduler_that_is_cut_off_from_the_store_sends_nothing_twice(tmp_path: Path) -> None:
    a, b = SCHEDULERS
    with (
        RedisServer(tmp_path / "redis") as redis,
        PostgresServer(fsync="on") as postgres,
        Proxy(tmp_path, postgres.port) as proxy,
    ):
        way = postgres.url().replace(f":{postgres.port}/", f":{proxy.port}/")
        assert way != postgres.url()
        with StackWithSchedules(tmp_path, redis, postgres.url(), random.Random(SEED), way_of_a=way) as stack:
            for _ in range(2):
                wait_until(lambda: stack.shards_of(a), "the first scheduler holds a shard")
                proxy.pause()
                wait_until(lambda: stack.shards_of(b) == SHARDS, "the second scheduler holds all shards")
                over_ms = now_ms() + int(2_000 * LEASE_S)
                wait_until(lambda at_ms=over_ms: stack.has_arrived(at_ms), "the second scheduler sends for two leases")
                proxy.resume()
            wait_until(lambda: stack.shards_of(a), "the first scheduler holds a shard again")
            verdict = stack.settle()
            assert verdict.is_clean, f"{verdict}"
            assert verdict.expected > 20
            assert not stack.skips()


def test_the_judge_finds_what_is_missing_twice_early_or_strange() -> None:
    plan = Plan(2)
    arrivals = [
        Arrival(plan.name, 4_000, 4_001, "a"),
        Arrival(plan.name, 4_000, 5_000, "a"),
        Arrival(plan.name, 6_000, 5_900, "b"),
        Arrival(plan.name, 7_000, 7_000, "c"),
        Arrival(plan.name, 12_000, 12_300, "d"),
    ]
    verdict = judge_instants([plan], arrivals, asked_ms=3_000, answered_ms=3_500, end_ms=10_000)
    assert (verdict.expected, verdict.late_ms) == (4, 1_000)
    assert verdict.missing == [(plan.name, 8_000), (plan.name, 10_000)]
    assert verdict.twice == [(plan.name, 4_000)]
    assert verdict.early == [(plan.name, 6_000)]
    assert verdict.strange == [(plan.name, 7_000)]
    assert not verdict.is_clean


def _line(step: str, number: int, at_ms: int, process: int, marked: bool = False, dispatched_ms: int = 0) -> list[Any]:
    publication = str(uuid.UUID(int=(dispatched_ms or 1_000 * number) << 80 | number))
    return [step, "one:a", f"{number}", marked, [number, 1_000 * number], process, at_ms, publication]


#: Two tasks of a group that has a slot; the worker of the first one is killed, and its message is delivered again.
_GOOD = [
    _line("begin", 1, 1_100, 7),
    ["kill", [6, 7], 1_150],
    _line("begin", 1, 1_200, 8),
    _line("end", 1, 1_990, 8),
    _line("begin", 2, 2_100, 8),
    _line("end", 2, 2_200, 8),
]


@pytest.mark.parametrize(
    ("broken", "change"),
    [
        (set(), {}),
        ({"lost"}, {4: [], 5: []}),
        ({"early"}, {4: _line("begin", 2, 1_997, 8)}),
        ({"above"}, {3: _line("end", 1, 2_010, 8)}),
        ({"above"}, {2: [], 3: [], 1: ["kill", [6, 7], 2_010]}),
        (set(), {3: _line("end", 1, 1_800, 8), 2: _line("begin", 1, 1_200, 8, True, 1_190)}),
        ({"twice"}, {2: _line("begin", 1, 1_200, 8, False, 1_190)}),
    ],
)
def test_the_judge_of_groups_finds_a_broken_promise(broken: set[str], change: dict[int, list[Any]]) -> None:
    lines = [line for line in (change.get(place, good) for place, good in enumerate(_GOOD)) if line]
    verdict = judge_flights(lines, {"one": 1}, 60_000, [1, 2])
    assert verdict.broken().keys() == broken
    assert verdict.killed == 1


def test_a_task_past_its_max_runtime_is_beside_the_limit() -> None:
    late = [*_GOOD[:3], *_GOOD[4:]]
    assert judge_flights(late, {"one": 1}, 60_000, [1, 2]).above == {"one:a": (2, 1)}
    assert not judge_flights(late, {"one": 1}, 900, [1, 2]).broken()


def test_a_second_copy_breaks_the_promise_of_a_broker_that_fences() -> None:
    lines = [*_GOOD, _line("begin", 2, 2_300, 8, True, 2_290)]
    assert not judge_flights(lines, {"one": 1}, 60_000, [1, 2]).broken()
    assert judge_flights(lines, {"one": 1}, 60_000, [1, 2], {1: 1, 2: 2}).broken() == {"twice": [2]}


def test_a_task_that_a_killed_worker_lost_was_published() -> None:
    verdict = judge_flights(_GOOD[:4], {"one": 1}, 60_000, [1, 2, 3], {1: 1, 2: 1})
    assert (verdict.worker_lost, verdict.broken()) == ([2], {"lost": [3]})
