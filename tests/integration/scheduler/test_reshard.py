"""``celery wheel reshard``, with real schedulers before and after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_wheel.errors import StoreUnusable
from celery_wheel.operations.stores import reshard_of
from tests.integration.scheduler.test_shards import counts
from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.stack import Stack


def send(stack: Stack, shards: int, count: int, due_s: float, etas: dict[str, datetime] | None = None) -> list[str]:
    """Send tasks with one of 5 keys, in the order in which they are due; adds the eta of each to ``etas``."""
    stack.app.conf.update(wheel_shards=shards)
    ids = []
    for n in range(count):
        eta = datetime.now(UTC) + timedelta(seconds=due_s + n / 100)
        ids.append(stack.app.send_task("note", (n,), eta=eta, wheel={"key": f"key-{n % 5}"}).id)
        if etas is not None:
            etas[ids[-1]] = eta
    return ids


def hold_all(stack: Stack, shards: int) -> Process:
    beat = stack.beat(wheel_shards=shards)
    wait_until(lambda: counts(stack) == [shards], "one scheduler holds all")
    return beat


def stop(stack: Stack, beat: Process) -> None:
    """Stop a scheduler once it has accepted all sent tasks."""
    queues = [f"wheel.{shard}" for shard in range(8)]
    wait_until(lambda: not any(stack.redis.llen(queue) for queue in queues), "all is accepted")
    code, output = beat.terminate(), beat.said()
    assert code == 0, output


def reshard(stack: Stack, before: int, after: int) -> tuple[int, str]:
    return stack.celery("wheel", "reshard", "--yes", str(after), wheel_shards=before).end()


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 3), (3, 1)])
def test_pending_tasks_move_and_keep_the_order_of_their_key(stack: Stack, before: int, after: int) -> None:
    etas: dict[str, datetime] = {}
    beat = hold_all(stack, before)
    stack.app.wheel.pause(everything=True, timeout=patience())  # none is dispatched before, however long it takes
    ids = send(stack, before, 60, 2, etas)
    stop(stack, beat)
    code, output = reshard(stack, before, after)
    assert code == 0, output
    assert f", {after} now;" in output
    found = stack.pending(wheel_shards=after)
    assert sum(found) == 60
    assert len([count for count in found if count]) > 1 or after == 1
    more = send(stack, after, 20, 2, etas)
    beat = stack.beat(wheel_shards=after)
    assert stack.app.wheel.resume(everything=True, timeout=patience()), "the pause is one of the new shards, too"
    wait_until(lambda: len(stack.dispatched()) == 80, "all tasks are dispatched")
    left = stack.dispatched()
    for key in range(5):
        # At the scheduler's start overdue tasks in the store go before overdue tasks in the wheel queue;
        # on a slow machine some of the second batch are overdue. Each batch has its order in any case.
        for batch in (ids[key::5], more[key::5]):
            assert [task for task in left if task in batch] == sorted(batch, key=etas.__getitem__)
    assert sorted(left) == sorted(ids + more)
    beat.terminate()


def test_resharding_forth_and_back_loses_nothing_and_sends_nothing_twice(stack: Stack) -> None:
    """A shard number that is used again meets the offsets that the broker kept from its former use."""
    ids = send(stack, 4, 20, due_s=0.5) + send(stack, 4, 20, due_s=3_600)
    beat = stack.beat(wheel_shards=4)
    wait_until(lambda: len(stack.dispatched()) == 20, "the first tasks are dispatched")
    wait_until(lambda: sum(stack.pending()) == 20, "they are settled, and the others are accepted")
    beat.terminate()
    assert reshard(stack, 4, 1)[0] == 0
    assert reshard(stack, 1, 4)[0] == 0
    assert sum(stack.pending(wheel_shards=4)) == 20
    beat = stack.beat(wheel_shards=4)
    assert set(stack.app.wheel.run_now(ids[20:], timeout=patience()).values()) == {"done"}
    wait_until(lambda: len(stack.dispatched()) >= 40, "all tasks are dispatched")
    assert sorted(stack.dispatched()) == sorted(ids)
    assert "lost writes" not in beat.said()


def test_resharding_is_refused_while_a_scheduler_runs_or_after_one_was_killed(stack: Stack) -> None:
    send(stack, 2, 10, due_s=3_600)
    beat = hold_all(stack, 2)
    wait_until(lambda: sum(stack.pending()) == 10, "all is accepted")
    code, output = reshard(stack, 2, 4)
    assert code == 1
    assert "stop all schedulers" in output
    beat.kill()
    stack.app.conf.update(wheel_shards=2)

    def refusal() -> str:
        with pytest.raises(StoreUnusable) as caught:
            reshard_of(stack.app, 4)
        return str(caught.value)

    wait_until(lambda: "was not given up by its last holder" in refusal(), "its silence is noticed")
    assert sum(stack.pending(wheel_shards=2)) == 10


def test_messages_of_a_shard_that_would_be_removed_are_not_lost(stack: Stack) -> None:
    stop(stack, hold_all(stack, 4))
    send(stack, 4, 40, due_s=60)
    code, output = reshard(stack, 4, 2)
    assert code == 1
    assert "has messages" in output
    assert sum(stack.redis.llen(f"wheel.{shard}") for shard in range(4)) == 40
