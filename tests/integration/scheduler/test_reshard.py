"""``celery wheel reshard``, with real schedulers before and after it."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.scheduler.conftest import Bench
from tests.integration.scheduler.test_shards import counts
from tests.servers import wait_until


def send(bench: Bench, shards: int, count: int, due_s: float, etas: dict[str, datetime] | None = None) -> list[str]:
    """Tasks with one of 5 keys, in the order in which they are due; ``etas`` is told when each is."""
    bench.app.conf.update(wheel_shards=shards)
    ids = []
    for n in range(count):
        eta = datetime.now(UTC) + timedelta(seconds=due_s + n / 100)
        ids.append(bench.app.send_task("noop", (n,), eta=eta, wheel={"key": f"key-{n % 5}"}).id)
        if etas is not None:
            etas[ids[-1]] = eta
    return ids


def take_in(bench: Bench, shards: int) -> None:
    """Let a scheduler accept all that was sent, and stop it in order."""
    beat = bench.beat(wheel_shards=shards)
    wait_until(lambda: counts(bench) == [shards], "one scheduler holds all")
    queues = [f"wheel.{shard}" for shard in range(8)]
    wait_until(lambda: not any(bench.redis.llen(queue) for queue in queues), "all is accepted")
    beat.signal(signal.SIGTERM)
    code, output = beat.end()
    assert code == 0, output


def reshard(bench: Bench, before: int, after: int) -> tuple[int, str]:
    return bench.celery("wheel", "reshard", "--yes", str(after), wheel_shards=before).end()


def pending(bench: Bench, shards: int) -> list[int]:
    _, output = bench.celery("wheel", "status", "--json", wheel_shards=shards).end()
    found: list[dict[str, Any]] = json.loads(output.strip().splitlines()[-1])["shards"]
    return [shard["pending"] for shard in found]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 3), (3, 1)])
def test_what_waits_moves_and_keeps_the_order_of_its_key(bench: Bench, before: int, after: int) -> None:
    etas: dict[str, datetime] = {}
    ids = send(bench, before, 60, 12, etas)
    take_in(bench, before)
    code, output = reshard(bench, before, after)
    assert code == 0, output
    assert f", {after} now;" in output
    found = pending(bench, after)
    assert sum(found) == 60
    assert len([count for count in found if count]) > 1 or after == 1
    more = send(bench, after, 20, 2, etas)
    beat = bench.beat(wheel_shards=after)
    wait_until(lambda: len(bench.dispatched()) == 80, "all has left")
    left = bench.dispatched()
    for key in range(5):
        # Of tasks that are overdue when the scheduler starts, those in the store go before those in the wheel queue:
        # on a slow machine, some of the second batch are. Each batch has its order in any case.
        for batch in (ids[key::5], more[key::5]):
            assert [task for task in left if task in batch] == sorted(batch, key=etas.__getitem__)
    assert sorted(left) == sorted(ids + more)
    beat.signal(signal.SIGTERM)
    beat.end()


def test_there_and_back_again_loses_nothing_and_sends_nothing_twice(bench: Bench) -> None:
    """A shard that comes back meets what the broker remembers of its former life."""
    ids = send(bench, 4, 20, due_s=0.5) + send(bench, 4, 20, due_s=20)
    beat = bench.beat(wheel_shards=4)
    wait_until(lambda: len(bench.dispatched()) == 20, "the first tasks leave")
    beat.signal(signal.SIGTERM)
    beat.end()
    assert reshard(bench, 4, 1)[0] == 0
    assert reshard(bench, 1, 4)[0] == 0
    assert sum(pending(bench, 4)) == 20
    beat = bench.beat(wheel_shards=4)
    wait_until(lambda: len(bench.dispatched()) >= 40, "all has left")
    assert sorted(bench.dispatched()) == sorted(ids)
    assert "lost writes" not in beat.said()


def test_it_is_refused_while_a_scheduler_runs_or_after_one_was_killed(bench: Bench) -> None:
    send(bench, 2, 10, due_s=60)
    beat = bench.beat(wheel_shards=2)
    wait_until(lambda: counts(bench) == [2], "it holds both")
    code, output = reshard(bench, 2, 4)
    assert code == 1
    assert "stop all schedulers" in output
    beat.kill()
    wait_until(lambda: "was not given up by its last holder" in reshard(bench, 2, 4)[1], "its silence is noticed")
    assert sum(pending(bench, 2)) == 10


def test_messages_of_a_shard_that_would_go_are_not_forgotten(bench: Bench) -> None:
    take_in(bench, 4)
    send(bench, 4, 40, due_s=60)
    code, output = reshard(bench, 4, 2)
    assert code == 1
    assert "has messages" in output
    assert sum(bench.redis.llen(f"wheel.{shard}") for shard in range(4)) == 40
