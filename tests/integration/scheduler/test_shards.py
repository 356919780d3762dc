"""Several shards, several schedulers: even shares, and dispatch that goes on while they come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.stack import Stack
from tests.kit.traffic import Traffic

SHARDS = 4

#: The promised time on a quiet machine.
TAKEOVER_S = 3


@pytest.fixture
def sharded(stack: Stack) -> Stack:
    stack.change(wheel_shards=SHARDS)
    return stack


def counts(stack: Stack) -> list[int]:
    return sorted(Counter(stack.holders().values()).values())


def late_s(traffic: Traffic, shards: set[int]) -> float:
    """Return the greatest lateness of the arrived tasks of these shards."""
    due = {
        task_id: due_s for task_id, due_s in dict(traffic.sent).items() if crc32(task_id.encode()) % SHARDS in shards
    }
    return max(traffic.arrived[task_id] - due_s for task_id, due_s in due.items() if task_id in traffic.arrived)


@pytest.fixture
def traffic(sharded: Stack) -> Iterator[Traffic]:
    with Traffic(sharded) as found:
        yield found


def test_shares_are_even_and_shards_that_stay_see_no_gap(sharded: Stack, traffic: Traffic) -> None:
    first = sharded.beat()
    wait_until(lambda: counts(sharded) == [4], "one scheduler holds all")
    wait_until(lambda: len(traffic.arrived) > 40, "tasks of all shards are dispatched")
    traffic.arrived.clear()
    traffic.sent.clear()

    second = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "the newcomer has half of them")
    stayed = {shard for shard, pid in sharded.holders().items() if pid == first.pid}
    assert second.terminate() == 0
    wait_until(lambda: counts(sharded) == [4], "the first has all again")
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all tasks are dispatched")
    assert sharded.holders().keys() >= stayed
    assert late_s(traffic, stayed) < patience(1), "a shard that was not moved made a pause"


def test_the_shards_of_a_scheduler_that_is_killed_go_to_the_other(sharded: Stack, traffic: Traffic) -> None:
    sharded.beat()
    victim = sharded.beat()
    wait_until(lambda: counts(sharded) == [2, 2], "two schedulers have half each")
    victim.kill()
    wait_until(lambda: counts(sharded) == [4], "the other has all", TAKEOVER_S)
    sent = set(traffic.sent)
    wait_until(lambda: sent <= traffic.arrived.keys(), "all tasks are dispatched")
    left = sharded.dispatched()  # read once, since more tasks are dispatched meanwhile
    assert len(left) == len(set(left)), "a task left twice"
