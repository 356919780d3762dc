"""Batches of real producers, schedulers and workers: one run for many calls, each of which has its own end."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chord, states
from celery.result import AsyncResult

from tests.integration.groups.test_groups import stack as stack
from tests.kit.patience import patience, wait_until
from tests.kit.project import read_lines
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack


@pytest.fixture
def task(stack: Stack, redis_server: RedisServer) -> Any:
    """Return the task ``many``: 20 calls are a full batch, which waits for a second at most."""
    stack.change(result_backend=redis_server.url, task_ignore_result=False)
    return stack.app.tasks["many"]


def results(stack: Stack, ids: list[str]) -> list[Any]:
    wait_until(lambda: all(AsyncResult(one, app=stack.app).ready() for one in ids), "each call has ended")
    return [AsyncResult(one, app=stack.app).result for one in ids]


def runs(stack: Stack) -> list[list[str]]:
    return [ids for ids, _marked in read_lines(stack.folder / "batches")]


@pytest.mark.slow
def test_full_batches_and_one_that_has_waited(stack: Stack, task: Any) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker()
    ids = [task.delay(n).id for n in range(50)]
    assert results(stack, ids) == list(range(50))
    assert sorted(one for run in runs(stack) for one in run) == sorted(ids), "each call ran once"
    assert len(runs(stack)) <= 5, "two full ones and the rest; a batch may be cut by a chunk"
    assert max(map(len, runs(stack))) <= 20
    total = chord([task.s(n) for n in range(200)])(stack.app.signature("total", ("end",)))
    assert total.get(timeout=patience()) == sum(range(200)), "each of 200 calls has counted once"


@pytest.mark.slow
def test_calls_wait_in_the_wheel_and_survive_its_scheduler(stack: Stack, task: Any) -> None:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    stack.worker()
    far = {"batch": "far", "size": 100, "wait": 3_600}
    ids = [task.apply_async((n,), wheel=far).id for n in range(5)]
    wait_until(lambda: sum(stack.pending()) == 5, "the calls wait")
    assert stack.app.wheel.cancel(ids[0]) == "done"
    beat.kill()
    stack.wait_for_holder(stack.beat())
    for one in ids[1:]:
        assert stack.app.wheel.reschedule(one, countdown=0) == "done", "a call that is moved leaves its batch"
    assert results(stack, ids[1:]) == [1, 2, 3, 4]
    wait_until(lambda: AsyncResult(ids[0], app=stack.app).state == states.REVOKED, "the cancelled call is revoked")
    assert not any(ids[0] in run for run in runs(stack))


@pytest.mark.slow
def test_a_lost_process_fails_each_call_of_its_batch(stack: Stack, task: Any) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker("-P", "prefork", "-c", "1")
    ids = [task.delay(word).id for word in ("a", "die", "b")]
    for error in results(stack, ids):
        assert "WorkerLost" in type(error).__name__
    (more,) = [task.delay("alive").id]
    assert results(stack, [more]) == ["alive"], "the next batch runs"


def test_a_batch_that_fails_as_a_whole_is_retried_by_the_wheel_as_it_is(stack: Stack, task: Any) -> None:
    stack.wait_for_holder(stack.beat())
    stack.worker()
    ids = [task.delay(word).id for word in ("a", "again", "b")]
    assert results(stack, ids) == ["a", "again", "b"]
    first, second = runs(stack)
    assert first == second == ids
    [waited] = stack.app.wheel.history(task="many", limit=1).items
    assert waited.eta_ms > waited.created_ms, "the second try is a task of the wheel with a delay"


def test_calls_of_the_first_protocol_run_alone(stack: Stack, task: Any) -> None:
    stack.change(task_protocol=1)
    stack.wait_for_holder(stack.beat())
    stack.worker()
    ids = [stack.app.tasks["many"].delay(word).id for word in ("a", "b")]
    assert results(stack, ids) == ["a", "b"]
    assert sorted(runs(stack)) == sorted([one] for one in ids)
