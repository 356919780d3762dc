"""Each instant of a schedule is sent once: over kills of schedulers, and where one is cut off from the store.

``python -m tests.faults.recurring`` takes any number of kills.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.instants import Arrival, Plan, judge_instants
from tests.faults.load import SCHEDULERS
from tests.faults.recurring import LEASE_S, SHARDS, StackWithSchedules, now_ms, stack_on
from tests.faults.test_faults import SEED
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.proxy import Proxy
from tests.kit.servers.redis import RedisServer

KILLS = 5


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_each_instant_is_sent_once_over_kills(tmp_path: Path, store: str) -> None:
    with stack_on(store, tmp_path, SEED) as stack:
        while stack.kills < KILLS:
            stack.kill_after_a_pause()
        verdict = stack.settle()
        assert verdict.is_clean, f"seed {SEED}: {verdict}"
        assert verdict.expected > 2 * KILLS, "the schedules went on between the kills"
        assert not stack.skips()


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
