"""Several shards, several schedulers: even shares, and dispatch that goes on while they come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import pytest

from tests.kit.patience import wait_until
from tests.kit.stack import Stack
from tests.kit.traffic import Traffic

SHARDS = 4

#: tests/contract/stores/test_takeover.py has the promise of three seconds; here a machine may stand still for seconds.
TAKEOVER_S = 10


@pytest.fixture
def sharded(stack: Stack) -> Stack:
    stack.change(wheel_shards=SHARDS)
    return stack


def counts(stack: Stack) -> list[int]:
    return sorted(Counter(stack.holders().values()).values())


def epochs(stack: Stack, shards: Collection[int]) -> dict[int, int]:
    return {one.shard: one.epoch for one in stack.app.wheel.status() if one.shard in shards}


@pytest.fixture
def traffic(sharded: Stack) -> Iterator[Traffic]:
    with Traffic(sharded) as found:
        yield found


def test_shares_are_even_and_shards_that_stay_see_no_gap(sharded: Stack, traffic: Traffic) -> None:
    first = sharded.beat()
    wait_until(lambda: counts(sharded) == [4], "one scheduler holds all")
    wait_until(lambda: len(traffic.arrived) > 40, "tasks of all shards are dispatched")
    before = epochs(sharded, range(SHARDS))
    second = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "the newcomer has half of them")
    stayed = {shard for shard, pid in sharded.holders().items() if pid == first.pid}
    assert second.terminate() == 0
    wait_until(lambda: counts(sharded) == [4], "the first has all again")
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived, "all tasks are dispatched")
    assert len(stayed) == 2
    assert epochs(sharded, stayed) == {shard: before[shard] for shard in stayed}, "a shard that stays has one holder"


def test_the_shards_of_a_scheduler_that_is_killed_go_to_the_other(sharded: Stack, traffic: Traffic) -> None:
    sharded.beat()
    victim = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "two schedulers have half each")
    victim.kill()
    wait_until(lambda: counts(sharded) == [4], "the other has all", TAKEOVER_S)
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived, "all tasks are dispatched")
    left = sharded.dispatched()  # read once, since more tasks are dispatched meanwhile
    assert len(left) == len(set(left)), "a task left twice"
